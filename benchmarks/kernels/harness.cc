// The CUDA kernel library behind two C functions, for tests and benchmarks that need no TensorFlow.
#include <cstdlib>

#include "benchmarks/kernels/problem.h"
#include "kernels/cuda/norms.h"

namespace {

using nv_norms::Finish;
using nv_norms::HarnessProblem;
using nv_norms::Status;

void FromEnvironment(const char* name, int* value) {
  const char* text = std::getenv(name);
  if (text != nullptr) *value = std::atoi(text);
}

// NV_NORMS_MULTIPROCESSORS in the environment: plans for a device with so many, on which small
// tensors are large. NV_NORMS_SHARED_BYTES: for one whose blocks may have so much shared memory.
Status DeviceOf(nv_norms::cuda::Device* device) {
  const Status status = nv_norms::cuda::CurrentDevice(device);
  FromEnvironment("NV_NORMS_MULTIPROCESSORS", &device->multiprocessors);
  FromEnvironment("NV_NORMS_SHARED_BYTES", &device->shared_bytes);
  return status;
}

template <typename Plan, typename Buffers>
int64_t Run(const Status& planned, const Plan& plan, const Buffers& buffers, void* workspace,
            int64_t workspace_size, void* stream, char* error, int64_t error_size) {
  Status status = planned;
  if (status.ok() && workspace_size >= plan.workspace) {
    status = nv_norms::cuda::Launch(plan, buffers, workspace, stream);
  }
  return Finish(status, plan.workspace, error, error_size);
}

}  // namespace

extern "C" {

// The workspace's bytes; launches only if workspace_size (>= 0) is that much. -1: see error.
int64_t HarnessForward(const HarnessProblem* p, const nv_norms::ForwardBuffers* buffers,
                       void* workspace, int64_t workspace_size, void* stream, char* error,
                       int64_t error_size) {
  nv_norms::ForwardProblem problem;
  nv_norms::cuda::Device device;
  nv_norms::cuda::ForwardPlan plan;
  Status status = ForwardOf(*p, &problem);
  if (status.ok()) status = DeviceOf(&device);
  if (status.ok()) status = nv_norms::cuda::PlanForward(problem, device, &plan);
  return Run(status, plan, *buffers, workspace, workspace_size, stream, error, error_size);
}

int64_t HarnessBackward(const HarnessProblem* p, const nv_norms::BackwardBuffers* buffers,
                        void* workspace, int64_t workspace_size, void* stream, char* error,
                        int64_t error_size) {
  nv_norms::BackwardProblem problem;
  nv_norms::cuda::Device device;
  nv_norms::cuda::BackwardPlan plan;
  Status status = BackwardOf(*p, &problem);
  if (status.ok()) status = DeviceOf(&device);
  if (status.ok()) {
    status = nv_norms::cuda::PlanBackward(problem, device, buffers->dx != nullptr,
                                          buffers->dgamma != nullptr || buffers->dbeta != nullptr,
                                          &plan);
  }
  return Run(status, plan, *buffers, workspace, workspace_size, stream, error, error_size);
}
}
