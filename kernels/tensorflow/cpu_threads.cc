#include "kernels/tensorflow/cpu_threads.h"

#include "kernels/cpu/blocks.h"
#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/platform/threadpool.h"

namespace nv_norms {

cpu::ParallelFor ThreadsOf(tensorflow::OpKernelContext* ctx) {
  const auto* workers = ctx->device()->tensorflow_cpu_worker_threads();
  return [workers](int64_t total, int64_t cost_per_unit, const cpu::Work& work) {
    const int64_t block = cpu::BlockSize(total, cost_per_unit, workers->num_threads);
    if (total <= block) {
      if (total > 0) work(0, total);
      return;
    }
    workers->workers->ParallelFor(total, tsl::thread::ThreadPool::SchedulingParams::Fixed(block),
                                  [&work](int64_t begin, int64_t end) { work(begin, end); });
  };
}

}  // namespace nv_norms
