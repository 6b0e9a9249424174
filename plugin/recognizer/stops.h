#ifndef NV_NORMS_PLUGIN_RECOGNIZER_STOPS_H_
#define NV_NORMS_PLUGIN_RECOGNIZER_STOPS_H_

#include <unordered_set>

#include "plugin/graph/view.h"

namespace nv_norms {

// Whether one of these nodes, which a gradient was computed by, stops or replaces a gradient, so
// that the second derivatives are others than a fused gradient's. Those of `forward` are not asked.
bool StopsGradient(const GraphView& view, const std::unordered_set<int>& nodes,
                   const std::unordered_set<int>& forward);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_RECOGNIZER_STOPS_H_
