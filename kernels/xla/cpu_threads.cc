#include "kernels/xla/cpu_threads.h"

#include <algorithm>
#include <condition_variable>
#include <memory>
#include <mutex>

namespace nv_norms {
namespace xla_call {
namespace {

// The blocks of one loop. The thread that wants the loop takes blocks too, so all are done even if
// no other thread ever comes; helpers that come late find none left and touch nothing else.
class Loop {
 public:
  Loop(int64_t total, int64_t block, const cpu::Work& work)
      : total_(total), block_(block), work_(&work) {}

  void TakeBlocks() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (next_ < total_) {
      const int64_t begin = next_;
      const int64_t end = next_ = std::min(total_, begin + block_);
      ++running_;
      lock.unlock();
      (*work_)(begin, end);
      lock.lock();
      --running_;
    }
    if (running_ == 0) done_.notify_all();
  }

  void Wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    done_.wait(lock, [this] { return next_ >= total_ && running_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable done_;
  const int64_t total_;
  const int64_t block_;
  const cpu::Work* work_;  // there while blocks are
  int64_t next_ = 0;
  int64_t running_ = 0;
};

}  // namespace

cpu::ParallelFor ThreadsOf(xla::ffi::ThreadPool* pool) {
  return [pool](int64_t total, int64_t cost_per_unit, const cpu::Work& work) {
    // As outside of XLA (kernels/tensorflow/cpu_threads.cc).
    constexpr int64_t kMinElements = 16384;
    const int64_t cost = std::max<int64_t>(cost_per_unit, 1);
    const int64_t at_least = (kMinElements + cost - 1) / cost;
    const int64_t threads = std::max<int64_t>(pool->num_threads(), 1);
    const int64_t even = (total + 4 * threads - 1) / (4 * threads);
    const int64_t block = std::max(at_least, even);
    if (total <= block || threads == 1) {
      if (total > 0) work(0, total);
      return;
    }
    auto loop = std::make_shared<Loop>(total, block, work);
    const int64_t blocks = (total + block - 1) / block;
    for (int64_t i = 1; i < std::min(blocks, threads); ++i) {
      pool->Schedule([loop] { loop->TakeBlocks(); });
    }
    loop->TakeBlocks();
    loop->Wait();
  };
}

}  // namespace xla_call
}  // namespace nv_norms
