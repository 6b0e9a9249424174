#include "kernels/xla/workspace_gpu.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <vector>

#include "kernels/cuda/norms.h"

namespace nv_norms {
namespace xla_call {
namespace {

struct Kind {
  int ordinal = 0;  // the first device of it
  cuda::Device device;
};

// The kinds of devices that there are. Empty where the driver does not answer.
std::vector<Kind> AllKinds() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) count = 0;
  std::vector<Kind> kinds;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    cuda::Device device;
    // One that the library has no code for runs no kernel.
    if (!cuda::DeviceAt(ordinal, &device).ok() || device.capability == 0) continue;
    const bool known = std::any_of(kinds.begin(), kinds.end(),
                                   [&](const Kind& kind) { return kind.device == device; });
    if (!known) kinds.push_back({ordinal, device});
  }
  return kinds;
}

const std::vector<Kind>& Kinds() {
  static const auto* kinds = new std::vector<Kind>(AllKinds());
  return *kinds;
}

// Plans ask the driver what fits on the current device. If all are alike it stays what it is:
// another one would get a context, which takes memory.
class Current {
 public:
  explicit Current(int ordinal)
      : changed_(Kinds().size() > 1 && cudaGetDevice(&before_) == cudaSuccess) {
    if (changed_) cudaSetDevice(ordinal);
  }
  ~Current() {
    if (changed_) cudaSetDevice(before_);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  int before_ = 0;
  const bool changed_;
};

template <typename Plan>
Status Largest(const Plan& plan, int64_t* bytes) {
  *bytes = 0;
  for (const Kind& kind : Kinds()) {
    const Current current(kind.ordinal);
    int64_t wanted = 0;
    const Status status = plan(kind.device, &wanted);
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
