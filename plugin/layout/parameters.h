#ifndef NV_NORMS_PLUGIN_LAYOUT_PARAMETERS_H_
#define NV_NORMS_PLUGIN_LAYOUT_PARAMETERS_H_

#include <functional>

#include "plugin/graph/shapes.h"
#include "plugin/graph/view.h"

namespace nv_norms {

// The layout pass transposes gamma and beta too: [1, 1, 1, C] to [1, C, 1, 1]. A fused norm takes
// them in any shape, as long as the elements come in their order: makes it read what is behind such
// Transposes. True if the graph changed.
bool ReadParametersDirectly(GraphView* view, const Shapes& shapes, int norm,
                            const std::function<bool(int)>& keep);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_LAYOUT_PARAMETERS_H_
