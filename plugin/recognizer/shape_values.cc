// Integers computed from shapes, followed symbolically.
#include "plugin/graph/constants.h"
#include "plugin/graph/shape_ops.h"
#include "plugin/recognizer/interpreter.h"

namespace nv_norms {
namespace {

constexpr int kMaxSizeDepth = 16;

// Whether a type holds all sizes that there are; int8 and half precision do not.
bool HoldsSizes(tensorflow::DataType dtype) {
  return IsInt(dtype) || dtype == tensorflow::DT_FLOAT || dtype == tensorflow::DT_DOUBLE;
}

// The sizes, where they are a vector's or a scalar's, as inference has it.
MaybeSizes Reshaped(SizeTensor sizes, const TensorInfo& info) {
  if (!info.rank_known || info.dims.size() > 1) return std::nullopt;
  sizes.scalar = info.dims.empty();
  return sizes;
}

MaybeSizes Sliced(const GraphView& view, int node, const std::vector<SizeTensor>& inputs) {
  if (inputs[0].scalar) return std::nullopt;
  for (size_t i : {1, 2, 3}) {
    if (inputs[i].values.size() != 1 || !inputs[i].values[0].known()) return std::nullopt;
  }
  if (!inputs[3].values[0].Is(1)) return std::nullopt;
  const std::vector<Size>& from = inputs[0].values;
  const auto slice = SliceOfVector(view, node, inputs[1].values[0].coefficient(),
                                   inputs[2].values[0].coefficient(), from.size());
  if (!slice) return std::nullopt;
  return SizeTensor{slice->scalar, {from.begin() + slice->first, from.begin() + slice->last}};
}

MaybeSizes InOtherFormat(const GraphView& view, int node, const SizeTensor& sizes) {
  const auto order = OrderOfFormats(view, node);
  if (!order || sizes.values.size() != order->size()) return std::nullopt;
  SizeTensor permuted;
  for (int64_t from : *order) permuted.values.push_back(sizes.values[from]);
  return permuted;
}

// DataFormatDimMap: where in the other format each of these axes is.
MaybeSizes AxesInOtherFormat(const GraphView& view, int node, const SizeTensor& axes) {
  const auto order = OrderOfFormats(view, node);
  if (!order) return std::nullopt;
  SizeTensor mapped{axes.scalar, {}};
  for (const Size& size : axes.values) {
    const auto at = size.known() ? AxisInOrder(*order, size.coefficient()) : std::nullopt;
    if (!at) return std::nullopt;
    mapped.values.push_back(Size(*at));
  }
  return mapped;
}

}  // namespace

MaybeSizes Interpreter::Sizes(TensorId tensor) { return SizesOf(tensor, 0); }

MaybeSizes Interpreter::SizesOf(TensorId tensor, int depth) {
  if (depth > kMaxSizeDepth || restart_) return std::nullopt;
  auto sizes = SizesOfNode(tensor, depth);
  if (sizes) {
    for (Size& size : sizes->values) size = axes_->Resolve(size);
  }
  return sizes;
}

MaybeSizes Interpreter::SizesOfNode(TensorId tensor, int depth) {
  const int node = tensor.node;
  const std::string& op = view_.op(node);
  if (op == "Const" || op == "InvertPermutation") {
    const auto ints = IntConstant(view_, node);
    if (!ints) return std::nullopt;
    SizeTensor sizes{ints->scalar, {}};
    for (int64_t value : ints->values) sizes.values.push_back(Size(value));
    return sizes;
  }
  if (op == "Shape" || op == "ShapeN" || op == "Size") {
    const auto shape = ShapeFollowed(view_.inputs(node)[op == "ShapeN" ? tensor.port : 0]);
    if (!shape || op != "Size") return shape;
    return CountOf(*shape, true);
  }
  if (op == "Cast" && !HoldsSizes(view_.GetType(node, "DstT"))) return std::nullopt;
  if (op == "Enter" && !view_.GetBool(node, "is_constant", false)) return std::nullopt;
  std::vector<SizeTensor> inputs;
  for (const TensorId& input : view_.inputs(node)) {
    auto sizes = SizesOf(input, depth + 1);
    if (!sizes) return std::nullopt;
    inputs.push_back(*std::move(sizes));
  }
  return SizesFrom(tensor, inputs);
}

// The sizes of a tensor, which are those of the x or of the operand that it comes from.
MaybeSizes Interpreter::ShapeFollowed(TensorId tensor) {
  const auto near = [&] { return IsRoot(tensor) || scene_.dependents.count(tensor.node) > 0; };
  // Inference gives an unknown dimension no number; look for a tensor of which we know more.
  while (!near() && KeepsShape(view_.op(tensor.node))) tensor = view_.inputs(tensor.node)[0];
  const Value* value = near() ? Eval(tensor) : nullptr;
  if (restart_) return std::nullopt;
  if (value == nullptr) {
    auto inferred = ShapeOf(tensor);
    if (!inferred) return std::nullopt;
    return SizeTensor{false, *std::move(inferred)};
  }
  SizeTensor shape;
  for (const Dim& dim : value->dims) shape.values.push_back(axes_->size(dim));
  return shape;
}

MaybeSizes Interpreter::SizesFrom(TensorId tensor, const std::vector<SizeTensor>& inputs) {
  const int node = tensor.node;
  const std::string& op = view_.op(node);
  if (inputs.empty()) return std::nullopt;
  if (op == "Identity" || op == "Snapshot" || op == "Cast" || op == "Enter") return inputs[0];
  if (op == "Squeeze" || op == "Reshape" || op == "ExpandDims") {
    return Reshaped(inputs[0], scene_.shapes->Get(tensor));
  }
  if (op == "Pack") {
    const auto is_scalar = [](const SizeTensor& size) { return size.scalar; };
    if (!std::all_of(inputs.begin(), inputs.end(), is_scalar)) return std::nullopt;
    return Joined(inputs);
  }
  if (op == "ConcatV2") return Joined({inputs.begin(), inputs.end() - 1});
  if (op == "GatherV2") return Gathered(inputs[0], inputs[1]);
  if (op == "StridedSlice") return Sliced(view_, node, inputs);
  if (op == "Prod") {
    if (inputs[1].values.empty() || inputs[0].scalar) return inputs[0];
    return CountOf(inputs[0], !view_.GetBool(node, "keep_dims", false));
  }
  if (op == "Range") return RangeOf(inputs[0], inputs[1], inputs[2]);
  if (op == "Fill") return Filled(inputs[0], inputs[1]);
  // A shape with 1 in the place of some sizes, in the gradient of a mean that drops its axes.
  if (op == "DynamicStitch") return Stitched(inputs);
  if (op == "BroadcastGradientArgs") return SummedAxes(inputs[0], inputs[1], tensor.port);
  if (op == "BroadcastArgs") return BroadcastShape(inputs[0], inputs[1]);
  if (op == "DataFormatVecPermute") return InOtherFormat(view_, node, inputs[0]);
  if (op == "DataFormatDimMap") return AxesInOtherFormat(view_, node, inputs[0]);
  if (inputs.size() == 2) return Arithmetic(op, inputs[0], inputs[1]);
  return std::nullopt;
}

}  // namespace nv_norms
