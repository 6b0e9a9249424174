#ifndef NV_NORMS_PLUGIN_REWRITE_H_
#define NV_NORMS_PLUGIN_REWRITE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "plugin/report.h"
#include "tensorflow/core/framework/graph.pb.h"

namespace nv_norms {

// The pass outside of a running program: on a GraphDef and on every function of its library.
// `fetches`: names of nodes to keep; if empty, the nodes that nobody reads. `device`: put on nodes
// that name none while the pass looks at them; "" leaves them so. `layouts`: whether layouts around
// fused norms may change, too; a node then may give another layout than before under its name.
// `compiled`: whether the graph is for a compiler that computes elementwise ops together.
absl::Status RewriteOffline(const std::string& device, const std::vector<std::string>& fetches,
                            bool layouts, bool compiled, tensorflow::GraphDef* graph,
                            std::vector<Record>* records);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_REWRITE_H_
