#ifndef NV_NORMS_PLUGIN_EARLY_CALL_SHAPES_H_
#define NV_NORMS_PLUGIN_EARLY_CALL_SHAPES_H_

#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/graph/graph.h"

namespace nv_norms {

// Grappler does not look into functions that stay calls, as those do that XLA compiles: it knows
// no shape behind them. Puts an EnsureShape behind each that has one by TensorFlow's own inference,
// which does look. How many.
int TellShapesOfCalls(const tensorflow::FunctionLibraryDefinition& library,
                      tensorflow::Graph* graph);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_EARLY_CALL_SHAPES_H_
