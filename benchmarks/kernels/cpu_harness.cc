// The CPU kernel library behind C functions, for tests and benchmarks that need no TensorFlow; with
// a pool of threads, and the copies that its speed is compared with.
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include "benchmarks/kernels/problem.h"
#include "kernels/cpu/blocks.h"
#include "kernels/cpu/norms.h"
#include "kernels/cpu/targets.h"

namespace {

using nv_norms::Finish;
using nv_norms::HarnessProblem;
using nv_norms::Status;
using nv_norms::cpu::Work;

// Threads that take blocks of a range in turn, the caller's among them.
class Pool {
 public:
  explicit Pool(int threads) {
    for (int i = 1; i < threads; ++i) threads_.emplace_back([this] { Loop(); });
  }
  ~Pool() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
      ++generation_;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  int64_t threads() const { return static_cast<int64_t>(threads_.size()) + 1; }

  void Run(int64_t total, int64_t block, const Work& work) {
    if (total <= block) {
      if (total > 0) work(0, total);
      return;
    }
    {
      std::lock_guard<std::mutex> lock(mutex_);
      work_ = &work;
      total_ = total;
      block_ = block;
      next_ = 0;
      busy_ = static_cast<int>(threads_.size());
      ++generation_;
    }
    wake_.notify_all();
    Take();
    std::unique_lock<std::mutex> lock(mutex_);
    done_.wait(lock, [this] { return busy_ == 0; });
  }

 private:
  void Take() {
    for (;;) {
      const int64_t begin = next_.fetch_add(block_);
      if (begin >= total_) return;
      (*work_)(begin, std::min(total_, begin + block_));
    }
  }

  static void Pause() {
#ifdef __x86_64__
    _mm_pause();
#endif
  }

  void Loop() {
    int64_t seen = 0;
    for (;;) {
      // As TensorFlow's threads do: sleeping at once would cost more than most of these kernels
      // take.
      for (int spin = 0; spin < 20000 && generation_ == seen; ++spin) Pause();
      {
        std::unique_lock<std::mutex> lock(mutex_);
        wake_.wait(lock, [&] { return generation_ != seen; });
        seen = generation_;
        if (stop_) return;
      }
      Take();
      std::lock_guard<std::mutex> lock(mutex_);
      if (--busy_ == 0) done_.notify_one();
    }
  }

  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable done_;
  const Work* work_ = nullptr;
  int64_t total_ = 0;
  int64_t block_ = 1;
  std::atomic<int64_t> next_{0};
  int busy_ = 0;
  std::atomic<int64_t> generation_{0};
  bool stop_ = false;
};

Pool& PoolOf(int64_t threads) {
  static Pool* pool = nullptr;
  if (pool == nullptr || pool->threads() != threads) {
    delete pool;
    pool = new Pool(static_cast<int>(threads));
  }
  return *pool;
}

nv_norms::cpu::ParallelFor ThreadsOf(int64_t threads) {
  Pool& pool = PoolOf(threads);
  return [&pool](int64_t total, int64_t cost_per_unit, const Work& work) {
    pool.Run(total, nv_norms::cpu::BlockSize(total, cost_per_unit, pool.threads()), work);
  };
}

void CopyPastCache(const char* from, int64_t size, char* to) {
#ifdef __x86_64__
  // `to` is 64-byte aligned, as the benchmark allocates it.
  for (int64_t i = 0; i < size; i += 64) {
    for (int64_t j = i; j < i + 64; j += 16) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + j),
                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + j)));
    }
  }
  _mm_sfence();
#else
  std::memcpy(to, from, size);
#endif
}

}  // namespace

extern "C" {

const char* CpuTarget() { return nv_norms::cpu::ChosenTarget().name; }

int64_t CpuForward(const HarnessProblem* p, const nv_norms::ForwardBuffers* buffers,
                   int64_t threads, char* error, int64_t error_size) {
  nv_norms::ForwardProblem problem;
  Status status = ForwardOf(*p, &problem);
  if (status.ok()) status = nv_norms::cpu::Forward(problem, *buffers, ThreadsOf(threads));
  return Finish(status, 0, error, error_size);
}

int64_t CpuBackward(const HarnessProblem* p, const nv_norms::BackwardBuffers* buffers,
                    int64_t threads, char* error, int64_t error_size) {
  nv_norms::BackwardProblem problem;
  Status status = BackwardOf(*p, &problem);
  if (status.ok()) status = nv_norms::cpu::Backward(problem, *buffers, ThreadsOf(threads));
  return Finish(status, 0, error, error_size);
}

// size: a multiple of 64. stream: 1 for stores past the cache.
void CpuCopy(const void* from, int64_t size, void* to, int64_t stream, int64_t threads) {
  const int64_t lines = size / 64;
  Pool& pool = PoolOf(threads);
  pool.Run(lines, nv_norms::cpu::BlockSize(lines, 16, threads), [&](int64_t begin, int64_t end) {
    const char* source = static_cast<const char*>(from) + 64 * begin;
    char* target = static_cast<char*>(to) + 64 * begin;
    const int64_t count = 64 * (end - begin);
    if (stream != 0) {
      CopyPastCache(source, count, target);
    } else {
      std::memcpy(target, source, static_cast<size_t>(count));
    }
  });
}
}
