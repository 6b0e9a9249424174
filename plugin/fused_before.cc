#include "plugin/fused_before.h"

#include <algorithm>

#include "plugin/graph/fused_ops.h"
#include "plugin/recognizer/ops.h"

namespace nv_norms {

FusedBefore::FusedBefore(const GraphView& view) : view_(view) {
  for (int node = 0; node < view.num_nodes(); ++node) {
    if (IsFusedForward(view.op(node))) nodes_.insert(node);
  }
}

bool FusedBefore::Normalizes(const std::vector<Statistics>& meanings) const {
  return std::any_of(meanings.begin(), meanings.end(), [&](const Statistics& statistics) {
    const auto& readers = view_.consumers(statistics.x);
    return std::any_of(readers.begin(), readers.end(), [&](const Consumer& reader) {
      return nodes_.count(reader.node) > 0 && HasEpsilon(reader.node, statistics);
    });
  });
}

bool FusedBefore::HasRoot(const std::vector<Statistics>& meanings) const {
  return std::any_of(meanings.begin(), meanings.end(), [&](const Statistics& statistics) {
    const TensorId source = BehindViews(statistics.x);
    return std::any_of(nodes_.begin(), nodes_.end(), [&](int node) {
      return view_.alive(node) && HasEpsilon(node, statistics) &&
             BehindViews(view_.inputs(node)[0]) == source;
    });
  });
}

bool FusedBefore::HasEpsilon(int node, const Statistics& statistics) const {
  return view_.GetFloat(node, "epsilon", -1.0f) == static_cast<float>(statistics.epsilon);
}

TensorId FusedBefore::BehindViews(TensorId tensor) const {
  while (ClassOf(view_.op(tensor.node)) == OpClass::kView) tensor = view_.inputs(tensor.node)[0];
  return tensor;
}

}  // namespace nv_norms
