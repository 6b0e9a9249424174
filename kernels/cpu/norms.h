// Normalizations on the CPU: entry points of the kernel library. The results do not depend on the
// number of threads: work is cut by shape (and what CPU it is) alone and partial sums are added in
// a fixed order.
#ifndef NV_NORMS_KERNELS_CPU_NORMS_H_
#define NV_NORMS_KERNELS_CPU_NORMS_H_

#include <cstdint>
#include <functional>

#include "kernels/problem.h"
#include "kernels/status.h"

namespace nv_norms {
namespace cpu {

// Calls work(begin, end) on ranges that together are [0, total), possibly at the same time.
// cost_per_unit: elements touched for one unit of total, a hint.
using Work = std::function<void(int64_t begin, int64_t end)>;
using ParallelFor = std::function<void(int64_t total, int64_t cost_per_unit, const Work& work)>;

Status Forward(const ForwardProblem& problem, const ForwardBuffers& buffers,
               const ParallelFor& parallel_for);
Status Backward(const BackwardProblem& problem, const BackwardBuffers& buffers,
                const ParallelFor& parallel_for);

}  // namespace cpu
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CPU_NORMS_H_
