#include "plugin/graph/gradient_shapes.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "plugin/graph/constants.h"
#include "plugin/graph/shape_ops.h"

namespace nv_norms {
namespace {

constexpr size_t kMaxSteps = 16;  // from a root to x: epsilon, a moment, a square, casts

using Dimensions = std::vector<int64_t>;  // as in TensorInfo

// Ops of two inputs that must have one shape, which the output has, too.
bool IsRootGradient(const std::string& op) {
  static const auto* const kOps =
      new std::set<std::string>{"RsqrtGrad", "SqrtGrad", "ReciprocalGrad", "InvGrad"};
  return kOps->count(op) > 0;
}

std::optional<Dimensions> Known(const TensorInfo& info) {
  if (!info.rank_known) return std::nullopt;
  return info.dims;
}

// How often the Tile that reads a gradient, perhaps behind a Reshape, repeats it along each of its
// dimensions: the gradient of a moment, where the sizes of what it is a moment of were known. Empty
// if there is none.
Dimensions MultiplesOfTile(const GraphView& view, int node) {
  for (const Consumer& c : view.consumers(node)) {
    if (c.slot != 0) continue;
    if (view.op(c.node) == "Reshape") {
      const Dimensions multiples = MultiplesOfTile(view, c.node);
      if (!multiples.empty()) return multiples;
    }
    if (view.op(c.node) != "Tile") continue;
    const auto multiples = IntConstant(view, view.inputs(c.node)[1].node);
    if (multiples && !multiples->scalar) return multiples->values;
  }
  return {};
}

// What the shape of a gradient's other input, or what reads the gradient, says of its shape.
std::optional<Dimensions> ShapeOfGradient(const GraphView& view, const Shapes& shapes, int node,
                                          const Dimensions& multiples) {
  if (const auto other = Known(shapes.Get(view.inputs(node)[1]))) return other;
  // There is a multiple for each dimension.
  if (!multiples.empty()) return Dimensions(multiples.size(), -1);
  return std::nullopt;
}

class Learner {
 public:
  Learner(const GraphView& view, Shapes* shapes) : view_(view), shapes_(shapes) {}

  // From a root back to what it is the root of the moments of. Inference knows some steps between.
  // The multiples are those of the moment's gradient, if it is made by a Tile.
  void Learn(TensorId root, const Dimensions& dims, const Dimensions& multiples) {
    pending_ = {{root, dims}};
    multiples_ = multiples;
    for (size_t i = 0; i < pending_.size() && i < kMaxSteps; ++i) {
      const auto [tensor, shape] = pending_[i];
      const TensorInfo info = shapes_->Get(tensor);
      if (!IsFloat(info.dtype)) continue;
      // What the owner left open stays open.
      if (!info.rank_known && !view_.IsArgument(tensor.node)) {
        shapes_->SetOutput(tensor, {info.dtype, true, shape});
      }
      LookBehind(tensor.node, info.rank_known ? info.dims : shape);
    }
  }

 private:
  void LookBehind(int node, const Dimensions& dims) {
    const std::string& op = view_.op(node);
    const std::vector<TensorId>& inputs = view_.inputs(node);
    if (KeepsShape(op)) {
      pending_.emplace_back(inputs[0], dims);
    } else if (op == "Mean" || op == "Sum") {
      LookBehindMoment(node, dims);
    } else if (Broadcasts(op) && inputs.size() == 2) {
      for (int slot : {0, 1}) {
        const TensorInfo& other = shapes_->Get(inputs[1 - slot]);
        const bool scalar = other.rank_known && other.dims.empty();
        if (scalar || IsMomentOf(inputs[1 - slot], inputs[slot])) {
          pending_.emplace_back(inputs[slot], dims);
        }
      }
    }
  }

  void LookBehindMoment(int node, Dimensions dims) {
    if (!view_.GetBool(node, "keep_dims", false)) return;
    const auto axes = IntConstant(view_, view_.inputs(node)[1].node);
    if (!axes) return;
    const int64_t rank = static_cast<int64_t>(dims.size());
    for (int64_t axis : axes->values) {
      if (axis < -rank || axis >= rank) return;
      const int64_t at = axis < 0 ? axis + rank : axis;
      // Of one it may be broadcast.
      dims[at] = multiples_.size() == dims.size() && multiples_[at] > 1 ? multiples_[at] : -1;
    }
    pending_.emplace_back(view_.inputs(node)[0], dims);
  }

  // Whether one is a moment of the other that keeps its axes: together they have the other's shape.
  bool IsMomentOf(TensorId moment, TensorId tensor) const {
    while (KeepsShape(view_.op(moment.node))) moment = view_.inputs(moment.node)[0];
    return view_.op(moment.node) == "Mean" && view_.GetBool(moment.node, "keep_dims", false) &&
           view_.inputs(moment.node)[0] == tensor;
  }

  const GraphView& view_;
  Shapes* shapes_;
  std::vector<std::pair<TensorId, Dimensions>> pending_;
  Dimensions multiples_;
};

}  // namespace

void LearnFromGradients(const GraphView& view, Shapes* shapes) {
  Learner learner(view, shapes);
  for (int node = 0; node < view.num_nodes(); ++node) {
    if (!view.alive(node) || !IsRootGradient(view.op(node))) continue;
    const TensorId root = view.inputs(node)[0];
    const Dimensions multiples = MultiplesOfTile(view, node);
    auto dims = Known(shapes->Get(root));
    if (!dims) dims = ShapeOfGradient(view, *shapes, node, multiples);
    if (dims) learner.Learn(root, *dims, multiples);
  }
}

}  // namespace nv_norms
