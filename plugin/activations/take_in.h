#ifndef NV_NORMS_PLUGIN_ACTIVATIONS_TAKE_IN_H_
#define NV_NORMS_PLUGIN_ACTIVATIONS_TAKE_IN_H_

#include <functional>
#include <vector>

#include "plugin/graph/shapes.h"
#include "plugin/graph/view.h"
#include "plugin/report.h"

namespace nv_norms {

// A LeakyRelu, Relu or silu behind a fused instance or group norm on a GPU, taken into it:
//
//   x -> norm -> y -> LeakyRelu -> a               x -> norm with negative_slope -> a
//   da, y -> LeakyReluGrad -> dy -> normGrad       da -> normGrad with negative_slope
//
// A silu is several ops, and its gradient is, too (silu.h). The norm takes the activation's place
// and name. Left is what has another reader of y or dy, and
// what has only some of its gradients fused.

constexpr char kUnread[] = "_nv_norms_unread";

// `nodes`: which fused ops may be changed. `keep`: whose values must stay under their names.
// `compiled`: the graph is for a compiler. There what only hands y on to nobody keeps a norm of its
// own, with kUnread set, that the compiler drops.
// Returns whether anything changed; then the norms' records tell so.
bool TakeInActivations(GraphView* view, Shapes* shapes, const std::function<bool(int)>& nodes,
                       const std::function<bool(int)>& keep, bool compiled,
                       std::vector<Record>* records);

// Whether it would change anything: it looks, and leaves all but the view's live() as it is.
bool WouldTakeInActivations(GraphView* view, const std::function<bool(int)>& nodes,
                            const std::function<bool(int)>& keep, bool compiled);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_ACTIVATIONS_TAKE_IN_H_
