#ifndef NV_NORMS_PLUGIN_RECOGNIZER_LONE_GRADIENT_H_
#define NV_NORMS_PLUGIN_RECOGNIZER_LONE_GRADIENT_H_

#include <functional>
#include <vector>

#include "plugin/recognizer/backward.h"
#include "plugin/recognizer/forward.h"

namespace nv_norms {

// The gradients of a normalization whose own output is not in the graph (a loss that nobody asks
// for is not computed, its gradient is), each with the forward that it belongs to: y and beta are
// absent, y.node is the anchor.
struct LoneGradient {
  ForwardMatch forward;
  std::vector<BackwardMatch> gradients;
};
LoneGradient FindLoneGradient(const GraphView& view, const Shapes& shapes,
                              const Statistics& statistics, const std::function<bool(int)>& keep);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_RECOGNIZER_LONE_GRADIENT_H_
