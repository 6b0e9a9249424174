#include "plugin/graph/shape_ops.h"

#include <algorithm>
#include <set>

#include "plugin/graph/constants.h"

namespace nv_norms {

bool KeepsShape(const std::string& op) {
  static const auto* const kOps = new std::set<std::string>{"Abs",
                                                            "BiasAdd",
                                                            "Cast",
                                                            "Ceil",
                                                            "ClipByValue",
                                                            "Cos",
                                                            "Elu",
                                                            "Erf",
                                                            "Erfc",
                                                            "Exp",
                                                            "Expm1",
                                                            "Floor",
                                                            "Identity",
                                                            "Inv",
                                                            "LeakyRelu",
                                                            "Log",
                                                            "Log1p",
                                                            "LogSoftmax",
                                                            "Neg",
                                                            "OnesLike",
                                                            "PreventGradient",
                                                            "Reciprocal",
                                                            "Relu",
                                                            "Relu6",
                                                            "ReverseV2",
                                                            "Roll",
                                                            "Rsqrt",
                                                            "Selu",
                                                            "Sigmoid",
                                                            "Sign",
                                                            "Sin",
                                                            "Snapshot",
                                                            "Softmax",
                                                            "Softplus",
                                                            "Softsign",
                                                            "Sqrt",
                                                            "Square",
                                                            "StopGradient",
                                                            "Tanh",
                                                            "ZerosLike",
                                                            "_UnaryOpsComposition"};
  return kOps->count(op) > 0;
}

bool Broadcasts(const std::string& op) {
  static const auto* const kOps =
      new std::set<std::string>{"Add", "AddV2", "DivNoNan", "Maximum", "Minimum",
                                "Mul", "Pow",   "RealDiv",  "Sub",     "SquaredDifference"};
  return kOps->count(op) > 0;
}

std::optional<VectorSlice> SliceOfVector(const GraphView& view, int node, int64_t begin,
                                         int64_t end, int64_t count) {
  if (view.GetInt(node, "ellipsis_mask", 0) != 0 || view.GetInt(node, "new_axis_mask", 0) != 0) {
    return std::nullopt;
  }
  const auto has = [&](const char* mask) { return (view.GetInt(node, mask, 0) & 1) != 0; };
  if (has("shrink_axis_mask")) {  // whatever the others say
    const int64_t at = begin < 0 ? begin + count : begin;
    if (at < 0 || at >= count) return std::nullopt;
    return VectorSlice{at, at + 1, true};
  }
  const auto place = [count](int64_t at) {
    return std::clamp<int64_t>(at < 0 ? at + count : at, 0, count);
  };
  const int64_t first = has("begin_mask") ? 0 : place(begin);
  const int64_t last = has("end_mask") ? count : place(end);
  return VectorSlice{first, std::max(first, last), false};
}

std::optional<std::vector<int64_t>> OrderOfFormats(const GraphView& view, int node) {
  const std::string from = view.GetString(node, "src_format", "NHWC");
  const std::string to = view.GetString(node, "dst_format", "NCHW");
  if (!std::is_permutation(from.begin(), from.end(), to.begin(), to.end())) return std::nullopt;
  std::vector<int64_t> order;
  for (char axis : to) order.push_back(static_cast<int64_t>(from.find(axis)));
  return order;
}

std::optional<int64_t> AxisInOrder(const std::vector<int64_t>& order, int64_t axis) {
  const int64_t from = axis < 0 ? axis + static_cast<int64_t>(order.size()) : axis;
  const auto at = std::find(order.begin(), order.end(), from);
  if (at == order.end()) return std::nullopt;
  return at - order.begin();
}

std::optional<std::vector<int64_t>> Permuted(const std::vector<int64_t>& sizes,
                                             const std::vector<int64_t>& order) {
  const int64_t count = static_cast<int64_t>(sizes.size());
  if (order.size() != sizes.size()) return std::nullopt;
  std::vector<int64_t> permuted;
  std::set<int64_t> seen;
  for (int64_t at : order) {
    if (at < 0 || at >= count || !seen.insert(at).second) return std::nullopt;
    permuted.push_back(sizes[at]);
  }
  return permuted;
}

std::optional<std::vector<int64_t>> ConstantOperand(const GraphView& view, int node) {
  const std::string& op = view.op(node);
  const bool axes = op == "DataFormatDimMap", entries = op == "DataFormatVecPermute";
  const auto constant = IntConstant(view, axes || entries ? view.inputs(node)[0].node : node);
  if (!constant || (!axes && !entries)) {
    return constant ? std::make_optional(constant->values) : std::nullopt;
  }
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

}  // namespace nv_norms
