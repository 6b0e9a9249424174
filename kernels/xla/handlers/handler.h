// What XLA hands to a handler, turned into the kernel library's problems.
#ifndef NV_NORMS_KERNELS_XLA_HANDLERS_HANDLER_H_
#define NV_NORMS_KERNELS_XLA_HANDLERS_HANDLER_H_

#include <cstdint>

#include "kernels/problem.h"
#include "kernels/status.h"
#include "kernels/xla/handlers/ffi.h"

namespace nv_norms {
namespace xla_call {

struct Workspace {
  void* data = nullptr;
  int64_t bytes = 0;
};

Status Read(const xla::ffi::RemainingArgs& operands, const xla::ffi::RemainingRets& results,
            const xla::ffi::Dictionary& attributes, ForwardProblem* problem,
            ForwardBuffers* buffers, Workspace* workspace);
Status Read(const xla::ffi::RemainingArgs& operands, const xla::ffi::RemainingRets& results,
            const xla::ffi::Dictionary& attributes, BackwardProblem* problem,
            BackwardBuffers* buffers, Workspace* workspace);

xla::ffi::Error ToXla(const Status& status);

// Makes a handler known to XLA. It is an error of ours, and logged, if XLA does not take it.
bool Register(const char* target, const char* platform, XLA_FFI_Handler* handler,
              XLA_FFI_Handler_Traits traits = 0);

}  // namespace xla_call
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_XLA_HANDLERS_HANDLER_H_
