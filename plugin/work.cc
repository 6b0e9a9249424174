#include "plugin/work.h"

#include <algorithm>

#include "plugin/activations/take_in.h"
#include "plugin/casts/take_in.h"
#include "plugin/graph/devices.h"
#include "plugin/graph/fused_ops.h"
#include "plugin/layout/layout.h"
#include "plugin/recognizer/statistics.h"

namespace nv_norms {

std::function<bool(int)> GpuNodes(const GraphView& view, const std::function<bool(int)>& nodes) {
  return [&view, &nodes](int node) {
    const std::string& device = view.def(node).device();
    return !device.empty() && OnDevice(device, "GPU") && nodes(node);
  };
}

Work WorkIn(GraphView* graph, const RemapperOptions& options, const std::function<bool(int)>& nodes,
            const std::function<bool(int)>& keep) {
  const GraphView& view = *graph;
  Work work;
  bool fused = false;
  for (int node = 0; node < view.num_nodes(); ++node) {
    if (IsAnchor(view, node) && nodes(node)) {
      work.anchors.push_back(node);
    }
    fused = fused || IsFusedNorm(view.op(node));
  }
  std::sort(work.anchors.begin(), work.anchors.end(),
            [&](int a, int b) { return view.order(a) < view.order(b); });
  work.layouts = options.layouts && fused && HasLayoutTransposes(view);
  // After fusions they are looked for in any case.
  if (fused && work.anchors.empty()) {
    work.casts = WouldTakeInCasts(graph, nodes, keep, options.compiled);
    work.activations = WouldTakeInActivations(graph, GpuNodes(view, nodes), keep, options.compiled);
  }
  return work;
}

}  // namespace nv_norms
