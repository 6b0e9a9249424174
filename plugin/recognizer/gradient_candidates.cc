#include "plugin/recognizer/gradient_candidates.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "plugin/recognizer/ops.h"

namespace nv_norms {
namespace {

// dbeta, mostly.
bool IsSumOfDy(const GraphView& view, const GradientScene& within, int node) {
  if (!SumsUp(view.op(node))) return false;
  TensorId tensor = view.inputs(node)[0];
  const auto is_passed = [&](int at) {  // a view, or a Sum that undoes a broadcast
    return within.from_dy.count(at) > 0 && (IsPlainView(view.op(at)) || view.op(at) == "Sum");
  };
  while (is_passed(tensor.node)) tensor = view.inputs(tensor.node)[0];
  return tensor == within.scene.dy || tensor == within.scene.before_dy;
}

}  // namespace

GradientCandidates CandidatesOfGradient(const GraphView& view, const ForwardMatch& forward,
                                        const GradientScene& within) {
  const std::unordered_set<int>& from_dy = within.from_dy;
  std::vector<int> nodes(from_dy.begin(), from_dy.end());
  std::sort(nodes.begin(), nodes.end(), [&](int a, int b) {
    return std::make_pair(view.order(a), a) < std::make_pair(view.order(b), b);
  });
  std::unordered_set<int> ours;
  std::unordered_map<int, int> hops;
  for (int node : nodes) {
    for (const TensorId& input : view.inputs(node)) {
      const bool is_from_dy = from_dy.count(input.node) > 0;
      if (input == forward.x || input == forward.gamma || ours.count(input.node) > 0 ||
          (within.scene.dependents.count(input.node) > 0 && !is_from_dy)) {
        ours.insert(node);
      }
      if (is_from_dy) hops[node] = std::max(hops[node], hops[input.node] + 1);
    }
  }
  const auto rest = std::stable_partition(nodes.begin(), nodes.end(), [&](int node) {
    return ours.count(node) > 0 || IsSumOfDy(view, within, node);
  });
  std::stable_sort(rest, nodes.end(), [&](int a, int b) { return hops[a] < hops[b]; });
  const size_t of_norm = rest - nodes.begin();
  return {std::move(nodes), of_norm};
}

}  // namespace nv_norms
