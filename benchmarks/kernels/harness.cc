// The CUDA kernel library behind two C functions, for tests and benchmarks that need no TensorFlow.
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/cuda/norms.h"

namespace {

using nv_norms::DType;
using nv_norms::Formula;
using nv_norms::Geometry;
using nv_norms::Status;

}  // namespace

// A problem: axis of a layer or RMS norm, or (count_axis = 0) groups and channels_last of a group
// norm.
struct HarnessProblem {
  int64_t dims[16];
  int64_t rank;
  int64_t axis[16];
  int64_t count_axis;
  int64_t groups;
  int64_t channels_last;
  int64_t formula;
  double epsilon;
  int64_t x;
  int64_t param;
  int64_t y;       // forward: y; backward: dx
  int64_t dy;      // backward only
  int64_t dparam;  // backward only
};

namespace {

Status MakeGeometry(const HarnessProblem& p, Geometry* out) {
  const std::vector<int64_t> dims(p.dims, p.dims + p.rank);
  if (p.count_axis > 0) {
    return nv_norms::LayerNormGeometry(dims, {p.axis, p.axis + p.count_axis}, out);
  }
  return nv_norms::GroupNormGeometry(dims, p.channels_last != 0, p.groups, out);
}

int64_t Fail(const Status& status, char* error, int64_t size) {
  std::snprintf(error, static_cast<size_t>(size), "%s", status.message().c_str());
  return -1;
}

template <typename Plan, typename Buffers>
int64_t Finish(const Status& planned, const Plan& plan, const Buffers& buffers, void* workspace,
               int64_t workspace_size, void* stream, char* error, int64_t error_size) {
  if (!planned.ok()) return Fail(planned, error, error_size);
  if (workspace_size < plan.workspace || workspace_size < 0) return plan.workspace;
  const Status status = nv_norms::cuda::Launch(plan, buffers, workspace, stream);
  return status.ok() ? plan.workspace : Fail(status, error, error_size);
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
  Status status = MakeGeometry(*p, &problem.geometry);
  problem.formula = static_cast<Formula>(p->formula);
  problem.epsilon = p->epsilon;
  problem.x = static_cast<DType>(p->x);
  problem.param = static_cast<DType>(p->param);
  problem.y = static_cast<DType>(p->y);
  if (status.ok()) status = nv_norms::cuda::CurrentDevice(&device);
  if (status.ok()) status = nv_norms::cuda::PlanForward(problem, device, &plan);
  return Finish(status, plan, *buffers, workspace, workspace_size, stream, error, error_size);
}

int64_t HarnessBackward(const HarnessProblem* p, const nv_norms::BackwardBuffers* buffers,
                        void* workspace, int64_t workspace_size, void* stream, char* error,
                        int64_t error_size) {
  nv_norms::BackwardProblem problem;
  nv_norms::cuda::Device device;
  nv_norms::cuda::BackwardPlan plan;
  Status status = MakeGeometry(*p, &problem.geometry);
  problem.formula = static_cast<Formula>(p->formula);
  problem.x = static_cast<DType>(p->x);
  problem.param = static_cast<DType>(p->param);
  problem.dx = static_cast<DType>(p->y);
  problem.dy = static_cast<DType>(p->dy);
  problem.dparam = static_cast<DType>(p->dparam);
  if (status.ok()) status = nv_norms::cuda::CurrentDevice(&device);
  if (status.ok()) {
    status = nv_norms::cuda::PlanBackward(problem, device, buffers->dx != nullptr,
                                          buffers->dgamma != nullptr || buffers->dbeta != nullptr,
                                          &plan);
  }
  return Finish(status, plan, *buffers, workspace, workspace_size, stream, error, error_size);
}
}
