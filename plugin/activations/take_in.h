#ifndef NV_NORMS_PLUGIN_ACTIVATIONS_TAKE_IN_H_
#define NV_NORMS_PLUGIN_ACTIVATIONS_TAKE_IN_H_

#include <functional>
#include <vector>

#include "plugin/graph/shapes.h"
#include "plugin/graph/view.h"
#include "plugin/report.h"

namespace nv_norms {

// A LeakyRelu or Relu behind a fused instance or group norm on a GPU, taken into it:
//
//   x -> norm -> y -> LeakyRelu -> a               x -> norm with negative_slope -> a
//   da, y -> LeakyReluGrad -> dy -> normGrad       da -> normGrad with negative_slope
//
// The norm takes the activation's place and name. Left is what has another reader of y or dy, and
// what has only some of its gradients fused.

// `nodes`: which fused ops may be changed. `keep`: whose values must stay under their names.
// Returns whether anything changed; then the norms' records tell so.
bool TakeInActivations(GraphView* view, Shapes* shapes, const std::function<bool(int)>& nodes,
                       const std::function<bool(int)>& keep, std::vector<Record>* records);

// Whether it would change anything: it looks, and leaves all but the view's live() as it is.
bool WouldTakeInActivations(GraphView* view, const std::function<bool(int)>& nodes,
                            const std::function<bool(int)>& keep);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_ACTIVATIONS_TAKE_IN_H_
