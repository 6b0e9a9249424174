#ifndef NV_NORMS_PLUGIN_CASTS_TAKE_IN_H_
#define NV_NORMS_PLUGIN_CASTS_TAKE_IN_H_

#include <functional>

#include "plugin/graph/shapes.h"
#include "plugin/graph/view.h"

namespace nv_norms {

// Casts between float32 and half or bfloat16 beside fused normalizations, taken into them:
//
//   x32 -> Cast -> x16 -> norm -> y16 -> Cast -> y32        x32 -> norm -> y32
//
// and for the gradient dy, dx and the gradients of the parameters. The ops compute in float32 in
// any case, so what goes is a rounding and two passes over a tensor. Left is what other ops read in
// the narrow type, too, and what would leave an op with types that its kernels are slow for.

// `nodes`: which fused ops may be changed. `keep`: whose values must stay under their names.
// `compiled`: the graph is for a compiler that computes a Cast with the ops beside it; then a Cast
// only costs where the wide tensor is in memory in any case.
// Returns whether anything changed. New ops have their norm's name, with a suffix.
bool TakeInCasts(GraphView* view, Shapes* shapes, const std::function<bool(int)>& nodes,
                 const std::function<bool(int)>& keep, bool compiled);

// Whether it would change anything: it looks, and leaves all but the view's live() as it is.
bool WouldTakeInCasts(GraphView* view, const std::function<bool(int)>& nodes,
                      const std::function<bool(int)>& keep, bool compiled);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_CASTS_TAKE_IN_H_
