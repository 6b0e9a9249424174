#include "plugin/recognizer/backward.h"

#include <algorithm>
#include <string>
#include <unordered_set>

#include "plugin/recognizer/dy_candidates.h"
#include "plugin/recognizer/dy_shape.h"
#include "plugin/recognizer/gradient_search.h"
#include "plugin/recognizer/ops.h"

namespace nv_norms {
namespace {

constexpr size_t kMaxViews = 16;

// The nodes of such ops that read the anchor or, where its output is the root itself, views of
// that.
std::vector<int> ReadersOf(const GraphView& view, TensorId anchor,
                           const std::function<bool(const std::string&)>& wanted) {
  const bool is_root = ClassOf(view.op(anchor.node)) != OpClass::kNorm;
  std::vector<int> nodes = {anchor.node}, readers;
  for (size_t i = 0; i < nodes.size(); ++i) {
    for (const Consumer& c : view.consumers(nodes[i])) {
      if (!view.live(c.node)) continue;
      const OpClass of = ClassOf(view.op(c.node));
      if (wanted(view.op(c.node))) readers.push_back(c.node);
      const bool follow = is_root && (of == OpClass::kView || of == OpClass::kBroadcast);
      if (follow && nodes.size() < kMaxViews) nodes.push_back(c.node);
    }
  }
  return readers;
}

std::vector<int> RootGradients(const GraphView& view, TensorId anchor) {
  return ReadersOf(view, anchor, [](const std::string& op) {
    return op == "RsqrtGrad" || op == "SqrtGrad" || ClassOf(op) == OpClass::kNormGrad;
  });
}

// Whether a node is among those that the match replaces.
bool Takes(const BackwardMatch& match, int node) {
  const std::vector<TensorId> outputs = match.outputs();
  return std::find(match.core.begin(), match.core.end(), node) != match.core.end() ||
         std::any_of(outputs.begin(), outputs.end(),
                     [node](const TensorId& output) { return output.node == node; });
}

// Whether all of these terms go on beside dx.
bool AreBeside(const std::vector<Part>& terms, const BackwardMatch& match) {
  return std::all_of(terms.begin(), terms.end(), [&](const Part& term) {
    return std::count(match.parts.begin(), match.parts.end(), term) == 1;
  });
}

// Whether both are some terms of one sum, each its own.
bool ShareASum(const BackwardMatch& a, const BackwardMatch& b) {
  return a.dx == b.dx && !a.terms.empty() && !b.terms.empty() && AreBeside(a.terms, b) &&
         AreBeside(b.terms, a);
}

bool Overlap(const BackwardMatch& kept, const BackwardMatch& match) {
  for (const TensorId& output : match.outputs()) {
    if (!Takes(kept, output.node)) continue;
    if (output.node != match.dx.node || !ShareASum(kept, match)) return true;
  }
  return false;
}

// Whether the root is differentiated by this gradient's dy, if it is at all.
bool LeadsToRoot(const GraphView& view, const ForwardMatch& forward, const BackwardMatch& match) {
  const std::vector<int> roots = RootGradients(view, forward.statistics.anchor);
  return roots.empty() || std::any_of(roots.begin(), roots.end(), [&](int root) {
           return view.DependsOn(root, {match.dy.node});
         });
}

// Of matches that replace the same node, the first. What lacks dx, though x is differentiated by
// its loss, belongs to another norm of the same x: sum(dy * xhat) knows no gamma.
std::vector<BackwardMatch> WithoutOverlap(const GraphView& view, const ForwardMatch& forward,
                                          const std::vector<BackwardMatch>& matches) {
  std::vector<BackwardMatch> kept;
  const bool with_dx = std::any_of(matches.begin(), matches.end(),
                                   [](const BackwardMatch& m) { return m.dx.valid(); });
  for (const BackwardMatch& match : matches) {
    if (with_dx && !match.dx.valid() && LeadsToRoot(view, forward, match)) continue;
    const auto overlaps = [&](const BackwardMatch& other) { return Overlap(other, match); };
    if (std::none_of(kept.begin(), kept.end(), overlaps)) kept.push_back(match);
  }
  return kept;
}

// Whether dy may be larger than x, as y may, where x is broadcast to what goes on beside the norm.
bool MayBeLarger(const GraphView& view, const Shapes& shapes, const ForwardMatch& forward,
                 TensorId dy) {
  std::vector<Part> beside = forward.parts;
  if (forward.scale.valid()) beside.push_back({forward.scale, /*inverted=*/false});
  return !beside.empty() && FitBeside(shapes, dy, forward.x, beside) == Fit::kBroadcast &&
         !IsSurelyLike(view, shapes, dy, forward.x);
}

// Whether gamma is a factor somewhere in dy. Not at its end, as the other factor was tried as dy;
// and what gamma is not in belongs to another norm of the same x.
bool HasInside(const GraphView& view, TensorId dy, TensorId gamma) {
  const std::vector<TensorId>& inputs = view.inputs(dy.node);
  const bool at_the_end =
      IsProduct(view.op(dy.node)) && std::find(inputs.begin(), inputs.end(), gamma) != inputs.end();
  return !at_the_end && view.DependsOn(dy.node, {gamma.node});
}

// Whether the gradient is that of another norm of the same x: dgamma and dbeta are then the same,
// but follow from that norm's root, and dx has its gamma in it. A dbeta alone is a Sum of dy,
// whoever's it is, and costs no less in the op.
bool IsOfAnotherNorm(const GraphView& view, const ForwardMatch& forward,
                     const BackwardMatch& match) {
  if (match.dx.valid()) return false;
  if (!match.dgamma.valid()) return true;
  std::unordered_set<int> seen = {match.dy.node, forward.x.node};
  std::vector<int> nodes = {match.dgamma.node};
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i] == forward.statistics.anchor.node) return false;
    for (const TensorId& input : view.inputs(nodes[i])) {
      if (seen.insert(input.node).second) nodes.push_back(input.node);
    }
  }
  return true;
}

// The forward's gamma, the tensors of its shape that it is the product of, and at last none.
std::vector<TensorId> Gammas(const GraphView& view, const Shapes& shapes,
                             const ForwardMatch& forward) {
  std::vector<TensorId> gammas = {forward.gamma};
  if (!forward.gamma.valid() || forward.lone) return gammas;
  const TensorInfo& info = shapes.Get(forward.gamma);
  if (view.op(forward.gamma.node) == "Mul") {
    for (const TensorId& factor : view.inputs(forward.gamma.node)) {
      const TensorInfo& other = shapes.Get(factor);
      if (IsKnown(info) && IsKnown(other) && info.dims == other.dims) gammas.push_back(factor);
    }
  }
  gammas.push_back(TensorId());
  return gammas;
}

}  // namespace

bool HasGradient(const GraphView& view, TensorId anchor) {
  return !RootGradients(view, anchor).empty();
}

bool IsComplete(const ForwardMatch& forward, const BackwardMatch& match) {
  return match.dx.valid() && match.dgamma.valid() == forward.gamma.valid() &&
         match.dbeta.valid() == forward.beta.valid();
}

bool NeedsAnchor(const GraphView& view, const ForwardMatch& forward,
                 const std::vector<BackwardMatch>& gradients,
                 const std::function<bool(int)>& keep) {
  const int anchor = forward.statistics.anchor.node;
  if (keep(anchor)) return true;
  std::unordered_set<int> seen = {anchor, forward.y.node};
  for (const BackwardMatch& gradient : gradients) {
    for (TensorId output : gradient.outputs()) seen.insert(output.node);
  }
  std::vector<int> nodes = {anchor};
  for (size_t i = 0; i < nodes.size(); ++i) {
    for (const Consumer& c : view.consumers(nodes[i])) {
      if (!view.live(c.node) || !seen.insert(c.node).second) continue;
      if (keep(c.node) || !IsPure(view.op(c.node))) return true;
      nodes.push_back(c.node);
    }
  }
  return false;
}

bool LeavesDx(const GraphView& view, const ForwardMatch& forward, const BackwardMatch& match) {
  return !match.dx.valid() && LeadsToRoot(view, forward, match) &&
         HasGradient(view, forward.statistics.anchor);
}

bool HasGradientElsewhere(const GraphView& view, TensorId anchor) {
  const auto readers = ReadersOf(view, anchor, [](const std::string& op) {
    return op == "TensorListPushBack" || op == "OptionalFromValue";
  });
  return !readers.empty();
}

std::vector<BackwardMatch> FindBackward(const GraphView& view, const Shapes& shapes,
                                        const ForwardMatch& forward,
                                        const std::function<bool(int)>& keep) {
  const auto score = [](const BackwardMatch& m) {
    return 3 * m.dx.valid() + m.dgamma.valid() + m.dbeta.valid();
  };
  const auto depends = [&](TensorId a, TensorId b) {
    return view.DependsOn(a.node, {b.node}) || view.DependsOn(b.node, {a.node});
  };
  std::vector<BackwardMatch> found;
  // `beside`: terms that may be larger than x.
  const auto find = [&](const std::vector<Part>& factors, const std::vector<Part>& beside) {
    const std::vector<Part>& others = beside.empty() ? factors : beside;
    for (TensorId gamma : Gammas(view, shapes, forward)) {
      // Where gamma is not trained nobody else reads dy, and Grappler moves gamma into it: dy is
      // then no tensor of the graph, but dy * gamma is. That is the dy of the same norm without
      // gamma.
      const bool inside = !gamma.valid() && forward.gamma.valid();
      if (inside && !found.empty()) break;
      ForwardMatch differentiated = forward;
      differentiated.gamma = gamma;
      for (const auto& [dy, like] : DyCandidates(view, shapes, differentiated, !others.empty())) {
        if (inside && !HasInside(view, dy, forward.gamma)) continue;
        const Fit fit = others.empty() ? Fit::kSurely : FitBeside(shapes, dy, forward.x, others);
        if (fit == Fit::kNot || (!beside.empty() && fit == Fit::kSurely)) continue;
        if (others.empty() && MayBeLarger(view, shapes, forward, dy)) continue;
        // Two gradients of one forward come from two losses; else it is one gradient, seen again.
        BackwardMatch* same = nullptr;
        for (BackwardMatch& other : found) {
          if (depends(dy, other.dy)) same = &other;
        }
        if (same != nullptr && IsComplete(forward, *same)) continue;
        const TriedDy tried{dy, like, factors, fit == Fit::kBroadcast};
        const BackwardMatch match = FindGradient(view, shapes, differentiated, tried, keep);
        if (!match.found() || IsOfAnotherNorm(view, forward, match)) continue;
        if (same == nullptr) {
          found.push_back(match);
        } else if (score(match) > score(*same)) {
          *same = match;
        }
      }
    }
  };
  find({}, {});
  // s * (x - mean) * rstd: what the norm's own output is differentiated by, dy * s, is no tensor of
  // the graph.
  if (found.empty() && forward.parts_are_factors) find(forward.parts, {});
  if (found.empty() && forward.scale.valid()) find({{forward.scale, /*inverted=*/false}}, {});
  // norm(x) + b, of which nobody knows which is the larger: dy is summed on each way to dx.
  if (found.empty() && !forward.parts_are_factors) find({}, forward.parts);
  return WithoutOverlap(view, forward, found);
}

BackwardMatch FindBackwardFrom(const GraphView& view, const Shapes& shapes,
                               const ForwardMatch& forward, TensorId dy,
                               const std::function<bool(int)>& keep) {
  return FindGradient(view, shapes, forward, {dy, forward.x, {}}, keep);
}

}  // namespace nv_norms
