#include "kernels/cuda/driver.h"

#include <cstring>
#include <string>

#include "kernels/cuda/code.h"

#if NV_NORMS_CUDA
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#endif

namespace nv_norms {
namespace {

struct Answer {
  bool usable = false;
  std::string message;
};

#if NV_NORMS_CUDA

std::string Version(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

// 0 without a driver. The driver is asked itself, as the runtime's cudaDriverGetVersion calls
// cuInit. It stays loaded: CUDA's runtime will load it, too.
int DriverVersion() {
  void* driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (driver == nullptr) return 0;
  using GetVersion = int (*)(int*);
  const auto get = reinterpret_cast<GetVersion>(dlsym(driver, "cuDriverGetVersion"));
  int version = 0;
  return get != nullptr && get(&version) == 0 ? version : 0;
}

Answer AskDriver() {
  const int driver = DriverVersion();
  if (driver == 0) return {false, "no NVIDIA driver is installed"};
  // A driver runs every runtime of its own major version.
  if (driver / 1000 < CUDART_VERSION / 1000) {
    return {false, "the NVIDIA driver supports CUDA " + Version(driver) + ", this build needs " +
                       std::to_string(CUDART_VERSION / 1000) +
                       ".0 or newer: update the driver, or build with an older CUDA compiler"};
  }
  return {true,
          "driver for CUDA " + Version(driver) + ", built with CUDA " + Version(CUDART_VERSION)};
}

Answer AskDevices() {
  const Answer driver = AskDriver();
  if (!driver.usable) return driver;
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error != cudaSuccess) {
    return {false, std::string("no usable NVIDIA GPU: ") + cudaGetErrorString(error)};
  }
  if (devices == 0) return {false, "no usable NVIDIA GPU"};
  for (int device = 0; device < devices; ++device) {
    int major = 0;
    int minor = 0;
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
    if (cuda::CodeFor(major * 10 + minor) == 0) {
      return {false, "GPU " + std::to_string(device) + " has compute capability " +
                         std::to_string(major) + "." + std::to_string(minor) +
                         ", this build has code for " + cuda::CompiledFor() +
                         ": build with NV_NORMS_CUDA_ARCHITECTURES=sm_" + std::to_string(major) +
                         std::to_string(minor)};
    }
  }
  return {true, std::to_string(devices) + " GPU(s), " + driver.message};
}

#else

Answer AskDriver() {
  return {false, "built for the CPU alone: build again where the NVIDIA driver is"};
}
Answer AskDevices() { return AskDriver(); }

#endif

int Tell(const Answer& answer, char** message) {
  if (message != nullptr) *message = strdup(answer.message.c_str());
  return answer.usable ? 1 : 0;
}

}  // namespace
}  // namespace nv_norms

extern "C" int NvNormsCudaDriver(char** message) {
  return nv_norms::Tell(nv_norms::AskDriver(), message);
}

extern "C" int NvNormsCudaDevices(char** message) {
  static const auto* const answer = new nv_norms::Answer(nv_norms::AskDevices());
  return nv_norms::Tell(*answer, message);
}
