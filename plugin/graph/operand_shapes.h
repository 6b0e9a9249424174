#ifndef NV_NORMS_PLUGIN_GRAPH_OPERAND_SHAPES_H_
#define NV_NORMS_PLUGIN_GRAPH_OPERAND_SHAPES_H_

#include "plugin/graph/shapes.h"
#include "plugin/graph/view.h"

namespace nv_norms {

// Gives sizes to what a Reshape, a Slice or the gradient of a convolution or a pooling puts out,
// and to what is made of that, where its operand tells some and inference, which wants to know all
// of what it is computed from, tells none: [batch, length, 8], of which the first two are taken
// from a tensor of unknown shape; or numbers that TensorFlow's layout pass permutes.
void LearnFromShapeOperands(const GraphView& view, Shapes* shapes);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_GRAPH_OPERAND_SHAPES_H_
