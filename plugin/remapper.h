#ifndef NV_NORMS_PLUGIN_REMAPPER_H_
#define NV_NORMS_PLUGIN_REMAPPER_H_

#include <string>
#include <unordered_set>
#include <vector>

#include "absl/status/statusor.h"
#include "plugin/report.h"
#include "tensorflow/c/experimental/grappler/grappler.h"
#include "tensorflow/core/framework/graph.pb.h"

namespace nv_norms {

struct RemapperOptions {
  // "CPU" or "GPU": nodes placed on other types of device are left alone. Empty: all nodes.
  std::string device_type;
  std::unordered_set<std::string> preserve;  // names of nodes that must stay
  std::unordered_set<std::string> feeds;     // names of nodes whose values come from outside
  std::string graph_name;
  bool layouts = true;  // change layouts around fused norms, too
  // The graph is for a compiler that computes elementwise ops together.
  bool compiled = false;
  bool check = false;  // an error for a graph that is none, even if it holds no normalization
};

// Whether there may be anything to look at: a quick answer for most graphs, by their ops.
bool MayHoldNormalizations(const tensorflow::GraphDef& graph, const std::string& name);

// Recognizes the normalizations in `graph` and fuses them in `remapped`. `item` holds the same
// graph, for shape inference. True if anything changed, else `remapped` is of no use; `records`
// tells what was found either way.
absl::StatusOr<bool> Remap(const tensorflow::GraphDef& graph, TF_GrapplerItem* item,
                           const RemapperOptions& options, tensorflow::GraphDef* remapped,
                           std::vector<Record>* records);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_REMAPPER_H_
