// Integers computed from shapes, followed symbolically.
#include <algorithm>

#include "plugin/graph/constants.h"
#include "plugin/recognizer/interpreter.h"

namespace nv_norms {
namespace {

constexpr int kMaxSizeDepth = 16;

bool KeepsShape(const std::string& op) {
  return op == "Cast" || op == "Identity" || op == "StopGradient" || op == "Snapshot" ||
         op == "Square" || op == "Neg" || op == "Rsqrt" || op == "Sqrt" || op == "Relu";
}

// Whether a type holds all sizes that there are; int8 and half precision do not.
bool HoldsSizes(tensorflow::DataType dtype) {
  return IsInt(dtype) || dtype == tensorflow::DT_FLOAT || dtype == tensorflow::DT_DOUBLE;
}

std::optional<SizeTensor> Whole(std::vector<Size> values) {
  return SizeTensor{false, std::move(values)};
}

std::optional<Size> Arithmetic(const std::string& op, const Size& a, const Size& b) {
  if (op == "Mul") return a * b;
  if (op == "FloorDiv" || op == "RealDiv" || op == "Div") {
    if (const auto exact = a.DividedBy(b)) return exact;
    if (op == "FloorDiv" && a.known() && b.known() && a.coefficient() >= 0 && b.coefficient() > 0) {
      return Size(a.coefficient() / b.coefficient());
    }
    return std::nullopt;
  }
  if (op == "Maximum") {
    if (a == b) return a;
    if (a.known() && b.known()) return Size(std::max(a.coefficient(), b.coefficient()));
    // A size that is not known is at least 1.
    if (a.known() && a.coefficient() <= 1 && b.coefficient() > 0) return b;
    if (b.known() && b.coefficient() <= 1 && a.coefficient() > 0) return a;
    return std::nullopt;
  }
  if (!a.known() || !b.known()) return std::nullopt;
  if (op == "AddV2" || op == "Add") return Size(a.coefficient() + b.coefficient());
  if (op == "Sub") return Size(a.coefficient() - b.coefficient());
  if (op == "FloorMod" && b.coefficient() > 0) {
    return Size(((a.coefficient() % b.coefficient()) + b.coefficient()) % b.coefficient());
  }
  return std::nullopt;
}

// Which axes of operand `which` (0, 1) a gradient sums over; no value where that hangs on an
// unknown size.
std::optional<SizeTensor> ReductionIndices(std::vector<Size> a, std::vector<Size> b, int which) {
  const size_t rank = std::max(a.size(), b.size());
  a.insert(a.begin(), rank - a.size(), Size(1));
  b.insert(b.begin(), rank - b.size(), Size(1));
  SizeTensor axes;
  for (size_t i = 0; i < rank; ++i) {
    const Size& own = which == 0 ? a[i] : b[i];
    if (own.Is(1)) {
      axes.values.push_back(Size(static_cast<int64_t>(i)));
    } else if (a[i] != b[i] && !a[i].Is(1) && !b[i].Is(1)) {
      return std::nullopt;
    }
  }
  return axes;
}

}  // namespace

std::optional<SizeTensor> Interpreter::Sizes(TensorId tensor) { return SizesOf(tensor, 0); }

std::optional<SizeTensor> Interpreter::SizesOf(TensorId tensor, int depth) {
  if (depth > kMaxSizeDepth || restart_) return std::nullopt;
  auto sizes = SizesOfNode(tensor, depth);
  if (sizes) {
    for (Size& size : sizes->values) size = axes_->Resolve(size);
  }
  return sizes;
}

std::optional<SizeTensor> Interpreter::SizesOfNode(TensorId tensor, int depth) {
  const int node = tensor.node;
  const std::string& op = view_.op(node);
  const auto& inputs = view_.inputs(node);
  const auto in = [&](size_t i) -> std::optional<SizeTensor> {
    if (i >= inputs.size()) return std::nullopt;
    return SizesOf(inputs[i], depth + 1);
  };
  if (op == "Const" || op == "InvertPermutation") {
    const auto ints = IntConstant(view_, node);
    if (!ints) return std::nullopt;
    SizeTensor sizes{ints->scalar, {}};
    for (int64_t value : ints->values) sizes.values.push_back(Size(value));
    return sizes;
  }
  if (op == "Shape" || op == "ShapeN" || op == "Size") {
    TensorId of = inputs[op == "ShapeN" ? tensor.port : 0];
    // Inference gives an unknown dimension no number; look for a tensor of which we know more.
    while (!IsRoot(of) && scene_.dependents.count(of.node) == 0 && KeepsShape(view_.op(of.node))) {
      of = view_.inputs(of.node)[0];
    }
    std::vector<Size> shape;
    const bool near = IsRoot(of) || scene_.dependents.count(of.node) > 0;
    const Value* value = near ? Eval(of) : nullptr;
    if (restart_) return std::nullopt;
    if (value != nullptr) {
      for (const Dim& dim : value->dims) shape.push_back(axes_->size(dim));
    } else if (const auto inferred = ShapeOf(of)) {
      shape = *inferred;
    } else {
      return std::nullopt;
    }
    if (op != "Size") return Whole(std::move(shape));
    SizeTensor count{true, {Size(1)}};
    for (const Size& size : shape) count.values[0] = count.values[0] * size;
    return count;
  }
  if (op == "Identity" || op == "Snapshot") return in(0);
  if (op == "Cast") return HoldsSizes(view_.GetType(node, "DstT")) ? in(0) : std::nullopt;
  if (op == "Enter") {
    return view_.GetBool(node, "is_constant", false) ? in(0) : std::nullopt;
  }
  if (op == "Squeeze" || op == "Reshape" || op == "ExpandDims") {
    auto sizes = in(0);
    if (!sizes) return std::nullopt;
    const TensorInfo& info = scene_.shapes->Get(tensor);
    if (!info.rank_known || info.dims.size() > 1) return std::nullopt;
    sizes->scalar = info.dims.empty();
    return sizes;
  }
  if (op == "Pack") {
    SizeTensor packed;
    for (size_t i = 0; i < inputs.size(); ++i) {
      const auto element = in(i);
      if (!element || element->values.size() != 1 || !element->scalar) return std::nullopt;
      packed.values.push_back(element->values[0]);
    }
    return packed;
  }
  if (op == "ConcatV2") {
    SizeTensor joined;
    for (size_t i = 0; i + 1 < inputs.size(); ++i) {
      const auto part = in(i);
      if (!part) return std::nullopt;
      joined.values.insert(joined.values.end(), part->values.begin(), part->values.end());
    }
    return joined;
  }
  if (op == "GatherV2") {
    const auto from = in(0), at = in(1);
    if (!from || !at || from->scalar) return std::nullopt;
    SizeTensor taken{at->scalar, {}};
    for (const Size& index : at->values) {
      const int64_t n = static_cast<int64_t>(from->values.size());
      const int64_t i = index.coefficient() + (index.coefficient() < 0 ? n : 0);
      if (!index.known() || i < 0 || i >= n) return std::nullopt;
      taken.values.push_back(from->values[i]);
    }
    return taken;
  }
  if (op == "StridedSlice") {
    const auto from = in(0), begin = in(1), end = in(2), stride = in(3);
    if (!from || !begin || !end || !stride || from->scalar || begin->values.size() != 1 ||
        end->values.size() != 1 || stride->values.size() != 1 || !stride->values[0].Is(1) ||
        !begin->values[0].known() || !end->values[0].known() ||
        view_.GetInt(node, "ellipsis_mask", 0) != 0 ||
        view_.GetInt(node, "new_axis_mask", 0) != 0) {
      return std::nullopt;
    }
    const int64_t n = static_cast<int64_t>(from->values.size());
    const auto clamp = [n](int64_t i) {
      return std::max<int64_t>(0, std::min(n, i < 0 ? i + n : i));
    };
    const int64_t first =
        view_.GetInt(node, "begin_mask", 0) & 1 ? 0 : clamp(begin->values[0].coefficient());
    if (view_.GetInt(node, "shrink_axis_mask", 0) & 1) {
      if (first >= n) return std::nullopt;
      return SizeTensor{true, {from->values[first]}};
    }
    const int64_t last =
        view_.GetInt(node, "end_mask", 0) & 1 ? n : clamp(end->values[0].coefficient());
    SizeTensor slice;
    for (int64_t i = first; i < last; ++i) slice.values.push_back(from->values[i]);
    return slice;
  }
  if (op == "Prod") {
    const auto sizes = in(0), axis = in(1);
    if (!sizes || !axis) return std::nullopt;
    if (axis->values.empty() || sizes->scalar) return sizes;
    SizeTensor product{!view_.GetBool(node, "keep_dims", false), {Size(1)}};
    for (const Size& size : sizes->values) product.values[0] = product.values[0] * size;
    return product;
  }
  if (op == "Range") {
    const auto from = in(0), to = in(1), step = in(2);
    if (!from || !to || !step || from->values.size() != 1 || to->values.size() != 1 ||
        step->values.size() != 1 || !from->values[0].known() || !to->values[0].known() ||
        !step->values[0].Is(1)) {
      return std::nullopt;
    }
    SizeTensor range;
    for (int64_t i = from->values[0].coefficient();
         i < to->values[0].coefficient() && range.values.size() < 64; ++i) {
      range.values.push_back(Size(i));
    }
    return range;
  }
  if (op == "Fill") {
    const auto dims = in(0), value = in(1);
    if (!dims || !value || dims->values.size() > 1 || value->values.size() != 1) {
      return std::nullopt;
    }
    if (dims->values.empty()) return SizeTensor{true, value->values};
    if (!dims->values[0].known() || dims->values[0].coefficient() > 64) return std::nullopt;
    return Whole(std::vector<Size>(dims->values[0].coefficient(), value->values[0]));
  }
  if (op == "DynamicStitch") {
    // A shape with 1 in the place of some sizes, in the gradient of a mean that drops its axes.
    const size_t parts = inputs.size() / 2;
    SizeTensor stitched;
    std::vector<bool> given;
    for (size_t i = 0; i < parts; ++i) {
      const auto places = in(i), sizes = in(parts + i);
      if (!places || !sizes || places->values.size() != sizes->values.size()) return std::nullopt;
      for (size_t k = 0; k < places->values.size(); ++k) {
        const int64_t place = places->values[k].coefficient();
        if (!places->values[k].known() || place < 0 || place >= 64) return std::nullopt;
        const size_t size = std::max(stitched.values.size(), static_cast<size_t>(place) + 1);
        stitched.values.resize(size, Size(1));
        given.resize(size, false);
        stitched.values[place] = sizes->values[k];  // the last that names a place wins
        given[place] = true;
      }
    }
    if (std::find(given.begin(), given.end(), false) != given.end()) return std::nullopt;
    return stitched;
  }
  if (op == "BroadcastGradientArgs") {
    const auto a = in(0), b = in(1);
    if (!a || !b) return std::nullopt;
    return ReductionIndices(a->values, b->values, tensor.port);
  }
  if (op == "BroadcastArgs") {
    const auto a = in(0), b = in(1);
    if (!a || !b || a->values.size() != b->values.size()) return std::nullopt;
    SizeTensor shape = *a;
    for (size_t i = 0; i < shape.values.size(); ++i) {
      if (shape.values[i].Is(1)) {
        shape.values[i] = b->values[i];
      } else if (!b->values[i].Is(1) && b->values[i] != shape.values[i]) {
        return std::nullopt;
      }
    }
    return shape;
  }
  if (op == "DataFormatDimMap" || op == "DataFormatVecPermute") {
    const std::string from = view_.GetString(node, "src_format", "NHWC");
    const std::string to = view_.GetString(node, "dst_format", "NCHW");
    auto sizes = in(0);
    if (!sizes || from.size() != to.size()) return std::nullopt;
    const int64_t rank = static_cast<int64_t>(from.size());
    SizeTensor mapped{sizes->scalar, {}};
    for (int64_t i = 0; i < static_cast<int64_t>(sizes->values.size()); ++i) {
      if (op == "DataFormatDimMap") {
        if (!sizes->values[i].known()) return std::nullopt;
        const int64_t axis = sizes->values[i].coefficient();
        if (axis < -rank || axis >= rank) return std::nullopt;
        mapped.values.push_back(
            Size(static_cast<int64_t>(to.find(from[axis < 0 ? axis + rank : axis]))));
      } else {
        const size_t at = from.find(to[i]);
        if (static_cast<int64_t>(sizes->values.size()) != rank || at == std::string::npos) {
          return std::nullopt;
        }
        mapped.values.push_back(sizes->values[at]);
      }
    }
    return mapped;
  }
  if (inputs.size() == 2) {
    const auto a = in(0), b = in(1);
    if (!a || !b) return std::nullopt;
    // One number is beside as many as the other has, none of them included: the axes of a mean of a
    // scalar, plus its rank.
    if (a->values.size() != b->values.size() && a->values.size() != 1 && b->values.size() != 1) {
      return std::nullopt;
    }
    const size_t count = a->values.size() == 1 ? b->values.size() : a->values.size();
    SizeTensor result{a->scalar && b->scalar, {}};
    for (size_t i = 0; i < count; ++i) {
      const auto value = Arithmetic(op, a->values[a->values.size() == 1 ? 0 : i],
                                    b->values[b->values.size() == 1 ? 0 : i]);
      if (!value) return std::nullopt;
      result.values.push_back(*value);
    }
    return result;
  }
  return std::nullopt;
}

}  // namespace nv_norms
