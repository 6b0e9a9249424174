#ifndef NV_NORMS_PLUGIN_GRAPH_GRADIENT_SHAPES_H_
#define NV_NORMS_PLUGIN_GRAPH_GRADIENT_SHAPES_H_

#include "plugin/graph/shapes.h"
#include "plugin/graph/view.h"

namespace nv_norms {

// Gives shapes to tensors whose rank inference does not know (what comes out of a function that XLA
// compiles, say), where the gradient of a root tells: RsqrtGrad takes two tensors of one shape, and
// fails for others, so that one input's shape is the other's, and from there it leads back through
// the moments to what they are moments of. Along the axes of a moment, the sizes are those to which
// a Tile repeats its gradient, where the one who took the gradient knew them.
void LearnFromGradients(const GraphView& view, Shapes* shapes);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_GRAPH_GRADIENT_SHAPES_H_
