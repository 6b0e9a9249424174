#ifndef NV_NORMS_KERNELS_XLA_WORKSPACE_GPU_H_
#define NV_NORMS_KERNELS_XLA_WORKSPACE_GPU_H_

#include <cstdint>

#include "kernels/problem.h"
#include "kernels/status.h"

namespace nv_norms {
namespace xla_call {

// The workspace that is enough on every GPU of this machine: a function is compiled before it is
// known on which of them it runs.
#ifdef NV_NORMS_CUDA
Status WorkspaceOnGpu(const ForwardProblem& problem, int64_t* bytes);
Status WorkspaceOnGpu(const BackwardProblem& problem, bool want_dx, bool want_params,
                      int64_t* bytes);
#else  // nor has a GPU our ops
inline Status WorkspaceOnGpu(const ForwardProblem&, int64_t*) { return Status(); }
inline Status WorkspaceOnGpu(const BackwardProblem&, bool, bool, int64_t*) { return Status(); }
#endif

}  // namespace xla_call
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_XLA_WORKSPACE_GPU_H_
