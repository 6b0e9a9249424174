#ifndef NV_NORMS_PLUGIN_GRAPH_FUNCTIONS_H_
#define NV_NORMS_PLUGIN_GRAPH_FUNCTIONS_H_

#include <string>
#include <unordered_set>

#include "tensorflow/core/framework/graph.pb.h"

namespace nv_norms {

// The functions of a graph's library that XLA compiles when the graph runs, and those that only
// they call: TensorFlow's optimizer leaves these as they are.
std::unordered_set<std::string> FunctionsOfXla(const tensorflow::GraphDef& graph);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_GRAPH_FUNCTIONS_H_
