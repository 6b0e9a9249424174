#ifndef NV_NORMS_PLUGIN_GRAPH_SLICE_SHAPES_H_
#define NV_NORMS_PLUGIN_GRAPH_SLICE_SHAPES_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "plugin/graph/view.h"

namespace nv_norms {

// The sizes of what a StridedSlice takes of a tensor of these sizes; -1 for those that are not
// known, and nullopt where its operands are not.
std::optional<std::vector<int64_t>> ShapeOfSlice(const GraphView& view, int node,
                                                 const std::vector<int64_t>& from);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_GRAPH_SLICE_SHAPES_H_
