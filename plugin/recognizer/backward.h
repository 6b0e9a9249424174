#ifndef NV_NORMS_PLUGIN_RECOGNIZER_BACKWARD_H_
#define NV_NORMS_PLUGIN_RECOGNIZER_BACKWARD_H_

#include <functional>
#include <optional>
#include <vector>

#include "plugin/recognizer/forward.h"

namespace nv_norms {

// The gradient of a normalization that was recognized. Any of dx, dgamma and dbeta may be absent.
struct BackwardMatch {
  TensorId dy;
  // What dy is first multiplied with: the forward's parts, where dy is that of their product.
  std::vector<Part> factors;
  bool sum_dy = false;      // then dy may be larger than x, which is broadcast, and is summed
  bool reshape_dy = false;  // dy has the shape of a view of x, or may have; not x's own
  TensorId dx;              // its node becomes the fused gradient, or a sum with the parts
  bool reshape_dx = false;  // likewise
  // How the graph's dx has the axes of x, which it is transposed to: empty where they are in order.
  std::vector<int64_t> dx_order;
  // Where dx is some terms of a sum: these, and those that go on beside it (a residual's gradient).
  std::vector<Part> terms, parts;
  // What dy is multiplied with: the forward's gamma, or what that is a multiple of, in
  // norm(x) * gamma * 0.5, whose dy is half of what comes from the loss. None where gamma is in dy.
  TensorId gamma;
  TensorId dgamma, dbeta;  // recognized at the Sum
  // Their shapes; empty where any shape with as many elements will do.
  std::vector<int64_t> dgamma_shape, dbeta_shape;
  std::vector<int> core;  // the nodes between dy, x and the outputs
  // Whether what it stands for has another gradient than it, as a StopGradient is among its nodes.
  bool stops_gradient = false;

  std::optional<Problem> problem;  // where y is absent: what the gradient is that of

  // Those of dx, dgamma and dbeta that are there.
  std::vector<TensorId> outputs() const {
    std::vector<TensorId> outputs;
    for (TensorId tensor : {dx, dgamma, dbeta}) {
      if (tensor.valid()) outputs.push_back(tensor);
    }
    return outputs;
  }
  bool found() const { return dx.valid() || dgamma.valid() || dbeta.valid(); }
};

// The gradients that belong to `forward`, which must still be in the graph as it was: one for each
// loss that it is differentiated by. Several may be in one sum: then each has the terms of the
// others among its parts. Empty: there is none, or it is not understood.
std::vector<BackwardMatch> FindBackward(const GraphView& view, const Shapes& shapes,
                                        const ForwardMatch& forward,
                                        const std::function<bool(int)>& keep);
// The one that is computed from this dy, which has x's shape; found() is false where there is none.
BackwardMatch FindBackwardFrom(const GraphView& view, const Shapes& shapes,
                               const ForwardMatch& forward, TensorId dy,
                               const std::function<bool(int)>& keep);

// Whether the graph differentiates the anchor of a normalization: RsqrtGrad and the like read it,
// or views of it (a Jacobian's gradients have an axis more).
bool HasGradient(const GraphView& view, TensorId anchor);

// Whether it has dx and the gradient of each parameter that the forward has.
bool IsComplete(const ForwardMatch& forward, const BackwardMatch& match);

// Whether the anchor is still read once fused ops give y and what the gradients give: by a gradient
// that was not found, say. MarkLive() has been called.
bool NeedsAnchor(const GraphView& view, const ForwardMatch& forward,
                 const std::vector<BackwardMatch>& gradients, const std::function<bool(int)>& keep);

// Whether x is differentiated by this gradient's dy, but dx is not among what was recognized.
bool LeavesDx(const GraphView& view, const ForwardMatch& forward, const BackwardMatch& match);

// Whether it is put aside for a gradient in another loop or branch: into a list or an optional.
bool HasGradientElsewhere(const GraphView& view, TensorId anchor);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_RECOGNIZER_BACKWARD_H_
