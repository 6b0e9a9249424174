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

  // A loader's work: its part of PARTS of every tile of TILE vectors of x, or of what lies beside
  // them, BYTES to a vector of x; in pieces of 16 bytes. `first`: of the tensor, in the first slot.
  template <int TILE, int PARTS, int BYTES>
  __device__ __forceinline__ void LoadTiles(const void* tensor, char* first, int slot_bytes,
                                            int part) const {
    constexpr int kPieces = TILE * BYTES / kVectorBytes / PARTS;
    const int lane = threadIdx.x % 32;
    const int row_pieces = shape.vectors * BYTES / kVectorBytes;
    const int64_t width = static_cast<int64_t>(shape.width) * BYTES / kVectorBytes;
    const int part_rows = shape.tile_rows / PARTS;
    const int row = lane / row_pieces + part * part_rows;
    const int end = (part + 1) * part_rows;
    const int row_step = 32 / row_pieces;
    const int64_t hop = row_step * width;
    const int64_t tile_hop = shape.tile_rows * width;
    const uint64_t once = ReadOncePolicy();
    const uint64_t again = KeepPolicy();
    first += (part * kPieces + lane) * kVectorBytes;
    StreamWalk walk(shape, blockIdx.x);
    StreamStep step;
    StreamTurn slots;
#pragma unroll 1
    while (walk.Next(&step)) {
      const uint64_t policy = step.keep ? again : once;
      const int64_t n = step.unit / shape.strips;
      const int strip = step.unit % shape.strips;
      const uint4* tile = static_cast<const uint4*>(tensor) +
                          (n * shape.rows + RowOf(step) + row) * width + strip * row_pieces +
                          lane % row_pieces;
#pragma unroll 1
      for (int left = RowsOf(step); left > 0; left -= shape.tile_rows) {
        uint4* to = reinterpret_cast<uint4*>(first + slots.slot * slot_bytes);
        const uint4* at = tile;
        Empty(slots.slot).Wait(slots.empty());
        if (left >= shape.tile_rows) {
#pragma unroll
          for (int j = 0; j < kPieces / 32; ++j) {
            CopyAsync<kVectorBytes>(to + j * 32, at, policy);
            at += hop;
          }
        } else {
#pragma unroll 1
          for (int r = row; r < min(left, end); r += row_step) {
            CopyAsync<kVectorBytes>(to, at, policy);
            at += hop;
            to += 32;
          }
        }
        Full(slots.slot).ArriveAfterCopies();
        slots.Next();
        tile += tile_hop;
      }
    }
  }

  // A clerk waits until all blocks have posted.
  __device__ __forceinline__ void AwaitPosts(const unsigned* posted) const {
    if (Clerk() % 32 == 0) {
      while (LoadAcquire(posted) < static_cast<unsigned>(shape.blocks)) __nanosleep(40);
    }
    __syncwarp();
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
