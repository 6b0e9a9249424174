#include "plugin/recognizer/lone_gradient.h"

#include <algorithm>

#include "plugin/recognizer/dy_candidates.h"
#include "plugin/recognizer/reach.h"

namespace nv_norms {
namespace {

constexpr int kMaxOfMoments = 120;  // of x: moments take fewer nodes

// What a tensor is multiplied with that may be a gamma: a tensor of known shape that no inner node
// gives.
std::vector<TensorId> MultipliedWith(const GraphView& view, const Shapes& shapes, TensorId tensor,
                                     const std::vector<int>& inner) {
  constexpr size_t kMaxGammas = 4;
  std::vector<TensorId> found;
  for (const Consumer& c : view.consumers(tensor)) {
    if (view.op(c.node) != "Mul") continue;
    const TensorId other = view.inputs(c.node)[1 - c.slot];
    if (IsKnown(shapes.Get(other)) && found.size() < kMaxGammas && other != tensor &&
        std::find(inner.begin(), inner.end(), other.node) == inner.end() &&
        std::find(found.begin(), found.end(), other) == found.end()) {
      found.push_back(other);
    }
  }
  return found;
}

}  // namespace

LoneGradient FindLoneGradient(const GraphView& view, const Shapes& shapes,
                              const Statistics& statistics, const std::function<bool(int)>& keep) {
  LoneGradient lone;
  if (!HasGradient(view, statistics.anchor) || !shapes.Get(statistics.x).rank_known) return lone;
  ForwardMatch& forward = lone.forward;
  forward.statistics = statistics;
  forward.x = statistics.x;
  forward.y = statistics.anchor;
  forward.lone = true;
  forward.subtract_mean = statistics.moment == Moment::kVariance;
  forward.core = NodesBetween(view, Dependents(view, statistics.x, kMaxOfMoments), {statistics.x},
                              {statistics.anchor.node});
  std::vector<TensorId> gammas = MultipliedWith(view, shapes, statistics.anchor, forward.core);
  for (const DyCandidate& candidate :
       DyCandidates(view, shapes, forward, /*may_be_larger=*/false)) {
    for (TensorId gamma : MultipliedWith(view, shapes, candidate.dy, forward.core)) {
      if (std::find(gammas.begin(), gammas.end(), gamma) == gammas.end()) gammas.push_back(gamma);
    }
  }
  gammas.push_back(TensorId());  // none
  for (TensorId gamma : gammas) {
    forward.gamma = gamma;
    lone.gradients = FindBackward(view, shapes, forward, keep);
    if (!lone.gradients.empty() && lone.gradients[0].dx.valid()) {
      forward.problem = *lone.gradients[0].problem;
      return lone;
    }
  }
  lone.gradients.clear();
  return lone;
}

}  // namespace nv_norms
