#include "plugin/graph/devices.h"

#include <algorithm>

namespace nv_norms {
namespace {

bool Contains(const std::string& device, const std::string& part) {
  return device.find(part) != std::string::npos;
}

constexpr char kLocalJob[] = "/job:localhost";

}  // namespace

bool OnDevice(const std::string& device, const std::string& device_type) {
  if (device.empty() || device_type.empty()) return true;
  return Contains(device, "device:" + device_type + ":") ||
         Contains(device, "/" + device_type + ":");
}

bool IsLocal(const std::string& device) {
  return !Contains(device, "/job:") || Contains(device, kLocalJob);
}

bool HasLocalNodes(const tensorflow::GraphDef& graph) {
  return std::any_of(graph.node().begin(), graph.node().end(),
                     [](const auto& node) { return Contains(node.device(), kLocalJob); });
}

}  // namespace nv_norms
