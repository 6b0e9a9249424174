#include "plugin/recognizer/broadcast_sums.h"

#include <algorithm>
#include <string>
#include <vector>

#include "plugin/graph/constants.h"
#include "plugin/recognizer/ops.h"

namespace nv_norms {
namespace {

// What BroadcastGradientArgs is given at a slot: the sizes of a tensor, or numbers.
struct Operand {
  TensorId of;  // not valid(): numbers, or nothing that we know
  TensorInfo sizes;
};

Operand OperandOf(const GraphView& view, const Shapes& shapes, TensorId axes, int slot) {
  TensorId sizes = view.inputs(axes.node)[slot];
  // A tensor's own sizes are in its order, which x has, too; numbers are in another one then.
  const bool permuted = view.op(sizes.node) == "DataFormatVecPermute";
  if (permuted) sizes = view.inputs(sizes.node)[0];
  Operand operand;
  if (view.op(sizes.node) == "Shape") {
    operand.of = view.inputs(sizes.node)[0];
    operand.sizes = shapes.Get(operand.of);
  } else if (const auto numbers = IntConstant(view, sizes.node); numbers && !permuted) {
    operand.sizes.rank_known = true;
    operand.sizes.dims = numbers->values;
  } else if (const TensorInfo& info = shapes.Get(sizes);
             info.rank_known && info.dims.size() == 1 && info.dims[0] >= 0) {
    operand.sizes.rank_known = true;
    operand.sizes.dims.assign(info.dims[0], -1);
  }
  return operand;
}

bool IsCore(const ForwardMatch& forward, TensorId tensor) {
  return std::find(forward.core.begin(), forward.core.end(), tensor.node) != forward.core.end();
}

// An inner tensor, or what one op makes of such and of the parameters: where Grappler adds y's
// terms up in another order, the sum that there was is left for its sizes, which the gradient asks
// for.
bool IsInner(const GraphView& view, const ForwardMatch& forward, TensorId tensor) {
  if (IsCore(forward, tensor)) return true;
  const std::vector<TensorId>& inputs = view.inputs(tensor.node);
  return ClassOf(view.op(tensor.node)) == OpClass::kElementwise &&
         std::all_of(inputs.begin(), inputs.end(), [&](TensorId input) {
           return input == forward.x || input == forward.gamma || input == forward.beta ||
                  IsCore(forward, input);
         });
}

// Whether x's last sizes are those of the parameters, as the op sees to, or are known.
bool KnowsLastSizes(const Shapes& shapes, const ForwardMatch& forward, size_t count) {
  if (forward.gamma.valid() || forward.beta.valid()) return true;
  const TensorInfo& x = shapes.Get(forward.x);
  return x.rank_known && count <= x.dims.size() &&
         std::all_of(x.dims.end() - count, x.dims.end(), [](int64_t size) { return size >= 0; });
}

// Whether what has these sizes makes x no larger than the parameters do, where there is one for
// each sample: all are 1, or one of theirs.
bool FitsInto(const Shapes& shapes, const ForwardMatch& forward, const TensorInfo& sizes) {
  std::vector<TensorId> tensors = {forward.x};
  if (forward.open_samples) tensors.insert(tensors.end(), {forward.gamma, forward.beta});
  for (size_t back = 1; back <= sizes.dims.size(); ++back) {
    const int64_t size = sizes.dims[sizes.dims.size() - back];
    const auto is_its_own = [&](TensorId tensor) {
      if (!tensor.valid()) return false;
      const TensorInfo& info = shapes.Get(tensor);
      return info.rank_known && back <= info.dims.size() && size != -1 &&
             info.dims[info.dims.size() - back] == size;
    };
    if (size != 1 && std::none_of(tensors.begin(), tensors.end(), is_its_own)) return false;
  }
  return sizes.rank_known;
}

// Whether a tensor is made of x's mean or variance, and of no other inner tensor: it has x's sizes
// only if what they are multiplied with has.
bool IsMadeOfStatistics(const GraphView& view, const ForwardMatch& forward, TensorId tensor) {
  constexpr size_t kMaxNodes = 16;
  std::vector<TensorId> pending = {tensor};
  bool found = false;
  for (size_t i = 0; i < pending.size() && i < kMaxNodes; ++i) {
    const TensorId at = pending[i];
    if (at == forward.x || at == forward.y) return false;
    const OpClass of = ClassOf(view.op(at.node));
    const bool inner = IsCore(forward, at);
    if (inner && (of == OpClass::kReduction || (of == OpClass::kNorm && at.port > 0))) {
      found = true;
    } else if (of == OpClass::kElementwise || of == OpClass::kView) {
      for (const TensorId& input : view.inputs(at.node)) pending.push_back(input);
    } else if (inner) {
      return false;
    }
  }
  return found;
}

}  // namespace

TensorId BehindShapes(const GraphView& view, TensorId dy) {
  while (view.op(dy.node) == "Cast" || view.op(dy.node) == "Neg" || IsPlainView(view.op(dy.node))) {
    dy = view.inputs(dy.node)[0];
  }
  return dy;
}

TensorId AxesOfBroadcast(const GraphView& view, int node) {
  if (view.op(node) != "Sum") return TensorId();
  TensorId axes = view.inputs(node)[1];
  if (view.op(axes.node) == "DataFormatDimMap") axes = view.inputs(axes.node)[0];
  return view.op(axes.node) == "BroadcastGradientArgs" ? axes : TensorId();
}

bool SumsAsBroadcast(const GraphView& view, int node) {
  return AxesOfBroadcast(view, node).valid();
}

bool IsSurelyOverNothing(const GraphView& view, const Shapes& shapes, const ForwardMatch& forward,
                         int node) {
  const TensorId axes = AxesOfBroadcast(view, node);
  const Operand other = OperandOf(view, shapes, axes, 1 - axes.port);
  const size_t rank = other.sizes.dims.size();
  if (other.sizes.rank_known && rank <= forward.problem.axes.size() &&
      KnowsLastSizes(shapes, forward, rank)) {
    return true;
  }
  if (FitsInto(shapes, forward, other.sizes)) return true;
  if (!other.of.valid() || forward.goes_on()) return false;
  // y has as many samples as x and the parameters together.
  const bool of_samples =
      forward.open_samples && (other.of == forward.gamma || other.of == forward.beta);
  return other.of == forward.x || of_samples || IsInner(view, forward, other.of);
}

bool IsSummedToLess(const GraphView& view, const Shapes& shapes, const ForwardMatch& forward,
                    TensorId dy) {
  const TensorId axes = AxesOfBroadcast(view, BehindShapes(view, dy).node);
  if (!axes.valid()) return false;
  const TensorId own = OperandOf(view, shapes, axes, axes.port).of;
  return own.valid() && IsMadeOfStatistics(view, forward, own);
}

bool IsSummedToOthers(const GraphView& view, const Shapes& shapes, const ForwardMatch& forward,
                      int node) {
  const TensorId axes = AxesOfBroadcast(view, node);
  if (!axes.valid()) return false;
  const Operand own = OperandOf(view, shapes, axes, axes.port);
  if (!own.of.valid() || IsKnown(own.sizes) || own.of == forward.x || IsCore(forward, own.of)) {
    return false;
  }
  const TensorId source = BehindShapes(view, own.of);
  const auto is_source = [&](TensorId parameter) {
    return parameter.valid() && source == BehindShapes(view, parameter);
  };
  return !is_source(forward.gamma) && !is_source(forward.beta);
}

bool IsSummedLike(const GraphView& view, TensorId tensor, TensorId dy,
                  const std::unordered_set<int>& within) {
  std::vector<TensorId> pending = {tensor};
  std::unordered_set<int> seen;
  while (!pending.empty()) {
    const TensorId at = pending.back();
    pending.pop_back();
    if (at == dy) return false;
    if (within.count(at.node) == 0 || SumsAsBroadcast(view, at.node)) continue;
    if (!seen.insert(at.node).second) continue;
    const std::vector<TensorId>& inputs = view.inputs(at.node);
    pending.insert(pending.end(), inputs.begin(), inputs.end());
  }
  return true;
}

}  // namespace nv_norms
