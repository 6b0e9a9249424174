#include "kernels/cpu/norms.h"
#include "kernels/xla/call.h"
#include "kernels/xla/handlers/cpu_threads.h"
#include "kernels/xla/handlers/ffi.h"
#include "kernels/xla/handlers/handler.h"

namespace nv_norms {
namespace xla_call {
namespace {

namespace ffi = xla::ffi;

ffi::Error Forward(ffi::ThreadPool threads, ffi::RemainingArgs operands, ffi::RemainingRets results,
                   ffi::Dictionary attributes) {
  ForwardProblem problem;
  ForwardBuffers buffers;
  Workspace workspace;
  const Status status = Read(operands, results, attributes, &problem, &buffers, &workspace);
  if (!status.ok()) return ToXla(status);
  return ToXla(cpu::Forward(problem, buffers, ThreadsOf(&threads)));
}

ffi::Error Backward(ffi::ThreadPool threads, ffi::RemainingArgs operands,
                    ffi::RemainingRets results, ffi::Dictionary attributes) {
  BackwardProblem problem;
  BackwardBuffers buffers;
  Workspace workspace;
  const Status status = Read(operands, results, attributes, &problem, &buffers, &workspace);
  if (!status.ok()) return ToXla(status);
  return ToXla(cpu::Backward(problem, buffers, ThreadsOf(&threads)));
}

auto Signature() {
  return ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().RemainingArgs().RemainingRets().Attrs();
}

XLA_FFI_DEFINE_HANDLER(ForwardHandler, Forward, Signature());
XLA_FFI_DEFINE_HANDLER(BackwardHandler, Backward, Signature());

[[maybe_unused]] const bool registered = Register(kForwardTarget, "Host", ForwardHandler) &&
                                         Register(kBackwardTarget, "Host", BackwardHandler);

}  // namespace
}  // namespace xla_call
}  // namespace nv_norms
