// What ops that normalize mean to the interpreter, TensorFlow's own and oneDNN's, and their
// gradients.
#include <cmath>
#include <functional>

#include "plugin/recognizer/interpreter.h"
#include "plugin/recognizer/ops.h"
#include "tensorflow/core/framework/attr_value.pb.h"

namespace nv_norms {

bool ChannelsFirst(const GraphView& view, int node) {
  const std::string format = view.GetString(node, "data_format", "NHWC");
  return format.size() > 1 && format[1] == 'C';
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
  const Numbers centred = Zip(x->numbers, mean, std::minus<double>());
  const Numbers variance = MeanOver(Map(centred, [](double a) { return a * a; }), atoms);
  const Numbers rstd = Map(variance, [&](double v) { return 1.0 / std::sqrt(v + epsilon); });
  Value out{x->dims, Zip(centred, rstd, std::multiplies<double>())};
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
    out.numbers = i == 1 ? Zip(out.numbers, operand->numbers, std::multiplies<double>())
                         : Zip(out.numbers, operand->numbers, std::plus<double>());
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
  const std::minus<double> minus;
  const std::multiplies<double> times;
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
