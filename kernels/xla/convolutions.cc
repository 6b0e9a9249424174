#include "kernels/xla/convolutions.h"

#include "xla/debug_options_flags.h"

extern "C" const char* NvNormsConvolutionFormat() {
  const xla::DebugOptions flags = xla::GetDebugOptionsFromFlags();
  if (flags.xla_gpu_force_conv_nchw()) return "NC...";  // the stronger one in XLA, too
  return flags.xla_gpu_force_conv_nhwc() ? "N...C" : "";
}
