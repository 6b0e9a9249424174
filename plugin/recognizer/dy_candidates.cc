#include "plugin/recognizer/dy_candidates.h"

#include <algorithm>
#include <set>
#include <utility>

#include "plugin/graph/constants.h"
#include "plugin/recognizer/broadcast_sums.h"
#include "plugin/recognizer/dy_shape.h"
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

enum class Sums { kStop, kOverNothing, kAny };

// Behind views that change neither values nor (but for their shape) anything else: where dy
// really comes from. `sums` tells which sums of broadcasts to go behind, too.
TensorId BehindViews(const GraphView& view, const Shapes& shapes, const ForwardMatch& forward,
                     TensorId tensor, Sums sums = Sums::kStop) {
  const auto pass = [&](int node) {
    return sums != Sums::kStop && SumsAsBroadcast(view, node) &&
           (sums == Sums::kAny || IsSurelyOverNothing(view, shapes, forward, node));
  };
  while (true) {
    const int node = tensor.node;
    const std::string& op = view.op(node);
    // What comes before a Transpose of unknown order has unknown axes.
    const bool is_turned = op == "Transpose" && IntConstant(view, view.inputs(node)[1].node);
    if (op != "Identity" && op != "Reshape" && op != "Neg" && !is_turned &&
        !IsWideningCast(view, node) && !SumsNothing(view, shapes, node) && !pass(node)) {
      return tensor;
    }
    tensor = view.inputs(node)[0];
  }
}

// Whether dy has x's shape, if unknown sizes are equal. A 1 beside an unknown size is of something
// that is yet to be broadcast. `surely`: another size may be of something that x is broadcast to.
bool SameShape(const TensorInfo& dy, const TensorInfo& x, bool surely) {
  if (!IsFloat(dy.dtype)) return false;
  if (!dy.rank_known || !x.rank_known) {
    return !surely && (!dy.rank_known || std::count(dy.dims.begin(), dy.dims.end(), 1) == 0);
  }
  if (dy.dims.size() != x.dims.size()) return false;
  for (size_t i = 0; i < dy.dims.size(); ++i) {
    const int64_t of_dy = dy.dims[i], of_x = x.dims[i];
    if (of_dy == of_x && (of_x != -1 || !surely)) continue;
    if (of_dy < 0 && of_x < 0 && !surely) continue;
    if (of_dy == 1 || of_x == 1 || surely || (of_dy >= 0 && of_x >= 0)) return false;
  }
  return true;
}

bool IsGammaOrRootOfSize(const GraphView& view, const Shapes& shapes, const ForwardMatch& forward,
                         TensorId tensor) {
  if (forward.statistics.slope != 1 && FloatSplat(view, tensor.node)) return true;
  return forward.gamma.valid() && BehindViews(view, shapes, forward, tensor) ==
                                      BehindViews(view, shapes, forward, forward.gamma);
}

// Whether a tensor is computed from y and numbers alone, in few steps: mostly a part of the
// derivative of what comes behind the norm, such as silu's 1 - sigmoid(y).
bool FollowsFromY(const GraphView& view, const ForwardMatch& forward, TensorId tensor) {
  constexpr size_t kMaxNodes = 8;
  std::vector<TensorId> pending = {tensor};
  for (size_t i = 0; i < pending.size(); ++i) {
    const TensorId at = pending[i];
    if (at == forward.y || view.op(at.node) == "Const") continue;
    const std::vector<TensorId>& inputs = view.inputs(at.node);
    if (i == kMaxNodes || inputs.empty()) return false;
    pending.insert(pending.end(), inputs.begin(), inputs.end());
  }
  return true;
}

// The inner tensors, and x and y, which other norms may multiply with what they are differentiated
// by. (The y of a gradient without its forward is an inner tensor.)
std::vector<TensorId> TensorsOf(const ForwardMatch& forward) {
  std::vector<TensorId> tensors;
  for (int node : forward.core) {
    if (forward.lone || node != forward.y.node) tensors.push_back({node, 0});
  }
  tensors.push_back(forward.x);
  if (!forward.lone) tensors.push_back(forward.y);
  return tensors;
}

// Calls add(tensor, surely) for what these are multiplied with: x and inner tensors, or their
// Transposes. The likeliest first.
template <typename Add>
void ForFactors(const GraphView& view, const Shapes& shapes, const ForwardMatch& forward,
                const std::vector<TensorId>& near, const Add& add) {
  std::set<int> inner(forward.core.begin(), forward.core.end());
  const auto consider = [&](TensorId other) {
    if (other == forward.x || inner.count(other.node) > 0) return;
    // dy behind its views; or behind the product with gamma, which comes first in RMS norms, or
    // with what makes a root of a sum that of a mean.
    TensorId behind = BehindViews(view, shapes, forward, other);
    if (view.op(behind.node) == "Mul") {
      for (const TensorId& factor : view.inputs(behind.node)) {
        for (const TensorId& sibling : view.inputs(behind.node)) {
          if (sibling == factor || !IsGammaOrRootOfSize(view, shapes, forward, sibling)) continue;
          add(BehindViews(view, shapes, forward, factor), false);
          add(factor, false);
        }
      }
    }
    const TensorId source = BehindViews(view, shapes, forward, other, Sums::kAny);
    const TensorId nearer = BehindViews(view, shapes, forward, other, Sums::kOverNothing);
    add(source, /*surely=*/source != nearer);
    add(nearer, false);
    add(behind, false);
    // Between its views: the innermost that has x's shape, which no cast has widened yet.
    std::vector<std::pair<TensorId, bool>> views;
    bool past = false;  // behind a Sum that may be over something
    for (TensorId at = other; at != source; at = view.inputs(at.node)[0]) {
      views.push_back({at, past});
      past = past || at == nearer;
    }
    for (auto at = views.rbegin(); at != views.rend(); ++at) add(at->first, at->second);
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
}

}  // namespace

std::vector<DyCandidate> DyCandidates(const GraphView& view, const Shapes& shapes,
                                      const ForwardMatch& forward, bool may_be_larger) {
  std::vector<TensorId> likes = {forward.x};
  for (int node : forward.core) {
    const std::string& op = view.op(node);
    if ((IsPlainView(op) || op == "StridedSlice") && view.inputs(node)[0] == forward.x) {
      likes.push_back({node, 0});
    }
    if (view.op(node) == "Cast" && view.op(view.inputs(node)[0].node) == "Reshape") {
      likes.push_back({node, 0});
    }
  }
  std::vector<DyCandidate> found;
  ForFactors(view, shapes, forward, TensorsOf(forward), [&](TensorId tensor, bool surely) {
    if (static_cast<int>(found.size()) == kMaxCandidates) return;
    for (const DyCandidate& candidate : found) {
      if (candidate.dy == tensor) return;
    }
    if (!HasSurelyShapeOf(shapes, tensor, forward.x) &&
        IsSummedToLess(view, shapes, forward, tensor)) {
      return;
    }
    for (const TensorId& like : likes) {
      if (!SameShape(shapes.Get(tensor), shapes.Get(like), surely && !may_be_larger)) continue;
      found.push_back({tensor, like});
      return;
    }
  });
  // What is none is long to try. It may have the sizes in another order, before a Transpose, where
  // they are unknown; and of those that follow from y few are one: if the loss is of y alone.
  std::stable_partition(found.begin(), found.end(), [&](const DyCandidate& candidate) {
    return HasSurelyShapeOf(shapes, candidate.dy, candidate.like);
  });
  std::stable_partition(found.begin(), found.end(), [&](const DyCandidate& candidate) {
    return !FollowsFromY(view, forward, candidate.dy);
  });
  return found;
}

std::vector<TransposedDy> TransposedDys(const GraphView& view, const Shapes& shapes,
                                        const ForwardMatch& forward) {
  const TensorInfo x = shapes.Get(forward.x);
  if (!x.rank_known) return {};
  const size_t rank = x.dims.size();
  std::vector<int> transposes;
  std::vector<TensorId> near = TensorsOf(forward);
  const auto look_at = [&](int node) {
    if (view.op(node) == "Transpose") transposes.push_back(node);
  };
  for (int node : forward.core) look_at(node);
  for (const Consumer& c : view.consumers(forward.y)) look_at(c.node);
  // What comes before a net's first convolution stays as it is in TensorFlow's layout pass, and its
  // gradient, which comes after one, reads Transposes of it.
  for (const TensorId& tensor : TensorsOf(forward)) {
    for (const Consumer& c : view.consumers(tensor)) {
      look_at(c.node);
      if (view.op(c.node) == "Transpose") near.push_back({c.node, 0});
    }
  }
  std::vector<TransposedDy> found;
  std::set<std::vector<int64_t>> seen;
  for (int node : transposes) {
    const auto order = IntConstant(view, view.inputs(node)[1].node);
    if (!order || order->values.size() != rank || !seen.insert(order->values).second) continue;
    // Of x in that order, and from there back.
    TensorInfo like = x;
    std::vector<int64_t> back(rank, -1);
    for (size_t i = 0; i < rank; ++i) {
      const int64_t from = order->values[i] + (order->values[i] < 0 ? rank : 0);
      if (from < 0 || from >= static_cast<int64_t>(rank)) break;
      like.dims[i] = x.dims[from];
      back[from] = static_cast<int64_t>(i);
    }
    if (std::count(back.begin(), back.end(), -1) > 0) continue;
    ForFactors(view, shapes, forward, near, [&](TensorId tensor, bool surely) {
      if (static_cast<int>(found.size()) == kMaxCandidates) return;
      for (const TransposedDy& other : found) {
        if (other.dy == tensor && other.order == back) return;
      }
      if (SameShape(shapes.Get(tensor), like, surely)) found.push_back({tensor, back});
    });
  }
  return found;
}

}  // namespace nv_norms
