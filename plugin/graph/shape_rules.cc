#include "plugin/graph/shape_rules.h"

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <utility>

#include "plugin/graph/constants.h"
#include "plugin/graph/shape_ops.h"
#include "plugin/graph/slice_shapes.h"
#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/node_def.pb.h"

namespace nv_norms {
namespace {

using Sizes = std::optional<std::vector<int64_t>>;

// Ops of inputs that must have one shape, which the output has, too.
bool TakesOneShape(const std::string& op) {
  static const auto* const kOps = new std::set<std::string>{
      "AddN",         "EluGrad",      "InvGrad",   "LeakyReluGrad", "ReciprocalGrad",
      "Relu6Grad",    "ReluGrad",     "RsqrtGrad", "SeluGrad",      "SigmoidGrad",
      "SoftplusGrad", "SoftsignGrad", "SqrtGrad",  "TanhGrad"};
  return kOps->count(op) > 0;
}

std::vector<int64_t> IntList(const GraphView& view, int node, const char* name) {
  const auto found = view.def(node).attr().find(name);
  if (found == view.def(node).attr().end()) return {};
  return {found->second.list().i().begin(), found->second.list().i().end()};
}

int64_t Broadcast(int64_t a, int64_t b) {
  if (a == b || b == 1) return a;
  if (a == 1) return b;
  // Of something known and something unknown, which must be 1 or the same.
  return a >= 0 ? a : b >= 0 ? b : -1;
}

Sizes Broadcast(const std::vector<int64_t>& a, const std::vector<int64_t>& b) {
  std::vector<int64_t> sizes(std::max(a.size(), b.size()), 1);
  for (size_t back = 1; back <= sizes.size(); ++back) {
    const int64_t of_a = back <= a.size() ? a[a.size() - back] : 1;
    const int64_t of_b = back <= b.size() ? b[b.size() - back] : 1;
    sizes[sizes.size() - back] = Broadcast(of_a, of_b);
  }
  return sizes;
}

Sizes OneShape(const Shapes& shapes, const std::vector<TensorId>& inputs) {
  Sizes sizes;
  for (const TensorId& input : inputs) {
    const TensorInfo& info = shapes.Get(input);
    if (!info.rank_known) continue;
    if (!sizes) sizes = info.dims;
    if (sizes->size() != info.dims.size()) return std::nullopt;
    for (size_t i = 0; i < info.dims.size(); ++i) {
      if ((*sizes)[i] < 0) (*sizes)[i] = info.dims[i];
    }
  }
  return sizes;
}

// A size along one of the axes, which may count from the end; null if there is no such axis.
int64_t* Along(const Sizes& axes, std::vector<int64_t>* sizes) {
  if (!axes || axes->size() != 1) return nullptr;
  const int64_t rank = static_cast<int64_t>(sizes->size());
  const int64_t axis = (*axes)[0] + ((*axes)[0] < 0 ? rank : 0);
  return axis < 0 || axis >= rank ? nullptr : &(*sizes)[axis];
}

// Each part of a Split, which all have one shape; of a SplitV, but along its axis.
Sizes Part(const GraphView& view, const Shapes& shapes, int node) {
  const bool even = view.op(node) == "Split";
  const std::vector<TensorId>& inputs = view.inputs(node);
  const TensorInfo& whole = shapes.Get(inputs[even ? 1 : 0]);
  if (!whole.rank_known) return std::nullopt;
  std::vector<int64_t> sizes = whole.dims;
  int64_t* size = Along(ConstantOperand(view, inputs[even ? 0 : 2].node), &sizes);
  const int64_t count = view.GetInt(node, "num_split", 0);
  if (size == nullptr || count < 1) return std::nullopt;
  *size = even && *size >= 0 && *size % count == 0 ? *size / count : -1;
  return sizes;
}

// Along the axis the sizes add up.
Sizes Joined(const GraphView& view, const Shapes& shapes, int node) {
  const std::vector<TensorId>& inputs = view.inputs(node);
  const std::vector<TensorId> parts(inputs.begin(), inputs.end() - 1);
  Sizes sizes = OneShape(shapes, parts);
  int64_t* size = sizes ? Along(ConstantOperand(view, inputs.back().node), &*sizes) : nullptr;
  if (size == nullptr) return std::nullopt;
  const auto axis = size - sizes->data();
  int64_t sum = 0;
  for (const TensorId& part : parts) {
    const TensorInfo& info = shapes.Get(part);
    const bool known = sum >= 0 && info.rank_known && info.dims[axis] >= 0;
    sum = known ? sum + info.dims[axis] : -1;
  }
  *size = sum;
  return sizes;
}

Sizes Expanded(const GraphView& view, int node, std::vector<int64_t> sizes) {
  const auto axis = IntConstant(view, view.inputs(node)[1].node);
  if (!axis || axis->values.size() != 1) return std::nullopt;
  const int64_t rank = static_cast<int64_t>(sizes.size());
  const int64_t at = axis->values[0] < 0 ? axis->values[0] + rank + 1 : axis->values[0];
  if (at < 0 || at > rank) return std::nullopt;
  sizes.insert(sizes.begin() + at, 1);
  return sizes;
}

// Without the axes, the last one first.
Sizes Without(const std::vector<int64_t>& axes, std::vector<int64_t> sizes) {
  const int64_t rank = static_cast<int64_t>(sizes.size());
  std::set<int64_t, std::greater<>> last_first;
  for (int64_t axis : axes) last_first.insert(axis < 0 ? axis + rank : axis);
  if (!last_first.empty() && (*last_first.begin() >= rank || *last_first.rbegin() < 0)) {
    return std::nullopt;
  }
  for (int64_t axis : last_first) sizes.erase(sizes.begin() + axis);
  return sizes;
}

Sizes Reduced(const GraphView& view, int node, std::vector<int64_t> sizes) {
  const auto axes = ConstantOperand(view, view.inputs(node)[1].node);
  if (!axes) return std::nullopt;
  if (!view.GetBool(node, "keep_dims", false)) return Without(*axes, std::move(sizes));
  const int64_t rank = static_cast<int64_t>(sizes.size());
  for (int64_t axis : *axes) {
    if (axis < -rank || axis >= rank) return std::nullopt;
    sizes[axis < 0 ? axis + rank : axis] = 1;
  }
  return sizes;
}

Sizes Tiled(const GraphView& view, int node, std::vector<int64_t> sizes) {
  const auto multiples = ConstantOperand(view, view.inputs(node)[1].node);
  if (!multiples || multiples->size() != sizes.size()) return std::nullopt;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if ((*multiples)[i] != 1) sizes[i] = sizes[i] < 0 ? -1 : sizes[i] * (*multiples)[i];
  }
  return sizes;
}

// `times`: -1 for what takes a padding off again.
Sizes Padded(const GraphView& view, int node, std::vector<int64_t> sizes, int times) {
  int from = view.inputs(node)[1].node;
  std::vector<int64_t> order;
  for (size_t i = 0; i < sizes.size(); ++i) order.push_back(static_cast<int64_t>(i));
  if (view.op(from) == "DataFormatVecPermute") {
    const auto of_formats = OrderOfFormats(view, from);
    if (!of_formats) return std::nullopt;
    order = *of_formats;
    from = view.inputs(from)[0].node;
  }
  if (order.size() != sizes.size()) return std::nullopt;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const auto row = IntRow(view, from, static_cast<size_t>(order[i]), sizes.size());
    if (!row) {
      sizes[i] = -1;
      continue;
    }
    if (row->size() != 2) return std::nullopt;
    const int64_t added = times * ((*row)[0] + (*row)[1]);
    if (added != 0) sizes[i] = sizes[i] < 0 ? -1 : sizes[i] + added;
  }
  return sizes;
}

// Places of one axis, as many as there are indices, in the shape that these have.
Sizes Gathered(const GraphView& view, const Shapes& shapes, int node, std::vector<int64_t> sizes) {
  const std::vector<TensorId>& inputs = view.inputs(node);
  const TensorInfo& indices = shapes.Get(inputs[1]);
  const int64_t* size = Along(ConstantOperand(view, inputs[2].node), &sizes);
  if (size == nullptr || !indices.rank_known || view.GetInt(node, "batch_dims", 0) != 0) {
    return std::nullopt;
  }
  const auto at = sizes.erase(sizes.begin() + (size - sizes.data()));
  sizes.insert(at, indices.dims.begin(), indices.dims.end());
  return sizes;
}

// What a convolution or a pooling makes of an image: all but the channels, and of an explicit
// padding but the batch.
Sizes Windowed(const GraphView& view, const Shapes& shapes, int node,
               const std::vector<int64_t>& from) {
  const size_t rank = from.size();
  if (rank < 4) return std::nullopt;
  const bool first = view.GetString(node, "data_format", "N").compare(0, 2, "NC") == 0;
  const std::string padding = view.GetString(node, "padding", "");
  const std::vector<int64_t> strides = IntList(view, node, "strides");
  const std::vector<int64_t> dilations = IntList(view, node, "dilations");
  const std::vector<int64_t> window = IntList(view, node, "ksize");
  const TensorInfo kernel = window.empty() ? shapes.Get(view.inputs(node)[1]) : TensorInfo();
  std::vector<int64_t> sizes(rank, -1);
  sizes[0] = from[0];
  for (size_t space = 0; space < rank - 2; ++space) {
    const size_t axis = first ? space + 2 : space + 1;
    const int64_t stride = axis < strides.size() ? strides[axis] : 0;
    const int64_t dilation = axis < dilations.size() ? dilations[axis] : 1;
    const int64_t width = axis < window.size()         ? window[axis]
                          : space < kernel.dims.size() ? kernel.dims[space]
                                                       : -1;
    if (from[axis] < 0 || stride < 1 || dilation < 1) continue;
    if (padding == "SAME") sizes[axis] = (from[axis] + stride - 1) / stride;
    const int64_t left = from[axis] - (width - 1) * dilation;
    if (padding == "VALID" && width > 0 && left > 0) sizes[axis] = (left + stride - 1) / stride;
  }
  return sizes;
}

// SelectV2.
Sizes Selected(const Shapes& shapes, const std::vector<TensorId>& inputs) {
  std::vector<int64_t> sizes;
  for (const TensorId& input : inputs) {
    const TensorInfo& info = shapes.Get(input);
    if (!info.rank_known) return std::nullopt;
    sizes = *Broadcast(sizes, info.dims);
  }
  return sizes;
}

// Matrices, which may be many: those along the axes before their own are broadcast.
Sizes Multiplied(const GraphView& view, int node, const std::vector<int64_t>& a,
                 const TensorInfo& b) {
  if (a.size() < 2 || !b.rank_known || b.dims.size() < 2) return std::nullopt;
  const bool many = view.op(node) != "MatMul";
  const bool turned_a = view.GetBool(node, many ? "adj_x" : "transpose_a", false);
  const bool turned_b = view.GetBool(node, many ? "adj_y" : "transpose_b", false);
  std::vector<int64_t> sizes = *Broadcast(std::vector<int64_t>(a.begin(), a.end() - 2),
                                          std::vector<int64_t>(b.dims.begin(), b.dims.end() - 2));
  sizes.push_back(*(a.end() - (turned_a ? 1 : 2)));
  sizes.push_back(*(b.dims.end() - (turned_b ? 2 : 1)));
  return sizes;
}

// An image that is told its height and width.
Sizes Resized(const GraphView& view, int node, std::vector<int64_t> sizes) {
  const auto size = IntElements(view, view.inputs(node)[1].node);
  if (!size || size->size() != 2 || sizes.size() != 4) return std::nullopt;
  std::copy(size->begin(), size->end(), sizes.begin() + 1);
  return sizes;
}

bool IsIn(const std::string& op, const std::set<std::string>& ops) { return ops.count(op) > 0; }

}  // namespace

Sizes ShapeFromInputs(const GraphView& view, const Shapes& shapes, int node) {
  static const auto* const kConvolutions = new std::set<std::string>{
      "AvgPool", "AvgPool3D", "Conv2D", "Conv3D", "DepthwiseConv2dNative", "MaxPool", "MaxPool3D"};
  static const auto* const kComparisons =
      new std::set<std::string>{"Equal",     "Greater",    "GreaterEqual", "Less",
                                "LessEqual", "LogicalAnd", "LogicalOr",    "NotEqual"};
  static const auto* const kProducts =
      new std::set<std::string>{"BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "MatMul"};
  static const auto* const kFirst = new std::set<std::string>{
      "FusedBatchNormV3", "FusedBatchNormGradV3", "MaxPoolGrad", "MaxPool3DGrad"};
  static const auto* const kResizes = new std::set<std::string>{
      "ResizeBilinear", "ResizeNearestNeighbor", "ResizeNearestNeighborGrad"};
  static const auto* const kReductions = new std::set<std::string>{"Max", "Mean", "Min", "Sum"};
  static const auto* const kPads = new std::set<std::string>{"MirrorPad", "Pad", "PadV2"};
  const std::string& op = view.op(node);
  const std::vector<TensorId>& inputs = view.inputs(node);
  if (inputs.empty()) return std::nullopt;
  if (op == "ConcatV2") return Joined(view, shapes, node);
  if (op == "Split" || op == "SplitV") return Part(view, shapes, node);
  if (op == "SelectV2") return Selected(shapes, inputs);
  if (TakesOneShape(op)) return OneShape(shapes, inputs);
  const TensorInfo& input = shapes.Get(inputs[0]);
  if (!input.rank_known) return std::nullopt;
  if (KeepsShape(op)) return input.dims;
  if (Broadcasts(op) || IsIn(op, *kComparisons)) {
    const TensorInfo& other = shapes.Get(inputs[1]);
    return other.rank_known ? Broadcast(input.dims, other.dims) : std::nullopt;
  }
  if (IsIn(op, *kConvolutions)) return Windowed(view, shapes, node, input.dims);
  if (IsIn(op, *kReductions)) return Reduced(view, node, input.dims);
  if (IsIn(op, *kPads)) return Padded(view, node, input.dims, 1);
  if (op == "MirrorPadGrad") return Padded(view, node, input.dims, -1);
  if (IsIn(op, *kFirst)) return input.dims;
  if (IsIn(op, *kResizes)) return Resized(view, node, input.dims);
  if (IsIn(op, *kProducts)) return Multiplied(view, node, input.dims, shapes.Get(inputs[1]));
  if (op == "GatherV2") return Gathered(view, shapes, node, input.dims);
  if (op == "StridedSlice") return ShapeOfSlice(view, node, input.dims);
  if (op == "Tile") return Tiled(view, node, input.dims);
  if (op == "Squeeze") {  // of all that is 1 if there is no list, which nobody knows here
    const std::vector<int64_t> axes = IntList(view, node, "squeeze_dims");
    return axes.empty() ? std::nullopt : Without(axes, input.dims);
  }
  if (op == "ExpandDims") return Expanded(view, node, input.dims);
  if (op == "Transpose") {
    const auto order = IntConstant(view, inputs[1].node);
    return order ? Permuted(input.dims, order->values) : std::nullopt;
  }
  return std::nullopt;
}

}  // namespace nv_norms
