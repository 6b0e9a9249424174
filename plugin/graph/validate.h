#ifndef NV_NORMS_PLUGIN_GRAPH_VALIDATE_H_
#define NV_NORMS_PLUGIN_GRAPH_VALIDATE_H_

#include "absl/status/status.h"
#include "tensorflow/core/framework/graph.pb.h"

namespace nv_norms {

// An error for what ends TensorFlow's shape inference with the process, as a graph from a file may
// have it, or ours: a node without an attribute or an input that its op needs, a control input
// before another input, a function that calls itself.
absl::Status ValidateForInference(const tensorflow::GraphDef& graph);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_GRAPH_VALIDATE_H_
