#include "plugin/c_api.h"

#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>

#include "google/protobuf/arena.h"
#include "kernels/cpu/targets.h"
#include "plugin/build_info.h"
#include "plugin/optimizer.h"
#include "plugin/report.h"
#include "plugin/rewrite.h"
#include "tensorflow/core/grappler/optimizers/custom_graph_optimizer_registry.h"

namespace {

char* Copy(const std::string& text) {
  char* copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy != nullptr) std::memcpy(copy, text.c_str(), text.size() + 1);
  return copy;
}

}  // namespace

const char* NvNormsBuildInfo() { return NV_NORMS_BUILD_INFO_JSON; }

void NvNormsSetEnabled(int enabled) { nv_norms::SetEnabled(enabled != 0); }
void NvNormsSetExporting(int exporting) { nv_norms::SetExporting(exporting != 0); }

int NvNormsIsEnabled() { return nv_norms::IsEnabled() ? 1 : 0; }

int NvNormsDeviceTypeIsFree(const char* device_type) {
  return tensorflow::grappler::PluginGraphOptimizerRegistry::CreateOptimizers({device_type}).empty()
             ? 1
             : 0;
}

int NvNormsCpuTarget(char** message) {
  const nv_norms::Status& status = nv_norms::cpu::TargetStatus();
  *message = Copy(status.message());
  return status.ok() ? 1 : 0;
}

char* NvNormsTakeReport() {
  const nv_norms::Report report = nv_norms::TakeReport();
  return Copy("{\"records\": " + nv_norms::ToJson(report.records) +
              ", \"dropped\": " + std::to_string(report.dropped) + "}");
}

int NvNormsRewrite(const void* graph_def, size_t size, const char* device, const char* fetches,
                   int layouts, int compiled, void** out, size_t* out_size, char** records_json,
                   char** error) {
  *out = nullptr;
  *out_size = 0;
  *records_json = nullptr;
  *error = nullptr;
  google::protobuf::Arena arena;  // a graph of many nodes is long to free one by one
  auto& graph = *google::protobuf::Arena::Create<tensorflow::GraphDef>(&arena);
  if (!graph.ParseFromArray(graph_def, static_cast<int>(size))) {
    *error = Copy("expected a serialized GraphDef, got bytes that are none");
    return 1;
  }
  std::vector<std::string> names;
  std::stringstream list(fetches);
  for (std::string name; std::getline(list, name, ',');) {
    if (!name.empty()) names.push_back(name);
  }
  std::vector<nv_norms::Record> records;
  const absl::Status status =
      nv_norms::RewriteOffline(device, names, layouts != 0, compiled != 0, &graph, &records);
  if (!status.ok()) {
    *error = Copy(std::string(status.message()));
    return 1;
  }
  std::string bytes;
  if (!graph.SerializeToString(&bytes)) {
    *error = Copy("the rewritten graph is larger than the 2 GiB that a GraphDef may have");
    return 1;
  }
  *out = std::malloc(bytes.size() + 1);
  if (*out == nullptr) {
    *error = Copy("out of memory");
    return 1;
  }
  std::memcpy(*out, bytes.data(), bytes.size());
  *out_size = bytes.size();
  *records_json = Copy(nv_norms::ToJson(records));
  return 0;
}

void NvNormsFree(void* memory) { std::free(memory); }
