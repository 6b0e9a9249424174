#include "kernels/tensorflow/cpu_threads.h"

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/loop.h"
#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/platform/threadpool.h"

namespace nv_norms {

cpu::ParallelFor ThreadsOf(tensorflow::OpKernelContext* ctx) {
  const auto* workers = ctx->device()->tensorflow_cpu_worker_threads();
  return [workers](int64_t total, int64_t cost_per_unit, const cpu::Work& work) {
    const int64_t block = cpu::BlockSize(total, cost_per_unit, workers->num_threads);
    // Not the pool's own ParallelFor: that waits for a thread to wake up and take the first half,
    // even where all is done sooner without it.
    cpu::RunLoop(total, block, workers->num_threads, work,
                 [workers](auto help) { workers->workers->Schedule(help); });
  };
}

}  // namespace nv_norms
