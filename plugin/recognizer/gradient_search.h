#ifndef NV_NORMS_PLUGIN_RECOGNIZER_GRADIENT_SEARCH_H_
#define NV_NORMS_PLUGIN_RECOGNIZER_GRADIENT_SEARCH_H_

#include <functional>

#include "plugin/recognizer/backward.h"

namespace nv_norms {

// What a gradient may be computed from: dy, times the factors.
struct TriedDy {
  TensorId dy, like;  // it has the shape of `like`, x or a view of it,
  std::vector<Part> factors;
  bool sum = false;  // or is larger, and summed
};

// What of dx, dgamma and dbeta is computed from it. Not found(): nothing, or nothing that we
// understand.
BackwardMatch FindGradient(const GraphView& view, const Shapes& shapes, const ForwardMatch& forward,
                           const TriedDy& tried, const std::function<bool(int)>& keep);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_RECOGNIZER_GRADIENT_SEARCH_H_
