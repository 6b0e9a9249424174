// What the streaming kernels of both directions share: the roles of a block's warps, and how they
// hand tiles, sums and lines to each other in shared memory (columns_stream.h).
#ifndef NV_NORMS_KERNELS_CUDA_COLUMNS_STREAM_CUH_
#define NV_NORMS_KERNELS_CUDA_COLUMNS_STREAM_CUH_

#include "kernels/cuda/columns_stream.h"
#include "kernels/cuda/pipe.cuh"

namespace nv_norms {
namespace cuda {

constexpr int kClerks = 4;
constexpr int kLoaders = 4;
constexpr int kConsumers = 8;

// Warps of a block.
enum StreamRole {
  kFirstClerk,                               // bring sums together: of the block, then of all
  kFirstLoader = kFirstClerk + kClerks,      // load tiles
  kFirstConsumer = kFirstLoader + kLoaders,  // take sums, write the output
  kEndOfRoles = kFirstConsumer + kConsumers
};
constexpr int kStreamThreads = 32 * kEndOfRoles;
constexpr int kClerkThreads = 32 * kClerks;
constexpr int kStreamGates = 2 * kStreamSlots + 8;

#if __CUDA_ARCH__ >= 900

// The next slot of a ring, and how many laps have gone by.
struct StreamTurn {
  int slot = 0;
  unsigned lap = 0;

  __device__ __forceinline__ void Next() {
    if (++slot == kStreamSlots) {
      slot = 0;
      ++lap;
    }
  }
  __device__ __forceinline__ unsigned full() const { return lap & 1; }
  __device__ __forceinline__ unsigned empty() const { return (lap & 1) ^ 1; }
};

__device__ __forceinline__ unsigned LoadAcquire(const unsigned* at) {
  unsigned value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}

// A block's gates: of the slots of tiles, and of two halves each of the consumers' sums ("entries")
// and of what the clerks make of all blocks' ("lines").
struct StreamGates {
  const StreamShape& shape;
  uint64_t* gates;

  __device__ __forceinline__ explicit StreamGates(const StreamShape& shape) : shape(shape) {}

  __device__ __forceinline__ Gate Full(int slot) const { return Gate(gates, slot); }
  __device__ __forceinline__ Gate Empty(int slot) const { return Gate(gates, kStreamSlots + slot); }
  __device__ __forceinline__ Gate EntriesFull(int half) const {
    return Gate(gates, 2 * kStreamSlots + half);
  }
  __device__ __forceinline__ Gate EntriesEmpty(int half) const {
    return Gate(gates, 2 * kStreamSlots + 2 + half);
  }
  __device__ __forceinline__ Gate LinesFull(int half) const {
    return Gate(gates, 2 * kStreamSlots + 4 + half);
  }
  __device__ __forceinline__ Gate LinesEmpty(int half) const {
    return Gate(gates, 2 * kStreamSlots + 6 + half);
  }

  __device__ __forceinline__ void Open() const {
#pragma unroll 1
    for (int i = 0; i < kStreamSlots; ++i) {
      Full(i).Init(32 * kLoaders);
      Empty(i).Init(kConsumers);
    }
#pragma unroll 1
    for (int i = 0; i < 2; ++i) {
      EntriesFull(i).Init(kConsumers);
      EntriesEmpty(i).Init(1);
      LinesFull(i).Init(1);
      LinesEmpty(i).Init(kConsumers);
    }
  }

  __device__ __forceinline__ int RowOf(const StreamStep& step) const {
    return step.item * shape.item_rows;
  }
  __device__ __forceinline__ int RowsOf(const StreamStep& step) const {
    return min(shape.item_rows, shape.rows - RowOf(step));
  }

  __device__ __forceinline__ int Clerk() const { return threadIdx.x - 32 * kFirstClerk; }

  __device__ __forceinline__ static void SyncClerks() {
    constexpr int kClerksBarrier = 1;  // 0 is the block's
    asm volatile("bar.sync %0, %1;" ::"n"(kClerksBarrier), "n"(kClerkThreads) : "memory");
  }

  // The clerks' work: they never store to the output, as a fence would wait for that.
  template <typename Send, typename Fetch>
  __device__ __forceinline__ void WalkEdges(const Send& send, const Fetch& fetch) const {
    StreamWalk walk(shape, blockIdx.x);
    StreamStep step;
    unsigned sent = 0;
    unsigned fetched = 0;
#pragma unroll 1
    while (walk.Next(&step)) {
      if (!step.edge) continue;
      if (step.output) {
        fetch(step, fetched++);
      } else {
        send(step, sent++);
      }
    }
  }
};

#endif  // __CUDA_ARCH__ >= 900

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_COLUMNS_STREAM_CUH_
