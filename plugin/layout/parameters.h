#ifndef NV_NORMS_PLUGIN_LAYOUT_PARAMETERS_H_
#define NV_NORMS_PLUGIN_LAYOUT_PARAMETERS_H_

#include <functional>

#include "plugin/graph/shapes.h"
#include "plugin/graph/view.h"

namespace nv_norms {

// The layout pass transposes gamma and beta too, [1, 1, 1, C] to [1, C, 1, 1], and their gradients
// back. No element moves. Makes a fused norm, which takes parameters in any shape, read what is
// behind such Transposes; and a Reshape of a parameter's gradient read what is before them. True if
// the graph changed.
bool BypassParameterTransposes(GraphView* view, const Shapes& shapes, int norm,
                               const std::function<bool(int)>& keep);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_LAYOUT_PARAMETERS_H_
