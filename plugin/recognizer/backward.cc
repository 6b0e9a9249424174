#include "plugin/recognizer/backward.h"

#include <algorithm>
#include <set>

#include "plugin/recognizer/dy_candidates.h"
#include "plugin/recognizer/gradient_search.h"
#include "plugin/recognizer/ops.h"

namespace nv_norms {
namespace {

// Of matches that replace the same node, the first. Where x is differentiated, what lacks dx
// belongs to another norm of the same x: sum(dy * xhat) knows no gamma.
std::vector<BackwardMatch> WithoutOverlap(const std::vector<BackwardMatch>& matches) {
  std::vector<BackwardMatch> kept;
  std::set<int> taken;
  const bool with_dx = std::any_of(matches.begin(), matches.end(),
                                   [](const BackwardMatch& m) { return m.dx.valid(); });
  for (const BackwardMatch& match : matches) {
    if (with_dx && !match.dx.valid()) continue;
    std::vector<int> outputs;
    for (TensorId tensor : {match.dx, match.dgamma, match.dbeta}) {
      if (tensor.valid()) outputs.push_back(tensor.node);
    }
    if (std::any_of(outputs.begin(), outputs.end(), [&](int n) { return taken.count(n) > 0; })) {
      continue;
    }
    taken.insert(match.core.begin(), match.core.end());
    taken.insert(outputs.begin(), outputs.end());
    kept.push_back(match);
  }
  return kept;
}

// Whether such an op reads the anchor or, where its output is the root itself, views of that.
bool IsReadBy(const GraphView& view, TensorId anchor,
              const std::function<bool(const std::string&)>& wanted) {
  constexpr size_t kMaxViews = 16;
  const bool is_root = ClassOf(view.op(anchor.node)) != OpClass::kNorm;
  std::vector<int> nodes = {anchor.node};
  for (size_t i = 0; i < nodes.size(); ++i) {
    for (const Consumer& c : view.consumers(nodes[i])) {
      const OpClass of = ClassOf(view.op(c.node));
      if (wanted(view.op(c.node))) return true;
      const bool follow = is_root && (of == OpClass::kView || of == OpClass::kBroadcast);
      if (follow && nodes.size() < kMaxViews) nodes.push_back(c.node);
    }
  }
  return false;
}

}  // namespace

bool HasGradient(const GraphView& view, TensorId anchor) {
  return IsReadBy(view, anchor, [](const std::string& op) {
    return op == "RsqrtGrad" || op == "SqrtGrad" || ClassOf(op) == OpClass::kNormGrad;
  });
}

bool HasGradientElsewhere(const GraphView& view, TensorId anchor) {
  return IsReadBy(view, anchor, [](const std::string& op) {
    return op == "TensorListPushBack" || op == "OptionalFromValue";
  });
}

std::vector<BackwardMatch> FindBackward(const GraphView& view, const Shapes& shapes,
                                        const ForwardMatch& forward,
                                        const std::function<bool(int)>& keep) {
  const auto score = [](const BackwardMatch& m) {
    return 3 * m.dx.valid() + m.dgamma.valid() + m.dbeta.valid();
  };
  const auto complete = [&](const BackwardMatch& m) {
    return m.dx.valid() && m.dgamma.valid() == forward.gamma.valid() &&
           m.dbeta.valid() == forward.beta.valid();
  };
  const auto depends = [&](TensorId a, TensorId b) {
    return view.DependsOn(a.node, {b.node}) || view.DependsOn(b.node, {a.node});
  };
  std::vector<BackwardMatch> found;
  for (const auto& [dy, like] : DyCandidates(view, shapes, forward)) {
    // Two gradients of one forward come from two losses; else it is one gradient, seen again.
    BackwardMatch* same = nullptr;
    for (BackwardMatch& other : found) {
      if (depends(dy, other.dy)) same = &other;
    }
    if (same != nullptr && complete(*same)) continue;
    const BackwardMatch match = FindGradient(view, shapes, forward, dy, like, keep);
    if (!match.found()) continue;
    if (same == nullptr) {
      found.push_back(match);
    } else if (score(match) > score(*same)) {
      *same = match;
    }
  }
  return WithoutOverlap(found);
}

}  // namespace nv_norms
