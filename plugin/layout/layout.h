#ifndef NV_NORMS_PLUGIN_LAYOUT_LAYOUT_H_
#define NV_NORMS_PLUGIN_LAYOUT_LAYOUT_H_

#include <functional>
#include <string>
#include <vector>

#include "plugin/graph/shapes.h"
#include "plugin/graph/view.h"
#include "plugin/report.h"

namespace nv_norms {

// Whether the graph has Transposes between channels first and channels last, which are what
// ImproveLayout() may remove.
bool HasLayoutTransposes(const GraphView& view);

// TensorFlow's layout pass puts Transposes around what it does not know, and user code puts them
// around what wants another layout:
//
//     Conv2D (NCHW) -> Transpose -> FusedGroupNorm (N...C) -> Relu -> Transpose -> Conv2D (NCHW)
//
// A fused norm runs in either layout, and so does every elementwise op beside it. This gives each
// of them the layout with which the fewest bytes are transposed, never with more Transposes than
// before. `nodes`: which nodes may be touched at all; `keep`: which must stay as they are. True if
// the graph changed.
bool ImproveLayout(GraphView* view, Shapes* shapes, const std::function<bool(int)>& nodes,
                   const std::function<bool(int)>& keep, const std::string& graph_name,
                   std::vector<Record>* records);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_LAYOUT_LAYOUT_H_
