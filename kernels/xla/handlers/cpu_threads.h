#ifndef NV_NORMS_KERNELS_XLA_HANDLERS_CPU_THREADS_H_
#define NV_NORMS_KERNELS_XLA_HANDLERS_CPU_THREADS_H_

#include "kernels/cpu/norms.h"
#include "kernels/xla/handlers/ffi.h"

namespace nv_norms {
namespace xla_call {

// The kernel library's ParallelFor on XLA's thread pool, which must outlive it. XLA may call a
// handler from a thread of this very pool, so nothing waits for work that no thread has begun.
cpu::ParallelFor ThreadsOf(xla::ffi::ThreadPool* pool);

}  // namespace xla_call
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_XLA_HANDLERS_CPU_THREADS_H_
