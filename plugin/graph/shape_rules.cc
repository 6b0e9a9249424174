#include "plugin/graph/shape_rules.h"

#include <algorithm>
#include <functional>
#include <set>
#include <string>

#include "plugin/graph/constants.h"
#include "plugin/graph/shape_ops.h"
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

// What a reduction is over, parts are joined along, or a tensor is repeated, behind what
// TensorFlow's layout pass puts before a constant.
Sizes OperandOf(const GraphView& view, int node) {
  const std::string& op = view.op(node);
  const bool axes = op == "DataFormatDimMap", entries = op == "DataFormatVecPermute";
  const auto constant = IntConstant(view, axes || entries ? view.inputs(node)[0].node : node);
  if (!constant || (!axes && !entries)) return constant ? Sizes(constant->values) : std::nullopt;
  const auto order = OrderOfFormats(view, node);
  if (!order) return std::nullopt;
  if (entries) return Permuted(constant->values, *order);
  std::vector<int64_t> mapped;
  for (int64_t axis : constant->values) {
    const auto at = AxisInOrder(*order, axis);
    if (!at) return std::nullopt;
    mapped.push_back(*at);
  }
  return mapped;
}

// Along the axis the sizes add up.
Sizes Joined(const GraphView& view, const Shapes& shapes, int node) {
  const std::vector<TensorId>& inputs = view.inputs(node);
  const std::vector<TensorId> parts(inputs.begin(), inputs.end() - 1);
  Sizes sizes = OneShape(shapes, parts);
  const auto axes = OperandOf(view, inputs.back().node);
  if (!sizes || !axes || axes->size() != 1) return std::nullopt;
  const int64_t rank = static_cast<int64_t>(sizes->size());
  const int64_t axis = (*axes)[0] + ((*axes)[0] < 0 ? rank : 0);
  if (axis < 0 || axis >= rank) return std::nullopt;
  int64_t sum = 0;
  for (const TensorId& part : parts) {
    const TensorInfo& info = shapes.Get(part);
    const bool known = sum >= 0 && info.rank_known && info.dims[axis] >= 0;
    sum = known ? sum + info.dims[axis] : -1;
  }
  (*sizes)[axis] = sum;
  return sizes;
}

Sizes Squeezed(const GraphView& view, int node, std::vector<int64_t> sizes) {
  const int64_t rank = static_cast<int64_t>(sizes.size());
  std::set<int64_t, std::greater<>> last_first;
  for (int64_t axis : IntList(view, node, "squeeze_dims")) {
    last_first.insert(axis < 0 ? axis + rank : axis);
  }
  if (last_first.empty() || *last_first.begin() >= rank || *last_first.rbegin() < 0) {
    return std::nullopt;
  }
  for (int64_t axis : last_first) sizes.erase(sizes.begin() + axis);
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

Sizes Reduced(const GraphView& view, int node, std::vector<int64_t> sizes) {
  const auto axes = OperandOf(view, view.inputs(node)[1].node);
  if (!axes || !view.GetBool(node, "keep_dims", false)) return std::nullopt;
  const int64_t rank = static_cast<int64_t>(sizes.size());
  for (int64_t axis : *axes) {
    if (axis < -rank || axis >= rank) return std::nullopt;
    sizes[axis < 0 ? axis + rank : axis] = 1;
  }
  return sizes;
}

Sizes Tiled(const GraphView& view, int node, std::vector<int64_t> sizes) {
  const auto multiples = OperandOf(view, view.inputs(node)[1].node);
  if (!multiples || multiples->size() != sizes.size()) return std::nullopt;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] >= 0) sizes[i] *= (*multiples)[i];
  }
  return sizes;
}

Sizes Padded(const GraphView& view, int node, std::vector<int64_t> sizes) {
  int from = view.inputs(node)[1].node;
  std::vector<int64_t> order;
  for (size_t i = 0; i < sizes.size(); ++i) order.push_back(static_cast<int64_t>(i));
  if (view.op(from) == "DataFormatVecPermute") {
    const auto of_formats = OrderOfFormats(view, from);
    if (!of_formats) return std::nullopt;
    order = *of_formats;
    from = view.inputs(from)[0].node;
  }
  const auto paddings = IntElements(view, from);
  if (!paddings || paddings->size() != 2 * sizes.size() || order.size() != sizes.size()) {
    return std::nullopt;
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    const int64_t added = (*paddings)[2 * order[i]] + (*paddings)[2 * order[i] + 1];
    if (added != 0) sizes[i] = sizes[i] < 0 ? -1 : sizes[i] + added;
  }
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

bool IsIn(const std::string& op, const std::set<std::string>& ops) { return ops.count(op) > 0; }

}  // namespace

bool HasMappedOperand(const GraphView& view, int node) {
  const std::vector<TensorId>& inputs = view.inputs(node);
  return std::any_of(inputs.begin(), inputs.end(), [&](TensorId input) {
    const std::string& op = view.op(input.node);
    return op == "DataFormatDimMap" || op == "DataFormatVecPermute";
  });
}

Sizes ShapeFromInputs(const GraphView& view, const Shapes& shapes, int node) {
  static const auto* const kConvolutions =
      new std::set<std::string>{"AvgPool", "AvgPool3D", "Conv2D", "Conv3D", "MaxPool", "MaxPool3D"};
  static const auto* const kReductions = new std::set<std::string>{"Max", "Mean", "Min", "Sum"};
  static const auto* const kPads = new std::set<std::string>{"MirrorPad", "Pad", "PadV2"};
  const std::string& op = view.op(node);
  const std::vector<TensorId>& inputs = view.inputs(node);
  if (inputs.empty()) return std::nullopt;
  if (op == "ConcatV2") return Joined(view, shapes, node);
  if (TakesOneShape(op)) return OneShape(shapes, inputs);
  const TensorInfo& input = shapes.Get(inputs[0]);
  if (!input.rank_known) return std::nullopt;
  if (KeepsShape(op)) return input.dims;
  if (Broadcasts(op)) {
    const TensorInfo& other = shapes.Get(inputs[1]);
    return other.rank_known ? Broadcast(input.dims, other.dims) : std::nullopt;
  }
  if (IsIn(op, *kConvolutions)) return Windowed(view, shapes, node, input.dims);
  if (IsIn(op, *kReductions)) return Reduced(view, node, input.dims);
  if (IsIn(op, *kPads)) return Padded(view, node, input.dims);
  if (op == "MaxPoolGrad" || op == "MaxPool3DGrad") return input.dims;
  if (op == "Tile") return Tiled(view, node, input.dims);
  if (op == "Squeeze") return Squeezed(view, node, input.dims);
  if (op == "ExpandDims") return Expanded(view, node, input.dims);
  if (op == "Transpose") {
    const auto order = IntConstant(view, inputs[1].node);
    return order ? Permuted(input.dims, order->values) : std::nullopt;
  }
  return std::nullopt;
}

}  // namespace nv_norms
