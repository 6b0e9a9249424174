// The CPU plugin: one library for each device type, because TensorFlow takes one optimizer from
// each.
#include "plugin/optimizer.h"

extern "C" void TF_InitGraph(TP_OptimizerRegistrationParams* params, TF_Status* status) {
  nv_norms::RegisterOptimizer("CPU", params, status);
}
