#include "plugin/recognizer/dy_candidates.h"

#include <algorithm>
#include <set>

#include "plugin/graph/constants.h"
#include "plugin/recognizer/ops.h"

namespace nv_norms {
namespace {

constexpr int kMaxCandidates = 8;

// A Sum over axes of size 1, which the gradient of a broadcast leaves behind.
bool SumsNothing(const GraphView& view, const Shapes& shapes, int node) {
  if (view.op(node) != "Sum") return false;
  const TensorInfo& from = shapes.Get(view.inputs(node)[0]);
  const TensorInfo& to = shapes.Get({node, 0});
  const auto axes = IntConstant(view, view.inputs(node)[1].node);
  if (!axes || !from.rank_known || !to.rank_known || from.dims.size() != to.dims.size()) {
    return false;
  }
  const int64_t rank = static_cast<int64_t>(from.dims.size());
  return std::all_of(axes->values.begin(), axes->values.end(), [&](int64_t axis) {
    const int64_t at = axis < 0 ? axis + rank : axis;
    return at >= 0 && at < rank && from.dims[at] == 1;
  });
}

// A Sum over what BroadcastGradientArgs says when the graph runs: over nothing, for most operands.
bool SumsAsBroadcast(const GraphView& view, int node) {
  return view.op(node) == "Sum" && view.op(view.inputs(node)[1].node) == "BroadcastGradientArgs";
}

// Behind views that change neither values nor (but for their shape) anything else: where dy
// really comes from. `and_sums`: behind sums that may be none, too.
TensorId BehindViews(const GraphView& view, const Shapes& shapes, TensorId tensor,
                     bool and_sums = false) {
  while (true) {
    const int node = tensor.node;
    const std::string& op = view.op(node);
    if (op != "Identity" && op != "Reshape" && op != "Transpose" && op != "Neg" &&
        !IsWideningCast(view, node) && !SumsNothing(view, shapes, node) &&
        !(and_sums && SumsAsBroadcast(view, node))) {
      return tensor;
    }
    tensor = view.inputs(node)[0];
  }
}

bool SameShape(const TensorInfo& a, const TensorInfo& b) {
  if (!IsFloat(a.dtype)) return false;
  if (!a.rank_known || !b.rank_known) return true;
  if (a.dims.size() != b.dims.size()) return false;
  for (size_t i = 0; i < a.dims.size(); ++i) {
    if (a.dims[i] >= 0 && b.dims[i] >= 0 && a.dims[i] != b.dims[i]) return false;
  }
  return true;
}

}  // namespace

std::vector<DyCandidate> DyCandidates(const GraphView& view, const Shapes& shapes,
                                      const ForwardMatch& forward) {
  std::set<int> inner(forward.core.begin(), forward.core.end());
  std::vector<TensorId> near = {forward.x};
  for (int node : forward.core) near.push_back({node, 0});
  std::vector<TensorId> likes = {forward.x};
  for (int node : forward.core) {
    if (view.op(node) == "Reshape" && view.inputs(node)[0] == forward.x) likes.push_back({node, 0});
    if (view.op(node) == "Cast" && view.op(view.inputs(node)[0].node) == "Reshape") {
      likes.push_back({node, 0});
    }
  }
  std::vector<DyCandidate> found;
  const auto add = [&](TensorId tensor) {
    if (static_cast<int>(found.size()) == kMaxCandidates) return;
    for (const DyCandidate& candidate : found) {
      if (candidate.dy == tensor) return;
    }
    for (const TensorId& like : likes) {
      if (!SameShape(shapes.Get(tensor), shapes.Get(like))) continue;
      found.push_back({tensor, like});
      return;
    }
  };
  const auto consider = [&](TensorId other) {
    if (other == forward.x || inner.count(other.node) > 0) return;
    // dy behind its views; or behind the product with gamma, which comes first in RMS norms.
    TensorId behind = BehindViews(view, shapes, other);
    if (view.op(behind.node) == "Mul") {
      for (const TensorId& factor : view.inputs(behind.node)) {
        for (const TensorId& sibling : view.inputs(behind.node)) {
          const bool with_gamma =
              sibling != factor &&
              BehindViews(view, shapes, sibling) ==
                  BehindViews(view, shapes, forward.gamma.valid() ? forward.gamma : sibling);
          if (with_gamma && forward.gamma.valid()) add(BehindViews(view, shapes, factor));
          if (with_gamma && forward.gamma.valid()) add(factor);
        }
      }
    }
    const TensorId source = BehindViews(view, shapes, other, /*and_sums=*/true);
    add(source);
    add(behind);
    // Between its views: the innermost that has x's shape, which no cast has widened yet.
    std::vector<TensorId> views;
    for (TensorId at = other; at != source; at = view.inputs(at.node)[0]) views.push_back(at);
    for (auto at = views.rbegin(); at != views.rend(); ++at) add(*at);
  };
  for (const TensorId& tensor : near) {
    for (const Consumer& c : view.consumers(tensor)) {
      if (inner.count(c.node) > 0) continue;
      const std::string& op = view.op(c.node);
      if (IsProduct(op)) {
        for (const TensorId& input : view.inputs(c.node)) consider(input);
      } else if (ClassOf(op) == OpClass::kNormGrad) {
        consider(view.inputs(c.node)[0]);
      }
    }
  }
  return found;
}

}  // namespace nv_norms
