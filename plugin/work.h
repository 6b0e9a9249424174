#ifndef NV_NORMS_PLUGIN_WORK_H_
#define NV_NORMS_PLUGIN_WORK_H_

#include <functional>
#include <vector>

#include "plugin/graph/view.h"
#include "plugin/remapper.h"

namespace nv_norms {

// What there is to do in a graph.
struct Work {
  std::vector<int> anchors;  // by ascending order
  bool layouts = false;      // Transposes beside fused normalizations
  bool casts = false;        // Casts beside fused normalizations
  bool activations = false;  // activations behind fused normalizations

  bool wants_shapes() const { return !anchors.empty() || layouts || activations; }
  bool none() const { return !wants_shapes() && !casts; }
};

// `nodes`: which may be changed. `keep`: whose values must stay under their names.
Work WorkIn(GraphView* graph, const RemapperOptions& options, const std::function<bool(int)>& nodes,
            const std::function<bool(int)>& keep);

// Those of `nodes` that a GPU will run: on a CPU an activation of its own costs what it costs
// inside.
std::function<bool(int)> GpuNodes(const GraphView& view, const std::function<bool(int)>& nodes);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_WORK_H_
