// What each op means to the interpreter.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "plugin/graph/constants.h"
#include "plugin/recognizer/interpreter.h"
#include "plugin/recognizer/ops.h"
#include "tensorflow/core/framework/attr_value.pb.h"

namespace nv_norms {
namespace {

using Unary = double (*)(double);
using Binary = double (*)(double, double);

Unary UnaryOf(const std::string& op) {
  static const auto* const kOps = new std::map<std::string, Unary>{
      {"Neg", [](double a) { return -a; }},
      {"Abs", [](double a) { return std::fabs(a); }},
      {"Square", [](double a) { return a * a; }},
      {"Sqrt", [](double a) { return std::sqrt(a); }},
      {"Rsqrt", [](double a) { return 1.0 / std::sqrt(a); }},
      {"Reciprocal", [](double a) { return 1.0 / a; }},
      {"Inv", [](double a) { return 1.0 / a; }},
      {"Exp", [](double a) { return std::exp(a); }},
      {"Log", [](double a) { return std::log(a); }},
  };
  auto found = kOps->find(op);
  return found == kOps->end() ? nullptr : found->second;
}

// MulNoNan and Xdivy are none of these: they give 0 where a NaN or an infinity would show.
Binary BinaryOf(const std::string& op) {
  static const auto* const kOps = new std::map<std::string, Binary>{
      {"Mul", [](double a, double b) { return a * b; }},
      {"Add", [](double a, double b) { return a + b; }},
      {"AddV2", [](double a, double b) { return a + b; }},
      {"AddN", [](double a, double b) { return a + b; }},
      {"Sub", [](double a, double b) { return a - b; }},
      {"RealDiv", [](double a, double b) { return a / b; }},
      {"Div", [](double a, double b) { return a / b; }},
      {"DivNoNan", [](double a, double b) { return b == 0.0 ? 0.0 : a / b; }},
      {"SquaredDifference", [](double a, double b) { return (a - b) * (a - b); }},
      {"Maximum", [](double a, double b) { return std::max(a, b); }},
      {"Minimum", [](double a, double b) { return std::min(a, b); }},
      {"Pow", [](double a, double b) { return std::pow(a, b); }},
      {"RsqrtGrad", [](double y, double dy) { return -0.5 * dy * y * y * y; }},
      {"SqrtGrad", [](double y, double dy) { return 0.5 * dy / y; }},
      {"ReciprocalGrad", [](double y, double dy) { return -dy * y * y; }},
      {"InvGrad", [](double y, double dy) { return -dy * y * y; }},
  };
  auto found = kOps->find(op);
  return found == kOps->end() ? nullptr : found->second;
}

bool ChannelsFirst(const GraphView& view, int node) {
  const std::string format = view.GetString(node, "data_format", "NHWC");
  return format.size() > 1 && format[1] == 'C';
}

}  // namespace

std::optional<Value> Interpreter::Elementwise(int node) {
  const std::string& op = view_.op(node);
  std::vector<const Value*> values;
  std::vector<const Dims*> dims;
  std::vector<size_t> unknown;
  std::vector<Value> made(view_.inputs(node).size());
  for (size_t i = 0; i < view_.inputs(node).size(); ++i) {
    values.push_back(Eval(view_.inputs(node)[i]));
    if (restart_) return std::nullopt;
    if (values.back() == nullptr) {
      unknown.push_back(i);
    } else {
      dims.push_back(&values.back()->dims);
    }
  }
  if (values.empty() || unknown.size() == values.size()) return std::nullopt;
  for (size_t i : unknown) {
    auto like = LikeOthers(view_.inputs(node)[i], dims);
    if (!like) return std::nullopt;
    values[i] = Keep(view_.inputs(node)[i], *std::move(like));
  }
  if (op == "BiasAdd" && ChannelsFirst(view_, node) && values[0]->dims.size() > 2) {
    made[1] = *values[1];
    made[1].dims.resize(values[0]->dims.size() - 1);
    values[1] = &made[1];
  }
  dims.clear();
  for (const Value* value : values) dims.push_back(&value->dims);
  Value out;
  // Of these, the operands must have one shape.
  const bool one_shape = op == "AddN" || (op.size() > 4 && op.substr(op.size() - 4) == "Grad");
  const Certainty certainty = one_shape ? Certainty::kSure : Certainty::kUnlessOne;
  if (!Done(AlignForBroadcast(dims, certainty, axes_, &out.dims))) return std::nullopt;
  if (out.Flat().size() > kMaxAtoms) return std::nullopt;
  if (op == "_UnaryOpsComposition") {
    auto names = view_.def(node).attr().find("op_names");
    if (names == view_.def(node).attr().end()) return std::nullopt;
    out.numbers = values[0]->numbers;
    for (const auto& name : names->second.list().s()) {
      const Unary unary = UnaryOf(std::string(name));
      if (unary == nullptr) return std::nullopt;
      out.numbers = Map(out.numbers, unary);
    }
    return out;
  }
  if (const Unary unary = UnaryOf(op)) {
    out.numbers = Map(values[0]->numbers, unary);
    return out;
  }
  const Binary binary = BinaryOf(op == "BiasAdd" ? "AddV2" : op);
  if (binary == nullptr) return std::nullopt;
  // A clamp may be out of the draws' reach; max(variance, 0) is the one that means nothing.
  if (op == "Minimum" || (op == "Maximum" && !IsIdleMaximum(node))) return std::nullopt;
  out.numbers = values[0]->numbers;
  for (size_t i = 1; i < values.size(); ++i) {
    out.numbers = Zip(out.numbers, values[i]->numbers, binary);
  }
  return out;
}

std::optional<std::vector<int>> Interpreter::AxisList(TensorId tensor, int rank) {
  const auto sizes = Sizes(tensor);
  if (!sizes) return std::nullopt;
  std::vector<int> axes;
  for (const Size& size : sizes->values) {
    if (!size.known()) return std::nullopt;
    const int64_t axis = size.coefficient() + (size.coefficient() < 0 ? rank : 0);
    if (axis < 0 || axis >= rank) return std::nullopt;
    axes.push_back(static_cast<int>(axis));
  }
  return axes;
}

std::optional<Value> Interpreter::Reduction(int node) {
  const Value* input = Eval(view_.inputs(node)[0]);
  if (input == nullptr) return std::nullopt;
  const auto axes = AxisList(view_.inputs(node)[1], static_cast<int>(input->dims.size()));
  if (!axes || restart_) return std::nullopt;
  // An axis that is named twice is an error when the graph runs.
  if (std::set<int>(axes->begin(), axes->end()).size() < axes->size()) return std::nullopt;
  Value out;
  Dim reduced;
  const bool keep = view_.GetBool(node, "keep_dims", false);
  for (size_t i = 0; i < input->dims.size(); ++i) {
    if (std::find(axes->begin(), axes->end(), static_cast<int>(i)) == axes->end()) {
      out.dims.push_back(input->dims[i]);
      continue;
    }
    reduced.insert(reduced.end(), input->dims[i].begin(), input->dims[i].end());
    if (keep) out.dims.push_back({});
  }
  out.numbers = MeanOver(input->numbers, reduced);
  if (view_.op(node) == "Sum") {
    const double count = RealSize(axes_->size(reduced));
    for (double& v : out.numbers.data) v *= count;
  }
  return out;
}

std::optional<Value> Interpreter::View(int node) {
  const std::string& op = view_.op(node);
  if (op == "Cast" &&
      !(IsFloat(view_.GetType(node, "SrcT")) && IsFloat(view_.GetType(node, "DstT")))) {
    return std::nullopt;
  }
  const Value* input = Eval(view_.inputs(node)[0]);
  if (input == nullptr) return std::nullopt;
  const int rank = static_cast<int>(input->dims.size());
  Value out = *input;
  if (op == "Reshape") {
    auto target = Sizes(view_.inputs(node)[1]);
    if (restart_) return std::nullopt;
    std::vector<Size> sizes;
    if (target) {
      sizes = target->values;
    } else if (const auto shape = ShapeOf({node, 0})) {
      sizes = *shape;
    } else {
      return std::nullopt;
    }
    // A gradient may yet be summed to what x's shape is taken for.
    const Certainty certainty = scene_.dy.valid() ? Certainty::kUnlessOne : Certainty::kSure;
    if (!Done(AlignForReshape(input->dims, sizes, certainty, axes_, &out.dims))) {
      return std::nullopt;
    }
  } else if (op == "Transpose") {
    const auto permutation = AxisList(view_.inputs(node)[1], rank);
    if (!permutation || restart_ || static_cast<int>(permutation->size()) != rank) {
      return std::nullopt;
    }
    for (int i = 0; i < rank; ++i) out.dims[i] = input->dims[(*permutation)[i]];
  } else if (op == "ExpandDims") {
    const auto axis = AxisList(view_.inputs(node)[1], rank + 1);
    if (!axis || restart_ || axis->size() != 1) return std::nullopt;
    out.dims.insert(out.dims.begin() + (*axis)[0], Dim{});
  } else if (op == "StridedSlice") {
    return Slice(node, *input);
  } else if (op == "Squeeze") {
    std::vector<bool> drop(rank, false);
    auto listed = view_.def(node).attr().find("squeeze_dims");
    if (listed != view_.def(node).attr().end() && listed->second.list().i_size() > 0) {
      for (int64_t dim : listed->second.list().i()) {
        if (dim < 0) dim += rank;
        if (dim < 0 || dim >= rank || !input->dims[dim].empty()) return std::nullopt;
        drop[dim] = true;
      }
    } else {
      for (int i = 0; i < rank; ++i) {
        drop[i] = input->dims[i].empty();
        // An unknown size may be 1 when the graph runs, and would go too.
        if (!drop[i] && !axes_->size(input->dims[i]).known()) return std::nullopt;
      }
    }
    out.dims.clear();
    for (int i = 0; i < rank; ++i) {
      if (!drop[i]) out.dims.push_back(input->dims[i]);
    }
  }
  return out;
}

// x[..., None], x[:, 0] of an axis of size 1, and the like: slices that take all of an axis.
std::optional<Value> Interpreter::Slice(int node, const Value& input) {
  const auto begin = IntConstant(view_, view_.inputs(node)[1].node);
  const auto stride = IntConstant(view_, view_.inputs(node)[3].node);
  if (!begin || !stride) return std::nullopt;
  const size_t entries = begin->values.size();
  if (stride->values.size() != entries) return std::nullopt;
  const auto bit = [&](const char* mask, size_t i) {
    return (view_.GetInt(node, mask, 0) >> i & 1) != 0;
  };
  size_t taken = 0;
  for (size_t i = 0; i < entries; ++i) {
    if (!bit("ellipsis_mask", i) && !bit("new_axis_mask", i)) ++taken;
  }
  if (taken > input.dims.size()) return std::nullopt;
  const size_t skipped = input.dims.size() - taken;
  Value out;
  out.numbers = input.numbers;
  size_t at = 0;
  for (size_t i = 0; i < entries; ++i) {
    if (bit("ellipsis_mask", i)) {
      for (size_t k = 0; k < skipped; ++k) out.dims.push_back(input.dims[at++]);
    } else if (bit("new_axis_mask", i)) {
      out.dims.push_back({});
    } else if (bit("shrink_axis_mask", i)) {
      if (!input.dims[at++].empty()) return std::nullopt;
    } else if (bit("begin_mask", i) && bit("end_mask", i) && stride->values[i] == 1) {
      out.dims.push_back(input.dims[at++]);
    } else {
      return std::nullopt;
    }
  }
  while (at < input.dims.size()) out.dims.push_back(input.dims[at++]);
  return out;
}

// The gradient of a slice that only inserts axes of size 1: it takes them away again.
std::optional<Value> Interpreter::SliceGrad(int node) {
  const auto begin = IntConstant(view_, view_.inputs(node)[1].node);
  const auto stride = IntConstant(view_, view_.inputs(node)[3].node);
  const Value* input = Eval(view_.inputs(node)[4]);
  if (!begin || !stride || input == nullptr) return std::nullopt;
  const size_t entries = begin->values.size();
  if (stride->values.size() != entries) return std::nullopt;
  const size_t rank = input->dims.size();
  const auto bit = [&](const char* mask, size_t i) {
    return (view_.GetInt(node, mask, 0) >> i & 1) != 0;
  };
  const auto is_ellipsis = [&](size_t i) { return bit("ellipsis_mask", i); };
  size_t ellipses = 0;
  for (size_t i = 0; i < entries; ++i) ellipses += is_ellipsis(i);
  if (ellipses > 1 || entries - ellipses > rank) return std::nullopt;
  const size_t skipped = rank - (entries - ellipses);
  Value out;
  out.numbers = input->numbers;
  size_t at = 0;
  for (size_t i = 0; i < entries; ++i) {
    if (is_ellipsis(i)) {
      for (size_t k = 0; k < skipped; ++k) out.dims.push_back(input->dims[at++]);
    } else if (bit("new_axis_mask", i)) {
      if (!input->dims[at++].empty()) return std::nullopt;
    } else if (bit("begin_mask", i) && bit("end_mask", i) && stride->values[i] == 1 &&
               !bit("shrink_axis_mask", i)) {
      out.dims.push_back(input->dims[at++]);
    } else {
      return std::nullopt;
    }
  }
  while (at < rank) out.dims.push_back(input->dims[at++]);
  return out;
}

std::optional<Value> Interpreter::Broadcast(int node) {
  const std::string& op = view_.op(node);
  if (op == "StridedSliceGrad") return SliceGrad(node);
  const Value* input = Eval(view_.inputs(node)[0]);
  if (input == nullptr) return std::nullopt;
  Value out = *input;
  if (op == "OnesLike" || op == "ZerosLike") {
    out.numbers = Numbers::Scalar(op == "OnesLike" ? 1.0 : 0.0);
    return out;
  }
  const auto sizes = Sizes(view_.inputs(node)[1]);
  if (!sizes || restart_ || sizes->values.size() < out.dims.size()) return std::nullopt;
  out.dims.insert(out.dims.begin(), sizes->values.size() - out.dims.size(), Dim{});
  for (size_t i = 0; i < out.dims.size(); ++i) {
    const Size size = axes_->Resolve(sizes->values[i]);
    if (out.dims[i].empty()) {
      out.dims[i] = axes_->ForDimension({node, 0}, static_cast<int>(i), size, false);
    } else if (op == "Tile" && !size.Is(1)) {
      return std::nullopt;
    } else if (op == "BroadcastTo" && size != axes_->size(out.dims[i])) {
      return std::nullopt;
    }
  }
  return out;
}

std::optional<std::vector<bool>> NormAxes(const GraphView& view, int node, int rank) {
  const std::string& op = view.op(node);
  std::vector<bool> reduced(rank, false);
  if (rank < 2) return std::nullopt;
  if (op == "_MklLayerNorm") {
    reduced[rank - 1] = true;
    return reduced;
  }
  if (op == "_MklFusedInstanceNorm") {
    const auto axes = view.def(node).attr().find("reduction_axes");
    const auto fused = view.def(node).attr().find("fused_ops");
    if (axes == view.def(node).attr().end()) return std::nullopt;
    if (fused != view.def(node).attr().end() && fused->second.list().s_size() > 0) {
      return std::nullopt;
    }
    auto mark = [&](int64_t axis) {
      if (axis < 0) axis += rank;
      if (axis >= 0 && axis < rank) reduced[axis] = true;
    };
    for (int64_t axis : axes->second.list().i()) mark(axis);
    if (axes->second.has_tensor()) return std::nullopt;
    return reduced;
  }
  if (!view.GetBool(node, "is_training", true)) return std::nullopt;
  const int channel = ChannelsFirst(view, node) ? 1 : rank - 1;
  for (int i = 0; i < rank; ++i) reduced[i] = i != channel;
  return reduced;
}

namespace {

// Whether an operand that is broadcast varies along one axis alone. TensorFlow's remapper makes
// oneDNN's ops of graphs without looking where gamma and beta run; their shapes still tell.
bool RunsAlong(const Dims& operand, int rank, int axis) {
  for (int i = 0; i < static_cast<int>(operand.size()); ++i) {
    const int at = i + rank - static_cast<int>(operand.size());
    if (!operand[i].empty() && at != axis) return false;
  }
  return true;
}

}  // namespace

// y of an op that normalizes: (x - mean) / sqrt(var + epsilon) * scale + offset.
std::optional<Value> Interpreter::Norm(TensorId tensor) {
  const int node = tensor.node;
  if (tensor.port != 0) return std::nullopt;
  const Value* x = Eval(view_.inputs(node)[0]);
  if (x == nullptr) return std::nullopt;
  const int rank = static_cast<int>(x->dims.size());
  const auto reduced = NormAxes(view_, node, rank);
  if (!reduced) return std::nullopt;
  Dim atoms;
  for (int i = 0; i < rank; ++i) {
    if ((*reduced)[i]) atoms.insert(atoms.end(), x->dims[i].begin(), x->dims[i].end());
  }
  // The axis of scale and offset: a batch norm's is the one left, a layer norm's the last, an
  // instance norm's is next to the batch or last, whichever is left.
  int channel = rank - 1;
  if (view_.op(node) != "_MklLayerNorm" && (*reduced)[rank - 1]) channel = 1;
  const bool is_onednn = view_.op(node).rfind("_Mkl", 0) == 0;
  Dims parameter(rank);
  parameter[channel] = x->dims[channel];
  const double epsilon = view_.GetFloat(node, "epsilon", 0.001f);
  const Numbers mean = MeanOver(x->numbers, atoms);
  const Numbers centred = Zip(x->numbers, mean, [](double a, double b) { return a - b; });
  const Numbers variance = MeanOver(Map(centred, [](double a) { return a * a; }), atoms);
  const Numbers rstd = Map(variance, [&](double v) { return 1.0 / std::sqrt(v + epsilon); });
  Value out{x->dims, Zip(centred, rstd, [](double a, double b) { return a * b; })};
  for (int i = 1; i <= 2; ++i) {
    const Value* operand = Eval(view_.inputs(node)[i]);
    if (operand == nullptr) return std::nullopt;
    // One number for each channel, whatever the operand's shape: line it up with the axis.
    Dims lined(rank), ignored;
    if (!operand->numbers.atoms.empty()) {
      if (is_onednn && !RunsAlong(operand->dims, rank, channel)) return std::nullopt;
      lined[channel] = operand->Flat();
    }
    if (!Done(AlignForBroadcast({&parameter, &lined}, Certainty::kSure, axes_, &ignored)))
      return std::nullopt;
    out.numbers = Zip(out.numbers, operand->numbers, BinaryOf(i == 1 ? "Mul" : "AddV2"));
  }
  return out;
}

// Whether the saved moments that a gradient reads are those of its x: it takes them as they are.
bool Interpreter::ReadsMomentsOfItsX(int gradient) {
  const auto& inputs = view_.inputs(gradient);
  int forward = -1;
  for (int i = 3; i < static_cast<int>(inputs.size()); ++i) {
    TensorId saved = inputs[i];
    while (view_.op(saved.node) == "Identity") saved = view_.inputs(saved.node)[0];
    if (saved.port != i || (forward >= 0 && saved.node != forward)) return false;
    forward = saved.node;
  }
  if (forward < 0 || view_.op(forward).rfind("FusedBatchNorm", 0) != 0 ||
      ClassOf(view_.op(forward)) != OpClass::kNorm ||
      !view_.GetBool(forward, "is_training", true) ||
      ChannelsFirst(view_, forward) != ChannelsFirst(view_, gradient) ||
      view_.GetFloat(forward, "epsilon", 0.001f) != view_.GetFloat(gradient, "epsilon", 0.001f)) {
    return false;
  }
  const TensorId of = view_.inputs(forward)[0];
  if (of == inputs[1]) return true;
  const Value* a = Eval(of);
  const Value* b = restart_ ? nullptr : Eval(inputs[1]);
  return a != nullptr && b != nullptr && a->dims == b->dims && Close(a->numbers, b->numbers, 0.0);
}

// dx of a batch norm in training: scale * rstd * (dy - mean(dy) - xhat * mean(dy * xhat)).
std::optional<Value> Interpreter::NormGrad(TensorId tensor) {
  const int node = tensor.node;
  if (tensor.port != 0 || !view_.GetBool(node, "is_training", true) || !ReadsMomentsOfItsX(node)) {
    return std::nullopt;
  }
  const Value* dy = restart_ ? nullptr : Eval(view_.inputs(node)[0]);
  const Value* x = restart_ ? nullptr : Eval(view_.inputs(node)[1]);
  const Value* scale = restart_ ? nullptr : Eval(view_.inputs(node)[2]);
  if (dy == nullptr || x == nullptr || scale == nullptr) return std::nullopt;
  const int rank = static_cast<int>(x->dims.size());
  Dims ignored;
  if (!scale->numbers.atoms.empty() || rank < 2 ||
      !Done(AlignForBroadcast({&x->dims, &dy->dims}, Certainty::kSure, axes_, &ignored))) {
    return std::nullopt;
  }
  const int channel = ChannelsFirst(view_, node) ? 1 : rank - 1;
  Dim atoms;
  for (int i = 0; i < rank; ++i) {
    if (i != channel) atoms.insert(atoms.end(), x->dims[i].begin(), x->dims[i].end());
  }
  const double epsilon = view_.GetFloat(node, "epsilon", 0.001f);
  const double factor = scale->numbers.data[0];
  const Binary minus = BinaryOf("Sub"), times = BinaryOf("Mul");
  const Numbers centred = Zip(x->numbers, MeanOver(x->numbers, atoms), minus);
  const Numbers rstd = Map(MeanOver(Zip(centred, centred, times), atoms),
                           [&](double v) { return 1.0 / std::sqrt(v + epsilon); });
  const Numbers xhat = Zip(centred, rstd, times);
  const Numbers along = MeanOver(Zip(dy->numbers, xhat, times), atoms);
  Numbers dx = Zip(dy->numbers, MeanOver(dy->numbers, atoms), minus);
  dx = Zip(Zip(dx, Zip(xhat, along, times), minus), rstd, times);
  return Value{x->dims, Map(dx, [&](double v) { return factor * v; })};
}

}  // namespace nv_norms
