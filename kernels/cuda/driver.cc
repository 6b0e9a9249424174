#include "kernels/cuda/driver.h"

#include <cstring>
#include <string>

#if NV_NORMS_CUDA
#include <cuda_runtime_api.h>
#endif

namespace nv_norms {
namespace {

#if NV_NORMS_CUDA

constexpr int kOldestCapability = 75;  // Turing, the oldest that CUDA 13 compiles for

std::string Version(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

bool Usable(std::string* message) {
  int driver = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
    *message = "no NVIDIA driver is installed";
    return false;
  }
  // A driver runs every runtime of its own major version.
  if (driver / 1000 < CUDART_VERSION / 1000) {
    *message = "the NVIDIA driver supports CUDA " + Version(driver) + ", this build needs " +
               std::to_string(CUDART_VERSION / 1000) +
               ".0 or newer: update the driver, or build with an older CUDA compiler";
    return false;
  }
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error != cudaSuccess || devices == 0) {
    *message = "no usable NVIDIA GPU";
    if (error != cudaSuccess) *message += std::string(": ") + cudaGetErrorString(error);
    return false;
  }
  for (int device = 0; device < devices; ++device) {
    int major = 0;
    int minor = 0;
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
    if (major * 10 + minor < kOldestCapability) {
      *message = "GPU " + std::to_string(device) + " has compute capability " +
                 std::to_string(major) + "." + std::to_string(minor) +
                 ", this build needs 7.5 or newer";
      return false;
    }
  }
  *message = std::to_string(devices) + " GPU(s), driver for CUDA " + Version(driver) +
             ", built with CUDA " + Version(CUDART_VERSION);
  return true;
}

#else

bool Usable(std::string* message) {
  *message = "built without a CUDA compiler: CPU only";
  return false;
}

#endif

}  // namespace
}  // namespace nv_norms

extern "C" int NvNormsCudaDriver(char** message) {
  std::string text;
  const bool usable = nv_norms::Usable(&text);
  if (message != nullptr) *message = strdup(text.c_str());
  return usable ? 1 : 0;
}
