#include <limits>

#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/code.h"
#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/known.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/norms.h"

namespace nv_norms {
namespace cuda {

Status DeviceAt(int ordinal, Device* device) {
  int major = 0;
  int minor = 0;
  const auto ask = [&](cudaDeviceAttr attribute, int* value) {
    return FromCuda(cudaDeviceGetAttribute(value, attribute, ordinal), "cudaDeviceGetAttribute");
  };
  NV_NORMS_RETURN_IF_ERROR(ask(cudaDevAttrComputeCapabilityMajor, &major));
  NV_NORMS_RETURN_IF_ERROR(ask(cudaDevAttrComputeCapabilityMinor, &minor));
  NV_NORMS_RETURN_IF_ERROR(ask(cudaDevAttrMultiProcessorCount, &device->multiprocessors));
  NV_NORMS_RETURN_IF_ERROR(ask(cudaDevAttrMaxSharedMemoryPerBlockOptin, &device->shared_bytes));
  device->capability = CodeFor(10 * major + minor);
  return Status();
}

Status CurrentDevice(Device* device) {
  static auto& known = *new Known<int, Device>;
  int ordinal = 0;
  NV_NORMS_RETURN_IF_ERROR(FromCuda(cudaGetDevice(&ordinal), "cudaGetDevice"));
  if (known.Find(ordinal, device)) return Status();
  Device found;
  NV_NORMS_RETURN_IF_ERROR(DeviceAt(ordinal, &found));
  known.Keep(ordinal, found);
  *device = found;
  return Status();
}

namespace {

// Whether the activation's gradient may be a pass of its own, into the last part of the workspace.
bool ActivatedApart(const BackwardPlan& plan) {
  return Activated(plan.problem) &&
         !(plan.kernel == Kernel::kColumns && ActivatedInColumns(plan.problem));
}

}  // namespace

Status PlanForward(const ForwardProblem& problem, const Device& device, ForwardPlan* plan) {
  *plan = ForwardPlan();
  plan->problem = problem;
  plan->device = device;
  if (problem.geometry.elements == 0) return Status();
  switch (problem.geometry.layout) {
    case Layout::kRows:
      PlanForwardRows(plan);
      break;
    case Layout::kColumns:
      PlanForwardColumns(plan);
      break;
    case Layout::kGeneral:
      plan->kernel = Kernel::kGeneral;
      break;
  }
  if (plan->kernel == Kernel::kGeneral) plan->workspace = ForwardGeneralBytes(*plan);
  return Status();
}

Status PlanBackward(const BackwardProblem& problem, const Device& device, bool want_dx,
                    bool want_params, BackwardPlan* plan) {
  *plan = BackwardPlan();
  plan->problem = problem;
  plan->device = device;
  plan->want_dx = want_dx;
  plan->want_params = want_params;
  if (problem.geometry.elements == 0) return Status();
  switch (problem.geometry.layout) {
    case Layout::kRows:
      PlanBackwardRows(plan);
      break;
    case Layout::kColumns:
      PlanBackwardColumns(plan);
      break;
    case Layout::kGeneral:
      plan->kernel = Kernel::kGeneral;
      break;
  }
  if (plan->kernel == Kernel::kGeneral) plan->workspace = BackwardGeneralBytes(*plan);
  if (ActivatedApart(*plan)) plan->workspace += ActivationGradientBytes(problem);
  return Status();
}

namespace {

Status LaunchNorm(const ForwardPlan& plan, const ForwardBuffers& buffers, void* workspace,
                  void* stream) {
  const ForwardProblem& problem = plan.problem;
  switch (plan.kernel) {
    case Kernel::kNothing: {
      const double nan = std::numeric_limits<double>::quiet_NaN();
      const int64_t count = problem.geometry.statistics;
      NV_NORMS_RETURN_IF_ERROR(LaunchFill(problem.stat(), buffers.mean, count, nan, stream));
      return LaunchFill(problem.stat(), buffers.rstd, count, nan, stream);
    }
    case Kernel::kRows:
      return LaunchForwardRows(plan, buffers, workspace, stream);
    case Kernel::kColumns:
      return LaunchForwardColumns(plan, buffers, workspace, stream);
    case Kernel::kGeneral:
      return LaunchForwardGeneral(plan, buffers, workspace, stream);
  }
  return Status();
}

Status LaunchNorm(const BackwardPlan& plan, const BackwardBuffers& buffers, void* workspace,
                  void* stream) {
  const BackwardProblem& problem = plan.problem;
  switch (plan.kernel) {
    case Kernel::kNothing: {
      const int64_t count = problem.geometry.params;
      NV_NORMS_RETURN_IF_ERROR(LaunchFill(problem.dparam, buffers.dgamma, count, 0.0, stream));
      return LaunchFill(problem.dparam, buffers.dbeta, count, 0.0, stream);
    }
    case Kernel::kRows:
      return LaunchBackwardRows(plan, buffers, workspace, stream);
    case Kernel::kColumns:
      return LaunchBackwardColumns(plan, buffers, workspace, stream);
    case Kernel::kGeneral:
      return LaunchBackwardGeneral(plan, buffers, workspace, stream);
  }
  return Status();
}

}  // namespace

Status Launch(const ForwardPlan& plan, const ForwardBuffers& buffers, void* workspace,
              void* stream) {
  const ForwardProblem& problem = plan.problem;
  if (!Activated(problem) || plan.kernel == Kernel::kNothing) {
    return LaunchNorm(plan, buffers, workspace, stream);
  }
  bool launched = false;
  if (plan.kernel == Kernel::kColumns && ActivatedOnChip(problem)) {
    NV_NORMS_RETURN_IF_ERROR(
        LaunchForwardColumnsOnChip(plan, buffers, workspace, stream, &launched));
  } else if (plan.kernel == Kernel::kRows && ActivatedOnChip(problem)) {
    NV_NORMS_RETURN_IF_ERROR(
        LaunchForwardSegmentsOnChip(plan, buffers, workspace, stream, &launched));
  }
  if (launched) return Status();
  NV_NORMS_RETURN_IF_ERROR(LaunchNorm(WithoutActivation(plan), buffers, workspace, stream));
  return LaunchActivation(problem, buffers.y, stream);
}

Status Launch(const BackwardPlan& plan, const BackwardBuffers& buffers, void* workspace,
              void* stream) {
  const BackwardProblem& problem = plan.problem;
  if (plan.kernel == Kernel::kNothing || !ActivatedApart(plan)) {
    return LaunchNorm(plan, buffers, workspace, stream);
  }
  if (plan.kernel == Kernel::kRows && ActivatedOnChip(problem)) {
    bool launched = false;
    NV_NORMS_RETURN_IF_ERROR(
        LaunchBackwardSegmentsOnChip(plan, buffers, workspace, stream, &launched));
    if (launched) return Status();
  }
  void* const dy =
      static_cast<char*>(workspace) + plan.workspace - ActivationGradientBytes(problem);
  return LaunchApart(plan, buffers, dy, stream,
                     [&](const BackwardPlan& plain, const BackwardBuffers& activated) {
                       return LaunchNorm(plain, activated, workspace, stream);
                     });
}

}  // namespace cuda
}  // namespace nv_norms
