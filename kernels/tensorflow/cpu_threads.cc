#include "kernels/tensorflow/cpu_threads.h"

#include <algorithm>

#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/platform/threadpool.h"

namespace nv_norms {

cpu::ParallelFor ThreadsOf(tensorflow::OpKernelContext* ctx) {
  const auto* workers = ctx->device()->tensorflow_cpu_worker_threads();
  return [workers](int64_t total, int64_t cost_per_unit, const cpu::Work& work) {
    // Handing a block over costs some microseconds, so a block has enough elements to be worth it,
    // and there are a few blocks to a thread to even out their speeds. Not tuned yet.
    constexpr int64_t kMinElements = 16384;
    const int64_t cost = std::max<int64_t>(cost_per_unit, 1);
    const int64_t at_least = (kMinElements + cost - 1) / cost;
    const int64_t even = (total + 4 * workers->num_threads - 1) / (4 * workers->num_threads);
    const int64_t block = std::max(at_least, even);
    if (total <= block || workers->num_threads == 1) {
      if (total > 0) work(0, total);
      return;
    }
    workers->workers->ParallelFor(total, tsl::thread::ThreadPool::SchedulingParams::Fixed(block),
                                  [&work](int64_t begin, int64_t end) { work(begin, end); });
  };
}

}  // namespace nv_norms
