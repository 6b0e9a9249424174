#ifndef NV_NORMS_PLUGIN_RECOGNIZER_OPEN_SIZES_H_
#define NV_NORMS_PLUGIN_RECOGNIZER_OPEN_SIZES_H_

#include "plugin/graph/shapes.h"
#include "plugin/graph/view.h"
#include "plugin/recognizer/axes.h"

namespace nv_norms {

// Whether x, of known rank, has an unknown size along a parameter's axes that its owner left open,
// so that it may be 1 when the graph runs: then x would be broadcast to the parameter's shape.
bool IsLeftOpenAlong(const GraphView& view, const Shapes& shapes, TensorId x, const Dims& x_dims,
                     const Dim& parameter);

// Whether both have so many samples as they say. A batch of unknown size may be 1 when the graph
// runs, and be broadcast with the other's.
bool KnowsSamples(const Shapes& shapes, TensorId x, TensorId parameter);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_RECOGNIZER_OPEN_SIZES_H_
