#include "kernels/cuda/norms.h"
#include "kernels/xla/call.h"
#include "kernels/xla/ffi.h"
#include "kernels/xla/handler.h"

namespace nv_norms {
namespace xla_call {
namespace {

namespace ffi = xla::ffi;

template <typename Plan, typename Buffers>
Status Launch(const Plan& plan, const Buffers& buffers, const Workspace& workspace, void* stream) {
  if (plan.workspace > workspace.bytes) {
    return Status::Internal("the kernel wants " + std::to_string(plan.workspace) +
                            " bytes of workspace, the function was compiled with " +
                            std::to_string(workspace.bytes));
  }
  return cuda::Launch(plan, buffers, workspace.data, stream);
}

ffi::Error Forward(void* stream, ffi::RemainingArgs operands, ffi::RemainingRets results,
                   ffi::Dictionary attributes) {
  ForwardProblem problem;
  ForwardBuffers buffers;
  Workspace workspace;
  Status status = Read(operands, results, attributes, &problem, &buffers, &workspace);
  cuda::Device device;
  if (status.ok()) status = cuda::CurrentDevice(&device);
  cuda::ForwardPlan plan;
  if (status.ok()) status = cuda::PlanForward(problem, device, &plan);
  if (status.ok()) status = Launch(plan, buffers, workspace, stream);
  return ToXla(status);
}

ffi::Error Backward(void* stream, ffi::RemainingArgs operands, ffi::RemainingRets results,
                    ffi::Dictionary attributes) {
  BackwardProblem problem;
  BackwardBuffers buffers;
  Workspace workspace;
  Status status = Read(operands, results, attributes, &problem, &buffers, &workspace);
  cuda::Device device;
  if (status.ok()) status = cuda::CurrentDevice(&device);
  cuda::BackwardPlan plan;
  if (status.ok()) {
    status = cuda::PlanBackward(problem, device, buffers.dx != nullptr,
                                buffers.dgamma != nullptr || buffers.dbeta != nullptr, &plan);
  }
  if (status.ok()) status = Launch(plan, buffers, workspace, stream);
  return ToXla(status);
}

auto Signature() {
  return ffi::Ffi::Bind().Ctx<ffi::PlatformStream<void*>>().RemainingArgs().RemainingRets().Attrs();
}

// All that they do is launch kernels on the stream, so XLA may put them into a CUDA graph.
constexpr XLA_FFI_Handler_Traits kTraits = XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE;

XLA_FFI_DEFINE_HANDLER(ForwardHandler, Forward, Signature(), {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(BackwardHandler, Backward, Signature(), {ffi::Traits::kCmdBufferCompatible});

[[maybe_unused]] const bool registered =
    Register(kForwardTarget, "CUDA", ForwardHandler, kTraits) &&
    Register(kBackwardTarget, "CUDA", BackwardHandler, kTraits);

}  // namespace
}  // namespace xla_call
}  // namespace nv_norms
