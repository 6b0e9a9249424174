#ifndef NV_NORMS_PLUGIN_LAYOUT_APPLY_H_
#define NV_NORMS_PLUGIN_LAYOUT_APPLY_H_

#include <functional>
#include <vector>

#include "plugin/graph/shapes.h"
#include "plugin/graph/view.h"
#include "plugin/layout/region.h"

namespace nv_norms {

// Runs each member of the region in its format: changes attributes and constant axes, makes every
// reader read its value in the format that it wants, adds the Transposes that this takes and
// removes those that nobody reads any more. Nodes keep their names, devices and control edges.
void ApplyFormats(GraphView* view, Shapes* shapes, const Region& region,
                  const std::vector<Format>& formats, const std::function<bool(int)>& keep);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_LAYOUT_APPLY_H_
