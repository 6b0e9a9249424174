#ifndef NV_NORMS_PLUGIN_C_API_H_
#define NV_NORMS_PLUGIN_C_API_H_

#include <stddef.h>

// What Python calls. Strings that are handed out belong to the caller, who gives them back to
// NvNormsFree, except where it says otherwise.
extern "C" {

// JSON: the TensorFlow and CUDA versions and GPU architectures that this was built for. Static.
const char* NvNormsBuildInfo();

void NvNormsSetEnabled(int enabled);
int NvNormsIsEnabled();

// Whether the calling thread has graphs optimized to hand them out, not to run them.
void NvNormsSetExporting(int exporting);

// 1 if no plugin holds the graph optimizer of this device type: registering a second one would end
// the process.
int NvNormsDeviceTypeIsFree(const char* device_type);

// 1 where the CPU kernels run; 0 if the environment asks for what they cannot do, and *message says
// so. Chooses their instruction set, once for all.
int NvNormsCpuTarget(char** message);

// JSON: the records since the last call, and how many more were dropped.
char* NvNormsTakeReport();

// Runs the pass on a serialized GraphDef, its library's functions included. `device` names the
// device that nodes are on if they name none; `fetches` are node names, comma separated; empty: all
// nodes that nobody reads; `layouts` is not 0 if layouts around fused norms may change, too;
// `compiled` if the graph is for a compiler that computes elementwise ops together. 0 and the new
// graph, or another number and *error.
int NvNormsRewrite(const void* graph_def, size_t size, const char* device, const char* fetches,
                   int layouts, int compiled, void** out, size_t* out_size, char** records_json,
                   char** error);

void NvNormsFree(void* memory);

}  // extern "C"

#endif  // NV_NORMS_PLUGIN_C_API_H_
