#include "kernels/cuda/norms.h"
#include "kernels/xla/call.h"
#include "kernels/xla/handlers/ffi.h"
#include "kernels/xla/handlers/handler.h"

namespace nv_norms {
namespace xla_call {
namespace {

namespace ffi = xla::ffi;

Status Plan(const ForwardProblem& problem, const ForwardBuffers&, const cuda::Device& device,
            cuda::ForwardPlan* plan) {
  return cuda::PlanForward(problem, device, plan);
}

Status Plan(const BackwardProblem& problem, const BackwardBuffers& buffers,
            const cuda::Device& device, cuda::BackwardPlan* plan) {
  return cuda::PlanBackward(problem, device, buffers.dx != nullptr,
                            buffers.dgamma != nullptr || buffers.dbeta != nullptr, plan);
}

template <typename Problem, typename Buffers, typename PlanType>
Status Run(void* stream, const ffi::RemainingArgs& operands, const ffi::RemainingRets& results,
           const ffi::Dictionary& attributes) {
  Problem problem;
  Buffers buffers;
  Workspace workspace;
  Status status = Read(operands, results, attributes, &problem, &buffers, &workspace);
  cuda::Device device;
  if (status.ok()) status = cuda::CurrentDevice(&device);
  PlanType plan;
  if (status.ok()) status = Plan(problem, buffers, device, &plan);
  if (!status.ok()) return status;
  if (plan.workspace > workspace.bytes) {
    return Status::Internal("the kernel wants " + std::to_string(plan.workspace) +
                            " bytes of workspace, the function was compiled with " +
                            std::to_string(workspace.bytes));
  }
  return cuda::Launch(plan, buffers, workspace.data, stream);
}

ffi::Error Forward(void* stream, ffi::RemainingArgs operands, ffi::RemainingRets results,
                   ffi::Dictionary attributes) {
  return ToXla(Run<ForwardProblem, ForwardBuffers, cuda::ForwardPlan>(stream, operands, results,
                                                                      attributes));
}

ffi::Error Backward(void* stream, ffi::RemainingArgs operands, ffi::RemainingRets results,
                    ffi::Dictionary attributes) {
  return ToXla(Run<BackwardProblem, BackwardBuffers, cuda::BackwardPlan>(stream, operands, results,
                                                                         attributes));
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
