#include "kernels/xla/cpu_threads.h"

#include <algorithm>
#include <utility>

#include "kernels/cpu/loop.h"

namespace nv_norms {
namespace xla_call {

cpu::ParallelFor ThreadsOf(xla::ffi::ThreadPool* pool) {
  return [pool](int64_t total, int64_t cost_per_unit, const cpu::Work& work) {
    // As outside of XLA (kernels/tensorflow/cpu_threads.cc).
    constexpr int64_t kMinElements = 16384;
    const int64_t cost = std::max<int64_t>(cost_per_unit, 1);
    const int64_t at_least = (kMinElements + cost - 1) / cost;
    const int64_t threads = std::max<int64_t>(pool->num_threads(), 1);
    const int64_t even = (total + 4 * threads - 1) / (4 * threads);
    const int64_t block = std::max(at_least, even);
    cpu::RunLoop(total, block, threads, work,
                 [pool](auto help) { pool->Schedule(std::move(help)); });
  };
}

}  // namespace xla_call
}  // namespace nv_norms
