#include "plugin/layout/norm_rules.h"

#include <algorithm>

#include "plugin/graph/fused_ops.h"
#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/node_def.pb.h"

namespace nv_norms {
namespace {

// Whether anybody reads what a forward norm says of mean and variance, or a gradient reads it.
bool HandsStatistics(const GraphView& view, int node) {
  if (IsFusedGradient(view.op(node))) return true;
  const auto& consumers = view.consumers(node);
  return std::any_of(consumers.begin(), consumers.end(),
                     [](const Consumer& c) { return c.port > 0; });
}

bool HasParameters(const GraphView& view, int node) {
  for (const char* count : {"num_scale", "num_offset", "num_dscale", "num_doffset"}) {
    if (view.GetInt(node, count, 0) > 0) return true;
  }
  return false;
}

// gamma, beta and their gradients hold their elements in the order of the normalized axes, mean and
// rstd in that of the others; neither may change.
Reason CheckOrders(const GraphView& view, int node, Format now, int rank) {
  // Of parameters of each sample the normalized axes stay the last.
  if (view.GetBool(node, "per_sample", false)) return Reason::kParameterOrder;
  const std::vector<int> normalized = NormalizedAxes(view, node, rank);
  std::vector<int> others;
  for (int axis = 0; axis < rank; ++axis) {
    if (std::find(normalized.begin(), normalized.end(), axis) == normalized.end()) {
      others.push_back(axis);
    }
  }
  if (HasParameters(view, node) && !InSameOrder(normalized, Other(now), rank)) {
    return Reason::kParameterOrder;
  }
  if (HandsStatistics(view, node) && !InSameOrder(others, Other(now), rank)) {
    return Reason::kStatisticsOrder;
  }
  return Reason::kNone;
}

}  // namespace

std::vector<int> NormalizedAxes(const GraphView& view, int node, int rank) {
  std::vector<int> axes;
  const auto& attributes = view.def(node).attr();
  const auto found = attributes.find("axis");
  if (found == attributes.end()) return {rank - 1};
  for (int64_t axis : found->second.list().i()) {
    axes.push_back(static_cast<int>(axis < 0 ? axis + rank : axis));
  }
  std::sort(axes.begin(), axes.end());
  return axes;
}

bool InSameOrder(const std::vector<int>& axes, Format to, int rank) {
  for (size_t i = 1; i < axes.size(); ++i) {
    if (AxisIn(to, rank, axes[i]) < AxisIn(to, rank, axes[i - 1])) return false;
  }
  return true;
}

Reason FindNormRule(const GraphView& view, const Shapes& shapes, int node, Format now, int rank,
                    Rule* rule) {
  const std::string& op = view.op(node);
  const bool gradient = IsFusedGradient(op);
  for (int slot = 0; slot < (gradient ? 2 : 1); ++slot) {
    const TensorInfo& info = shapes.Get(view.inputs(node)[slot]);
    if (!info.rank_known) return Reason::kUnknownRank;
    if (static_cast<int>(info.dims.size()) != rank) return Reason::kNotFree;
    rule->inputs.push_back({slot, false});
  }
  if (!gradient || view.GetInt(node, "num_dx", 1) == 1) {
    if (!shapes.Get({node, 0}).rank_known) return Reason::kUnknownRank;
    rule->outputs.push_back({0, false});
  }
  if (op.rfind("FusedInstanceNorm", 0) == 0 || op.rfind("FusedGroupNorm", 0) == 0) {
    const bool last = view.GetString(node, "data_format", "N...C") == "N...C";
    return last == (now == Format::kLast) ? Reason::kNone : Reason::kOtherChannelAxis;
  }
  return CheckOrders(view, node, now, rank);
}

}  // namespace nv_norms
