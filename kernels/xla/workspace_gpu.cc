#include "kernels/xla/workspace_gpu.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <vector>

#include "kernels/cuda/norms.h"

namespace nv_norms {
namespace xla_call {
namespace {

// Asked without a context on any of them. Empty where the driver does not answer.
std::vector<cuda::Device> AllDevices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) count = 0;
  std::vector<cuda::Device> devices;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    cuda::Device device;
    // One that the library has no code for runs no kernel.
    if (cuda::DeviceAt(ordinal, &device).ok() && device.capability != 0) devices.push_back(device);
  }
  return devices;
}

const std::vector<cuda::Device>& Devices() {
  static const auto* devices = new std::vector<cuda::Device>(AllDevices());
  return *devices;
}

template <typename Plan>
Status Largest(const Plan& plan, int64_t* bytes) {
  *bytes = 0;
  for (const cuda::Device& device : Devices()) {
    int64_t wanted = 0;
    const Status status = plan(device, &wanted);
    if (!status.ok()) return status;
    *bytes = std::max(*bytes, wanted);
  }
  return Status();
}

}  // namespace

Status WorkspaceOnGpu(const ForwardProblem& problem, int64_t* bytes) {
  return Largest(
      [&](const cuda::Device& device, int64_t* wanted) {
        cuda::ForwardPlan plan;
        const Status status = cuda::PlanForward(problem, device, &plan);
        *wanted = plan.workspace;
        return status;
      },
      bytes);
}

Status WorkspaceOnGpu(const BackwardProblem& problem, bool want_dx, bool want_params,
                      int64_t* bytes) {
  return Largest(
      [&](const cuda::Device& device, int64_t* wanted) {
        cuda::BackwardPlan plan;
        const Status status = cuda::PlanBackward(problem, device, want_dx, want_params, &plan);
        *wanted = plan.workspace;
        return status;
      },
      bytes);
}

}  // namespace xla_call
}  // namespace nv_norms
