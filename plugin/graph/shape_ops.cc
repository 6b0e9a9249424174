#include "plugin/graph/shape_ops.h"

#include <algorithm>
#include <set>

namespace nv_norms {

bool KeepsShape(const std::string& op) {
  static const auto* const kOps = new std::set<std::string>{"BiasAdd",   "Cast",
                                                            "Elu",       "Exp",
                                                            "Identity",  "Inv",
                                                            "LeakyRelu", "Neg",
                                                            "Relu",      "PreventGradient",
                                                            "Relu6",     "Reciprocal",
                                                            "Rsqrt",     "Selu",
                                                            "Sigmoid",   "Snapshot",
                                                            "Softplus",  "Sqrt",
                                                            "Square",    "StopGradient",
                                                            "Tanh",      "_UnaryOpsComposition"};
  return kOps->count(op) > 0;
}

std::optional<VectorSlice> SliceOfVector(const GraphView& view, int node, int64_t begin,
                                         int64_t end, int64_t count) {
  if (view.GetInt(node, "ellipsis_mask", 0) != 0 || view.GetInt(node, "new_axis_mask", 0) != 0) {
    return std::nullopt;
  }
  const auto place = [count](int64_t at) {
    return std::clamp<int64_t>(at < 0 ? at + count : at, 0, count);
  };
  const bool from_the_start = view.GetInt(node, "begin_mask", 0) != 0;
  const bool to_the_end = view.GetInt(node, "end_mask", 0) != 0;
  const bool scalar = view.GetInt(node, "shrink_axis_mask", 0) != 0;
  const int64_t first = from_the_start ? 0 : place(begin);
  const int64_t last = scalar ? first + 1 : to_the_end ? count : place(end);
  if (last > count) return std::nullopt;
  return VectorSlice{first, std::max(first, last), scalar};
}

std::optional<std::vector<int64_t>> OrderOfFormats(const GraphView& view, int node) {
  const std::string from = view.GetString(node, "src_format", "NHWC");
  const std::string to = view.GetString(node, "dst_format", "NCHW");
  if (!std::is_permutation(from.begin(), from.end(), to.begin(), to.end())) return std::nullopt;
  std::vector<int64_t> order;
  for (char axis : to) order.push_back(static_cast<int64_t>(from.find(axis)));
  return order;
}

}  // namespace nv_norms
