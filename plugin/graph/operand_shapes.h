#ifndef NV_NORMS_PLUGIN_GRAPH_OPERAND_SHAPES_H_
#define NV_NORMS_PLUGIN_GRAPH_OPERAND_SHAPES_H_

#include "plugin/graph/shapes.h"
#include "plugin/graph/view.h"

namespace nv_norms {

// Gives sizes to what inference knows less of, as it wants to know all of what a shape is computed
// from: what a Reshape, a Slice or the gradient of a convolution or a pooling puts out, where its
// operand tells some ([batch, length, 8], of which the first two are taken from a tensor of unknown
// shape; or numbers that TensorFlow's layout pass permutes), and what is made of that, as
// ShapeFromInputs tells. Unknown sizes of which either, or the number of elements that a Reshape
// keeps, tells that they are one become one, or a number.
void LearnFromShapeOperands(const GraphView& view, Shapes* shapes);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_GRAPH_OPERAND_SHAPES_H_
