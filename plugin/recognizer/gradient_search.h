#ifndef NV_NORMS_PLUGIN_RECOGNIZER_GRADIENT_SEARCH_H_
#define NV_NORMS_PLUGIN_RECOGNIZER_GRADIENT_SEARCH_H_

#include <functional>

#include "plugin/recognizer/backward.h"

namespace nv_norms {

// What of dx, dgamma and dbeta is computed from `dy`, which has the shape of `dy_like` (x or a view
// of it), times `factors`. Not found(): nothing, or nothing that we understand.
BackwardMatch FindGradient(const GraphView& view, const Shapes& shapes, const ForwardMatch& forward,
                           TensorId dy, TensorId dy_like, const std::vector<Part>& factors,
                           const std::function<bool(int)>& keep);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_RECOGNIZER_GRADIENT_SEARCH_H_
