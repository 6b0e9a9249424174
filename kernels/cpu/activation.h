// The activation behind a norm (problem.h), in passes of its own.
#ifndef NV_NORMS_KERNELS_CPU_ACTIVATION_H_
#define NV_NORMS_KERNELS_CPU_ACTIVATION_H_

#include <cstdint>
#include <memory>
#include <new>
#include <string>

#include "kernels/cpu/norms.h"
#include "kernels/problem.h"
#include "kernels/status.h"

namespace nv_norms {
namespace cpu {

// A: the type that the norm is computed in, float or double.

// What stands between the two, or null.
template <typename A>
std::unique_ptr<A[]> Room(int64_t elements) {
  return std::unique_ptr<A[]>(new (std::nothrow) A[static_cast<size_t>(elements)]);
}
template <typename A>
Status NoRoom(int64_t elements) {
  return Status::Internal("an activation wants " +
                          std::to_string(elements * static_cast<int64_t>(sizeof(A))) +
                          " bytes of memory, which there are not");
}

// y, of problem.y, from what the norm gave. Both may be the same memory.
template <typename A>
void Activate(const ForwardProblem& problem, const A* norm, void* y,
              const ParallelFor& parallel_for);

// dy times the derivative.
template <typename A>
void PassGradient(const BackwardProblem& problem, const BackwardBuffers& buffers, A* out,
                  const ParallelFor& parallel_for);

}  // namespace cpu
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CPU_ACTIVATION_H_
