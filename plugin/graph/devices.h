#ifndef NV_NORMS_PLUGIN_GRAPH_DEVICES_H_
#define NV_NORMS_PLUGIN_GRAPH_DEVICES_H_

#include <string>

#include "tensorflow/core/framework/graph.pb.h"

namespace nv_norms {

// Whether a device of a node is, or may turn out to be, of this type (empty: any).
bool OnDevice(const std::string& device, const std::string& device_type);

// Whether a device of a node is, or may turn out to be, this process's, in a graph that has local
// nodes.
bool IsLocal(const std::string& device);

// Whether a graph that a program runs in parts, some in its own process (its job is "localhost" if
// it is connected to workers), has nodes there. Nodes of other jobs go to processes which may not
// know the fused ops.
bool HasLocalNodes(const tensorflow::GraphDef& graph);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_GRAPH_DEVICES_H_
