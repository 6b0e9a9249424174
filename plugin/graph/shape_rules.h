#ifndef NV_NORMS_PLUGIN_GRAPH_SHAPE_RULES_H_
#define NV_NORMS_PLUGIN_GRAPH_SHAPE_RULES_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "plugin/graph/shapes.h"
#include "plugin/graph/view.h"

namespace nv_norms {

// The sizes of an op's output as its inputs tell them, for what inference knows less of: it looks
// at constants alone, and saw the inputs before more was known of them. Of views, elementwise ops,
// reductions, paddings, convolutions, and of gradients of activations and poolings; nullopt for
// others, and where a rank is unknown. Sizes as in TensorInfo.
std::optional<std::vector<int64_t>> ShapeFromInputs(const GraphView& view, const Shapes& shapes,
                                                    int node);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_GRAPH_SHAPE_RULES_H_
