#include "plugin/optimizer.h"

#include <sys/stat.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <mutex>
#include <string>

#include "google/protobuf/arena.h"
#include "kernels/cuda/driver.h"
#include "plugin/remapper.h"
#include "plugin/report.h"
#include "tensorflow/c/tf_buffer.h"
#include "tensorflow/c/tf_status.h"
#include "tensorflow/core/grappler/grappler_item.h"
#include "tensorflow/core/platform/logging.h"

namespace nv_norms {
namespace {

std::atomic<bool>& Enabled() {
  static std::atomic<bool> enabled{true};
  return enabled;
}

// Of this thread: TensorFlow optimizes a graph in the thread that asks for it.
bool& Exporting() {
  thread_local bool exporting = false;
  return exporting;
}

std::atomic<bool>& Registered(const char* device_type) {
  static std::atomic<bool> cpu{false}, gpu{false};
  return std::strcmp(device_type, "GPU") == 0 ? gpu : cpu;
}

// TensorFlow creates one of these for each graph and destroys it afterwards.
struct Optimizer {
  const char* device_type;
};

// What NV_NORMS_DUMP_DIR names, made if its parent exists; nullptr if it names nothing.
const char* DumpFolder() {
  const char* folder = std::getenv("NV_NORMS_DUMP_DIR");
  if (folder == nullptr || *folder == '\0') return nullptr;
  mkdir(folder, 0777);  // where that fails, so does the first file
  return folder;
}

// For people who want to see what the pass is given.
void Dump(const tensorflow::GraphDef& graph, int number, const char* when) {
  static const char* const folder = DumpFolder();
  if (folder == nullptr) return;
  const std::string path =
      std::string(folder) + "/graph_" + std::to_string(number) + "_" + when + ".pb";
  std::ofstream file(path, std::ios::binary);
  if (graph.SerializeToOstream(&file) && file.flush()) return;
  const std::string why = std::strerror(errno);
  static std::once_flag said;
  std::call_once(said, [&] {
    LOG(WARNING) << "NV_NORMS_DUMP_DIR is \"" << folder
                 << "\", expected a folder that can be written, or a new one in a folder that "
                 << "exists: " << path << " is not written (" << why << ")";
  });
}

bool PreservedNodes(const TF_GrapplerItem* item, std::unordered_set<std::string>* names,
                    TF_Status* status) {
  int count = 0;
  size_t size = 0;
  TF_GetNodesToPreserveListSize(item, &count, &size, status);
  if (TF_GetCode(status) != TF_OK) return false;
  std::vector<char*> values(count);
  std::vector<size_t> lengths(count);
  std::string storage(size, '\0');
  if (count > 0) {
    TF_GetNodesToPreserveList(item, values.data(), lengths.data(), count, storage.data(), size,
                              status);
    if (TF_GetCode(status) != TF_OK) return false;
  }
  for (int i = 0; i < count; ++i) {
    // A fetch may carry a port: "y:1".
    std::string name(values[i], lengths[i]);
    const size_t colon = name.find(':');
    names->insert(colon == std::string::npos ? name : name.substr(0, colon));
  }
  return true;
}

void* CreateFor(const char* device_type) { return new Optimizer{device_type}; }
void* CreateForCpu() { return CreateFor("CPU"); }
void* CreateForGpu() { return CreateFor("GPU"); }

void Destroy(void* optimizer) { delete static_cast<Optimizer*>(optimizer); }

// TF_ABORTED tells TensorFlow that nothing was done; it goes on with the graph that it has.
void Abort(TF_Status* status, const std::string& why) {
  TF_SetStatus(status, TF_ABORTED, why.c_str());
}

void Optimize(void* self, const TF_Buffer* /*graph*/, const TF_GrapplerItem* item,
              TF_Buffer* optimized, TF_Status* status) {
  if (!IsEnabled()) return Abort(status, "the normalization rewriter is disabled");
  if (Exporting()) return Abort(status, "the graph may leave the process");
  // The C API hands out neither the item's name nor its feeds; and the graph only serialized,
  // which would have to be parsed even where there is nothing to do.
  const auto& grappler_item = *reinterpret_cast<const tensorflow::grappler::GrapplerItem*>(item);
  static std::atomic<int> count{0};
  const int number = count++;
  Dump(grappler_item.graph, number, "before");
  if (!MayHoldNormalizations(grappler_item.graph, grappler_item.id)) {
    return Abort(status, "no normalization to fuse");
  }
  const char* const device_type = static_cast<const Optimizer*>(self)->device_type;
  // TensorFlow has started CUDA by now, which importing must not.
  if (std::strcmp(device_type, "GPU") == 0 && NvNormsCudaDevices(nullptr) == 0) {
    return Abort(status, "the kernels cannot run on these GPUs");
  }
  RemapperOptions options;
  options.device_type = device_type;
  options.graph_name = grappler_item.id;
  for (const auto& [name, tensor] : grappler_item.feed) {
    options.feeds.insert(name.substr(0, name.find(':')));
  }
  if (!PreservedNodes(item, &options.preserve, status)) {
    return Abort(status, "the nodes to preserve cannot be told");
  }
  std::vector<Record> records;
  google::protobuf::Arena arena;  // a graph of many nodes is long to free one by one
  auto& graph = *google::protobuf::Arena::Create<tensorflow::GraphDef>(&arena);
  const auto changed =
      Remap(grappler_item.graph, const_cast<TF_GrapplerItem*>(item), options, &graph, &records);
  if (!changed.ok()) {
    VLOG(1) << "Graph " << options.graph_name << " is left as it is: " << changed.status();
    return Abort(status, std::string(changed.status().message()));
  }
  if (!*changed) {
    AddToReport(records);
    return Abort(status, "no normalization to fuse");
  }
  Dump(graph, number, "after");
  const size_t size = graph.ByteSizeLong();
  void* data = std::malloc(size);
  if (data == nullptr || !graph.SerializeToArray(data, static_cast<int>(size))) {
    std::free(data);
    return Abort(status, "the rewritten graph cannot be serialized");
  }
  AddToReport(records);
  optimized->data = data;
  optimized->length = size;
  optimized->data_deallocator = [](void* p, size_t) { std::free(p); };
  TF_SetStatus(status, TF_OK, "");
}

}  // namespace

void SetEnabled(bool enabled) { Enabled() = enabled; }
bool IsEnabled() { return Enabled(); }
void SetExporting(bool exporting) { Exporting() = exporting; }
bool IsRegisteredFor(const char* device_type) { return Registered(device_type); }

void RegisterOptimizer(const char* device_type, TP_OptimizerRegistrationParams* params,
                       TF_Status* status) {
  params->struct_size = TP_OPTIMIZER_REGISTRATION_PARAMS_STRUCT_SIZE;
  params->optimizer_configs->struct_size = TP_OPTIMIZER_CONFIGS_STRUCT_SIZE;
  params->optimizer->struct_size = TP_OPTIMIZER_STRUCT_SIZE;
  params->device_type = device_type;
  params->optimizer->create_func =
      std::strcmp(device_type, "GPU") == 0 ? CreateForGpu : CreateForCpu;
  params->optimizer->optimize_func = Optimize;
  params->optimizer->destroy_func = Destroy;
  Registered(device_type) = true;
  TF_SetStatus(status, TF_OK, "");
}

}  // namespace nv_norms
