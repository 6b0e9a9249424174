// A loop that threads share.
#ifndef NV_NORMS_KERNELS_CPU_LOOP_H_
#define NV_NORMS_KERNELS_CPU_LOOP_H_

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>

#include "kernels/cpu/norms.h"

namespace nv_norms {
namespace cpu {

// The blocks of one loop. The thread that wants the loop takes blocks too, so all are done even if
// no other thread ever comes; helpers that come late find none left and touch nothing else.
class Loop {
 public:
  Loop(int64_t total, int64_t block, const Work& work)
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
  const Work* work_;  // there while blocks are
  int64_t next_ = 0;
  int64_t running_ = 0;
};

// Calls work on blocks of [0, total), here and in up to threads - 1 closures that are given to
// schedule(). Waits for those alone that have taken a block.
template <typename Schedule>
void RunLoop(int64_t total, int64_t block, int64_t threads, const Work& work,
             const Schedule& schedule) {
  if (total <= block || threads <= 1) {
    if (total > 0) work(0, total);
    return;
  }
  auto loop = std::make_shared<Loop>(total, block, work);
  const int64_t blocks = (total + block - 1) / block;
  for (int64_t i = 1; i < std::min(blocks, threads); ++i) {
    schedule([loop] { loop->TakeBlocks(); });
  }
  loop->TakeBlocks();
  loop->Wait();
}

}  // namespace cpu
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CPU_LOOP_H_
