#ifndef NV_NORMS_PLUGIN_OPTIMIZER_H_
#define NV_NORMS_PLUGIN_OPTIMIZER_H_

#include "tensorflow/c/experimental/grappler/grappler.h"

namespace nv_norms {

// Fills in what TF_InitGraph has to, for one device type ("CPU", "GPU"; must outlive the process).
void RegisterOptimizer(const char* device_type, TP_OptimizerRegistrationParams* params,
                       TF_Status* status);

// Whether RegisterOptimizer was called for a device type.
bool IsRegisteredFor(const char* device_type);

// Whether the pass does anything at all.
void SetEnabled(bool enabled);
bool IsEnabled();

// Whether graphs that this thread has optimized are handed out, not run: they stay as they are.
void SetExporting(bool exporting);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_OPTIMIZER_H_
