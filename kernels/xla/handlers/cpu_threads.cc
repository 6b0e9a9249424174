#include "kernels/xla/handlers/cpu_threads.h"

#include <algorithm>
#include <utility>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/loop.h"

namespace nv_norms {
namespace xla_call {

cpu::ParallelFor ThreadsOf(xla::ffi::ThreadPool* pool) {
  return [pool](int64_t total, int64_t cost_per_unit, const cpu::Work& work) {
    const int64_t threads = std::max<int64_t>(pool->num_threads(), 1);
    cpu::RunLoop(total, cpu::BlockSize(total, cost_per_unit, threads), threads, work,
                 [pool](auto help) { pool->Schedule(std::move(help)); });
  };
}

}  // namespace xla_call
}  // namespace nv_norms
