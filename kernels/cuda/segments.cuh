// What the resident kernels of segments share: tiles of a row, and sums over a team. A team goes
// through rows; its blocks have the same vectors of 16 bytes of every row, either whole segments or
// a part of one, and no tile holds more than one segment's.
#ifndef NV_NORMS_KERNELS_CUDA_SEGMENTS_CUH_
#define NV_NORMS_KERNELS_CUDA_SEGMENTS_CUH_

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/segments.h"
#include "kernels/cuda/team.cuh"
#include "kernels/cuda/walk.cuh"

namespace nv_norms {
namespace cuda {

#if __CUDA_ARCH__ >= 800

// BESIDE: bytes of dy beside a vector of x, or 0.
template <int BESIDE, bool WARPS>
struct SegmentTiles : SlotLayout<BESIDE> {
  static constexpr int kItems = TileItems(BESIDE);
  static constexpr int kLanes = WARPS ? 32 : kResidentThreads;
  static constexpr int kTileVectors = kItems * kLanes;

  const SegmentShape& shape;
  int team;
  int rank;           // of the block in its team
  int first;          // segment of the block
  int part;           // of it that the block has
  int length;         // vectors of each segment that the block has
  int segment_tiles;  // of each segment
  unsigned inverse;   // 2^32 / segment_tiles, rounded up: no divisions for every tile
  int count;          // tiles
  int64_t begin;      // the thread's first vector of a row
  uint4* ring;        // and of the slots
  const uint4* x;     // the same in the tensors
  const char* dy;

  __device__ __forceinline__ SegmentTiles(const SegmentShape& shape, uint4* ring,
                                          const void* x_tensor, const void* dy_tensor)
      : shape(shape), ring(ring + threadIdx.x) {
    rank = WARPS ? 0 : static_cast<int>(blockIdx.x % static_cast<unsigned>(shape.blocks));
    team = WARPS ? blockIdx.x * (kResidentThreads / 32) + threadIdx.x / 32
                 : blockIdx.x / static_cast<unsigned>(shape.blocks);
    first = shape.own > 1 ? rank * shape.own : rank / shape.parts;
    part = shape.own > 1 ? 0 : rank % shape.parts;
    length = shape.LengthOf(part);
    segment_tiles = (length + kTileVectors - 1) / kTileVectors;
    inverse = 0xffffffffu / static_cast<unsigned>(segment_tiles) + 1;
    count = shape.own * segment_tiles;
    begin = static_cast<int64_t>(first) * shape.length + part * shape.share +
            min(part, shape.extra) + threadIdx.x % kLanes;
    x = static_cast<const uint4*>(x_tensor) + begin;
    dy = static_cast<const char*>(dy_tensor) + begin * BESIDE;
  }

  __device__ __forceinline__ int group() const { return team; }
  __device__ __forceinline__ int groups() const { return shape.teams; }
  __device__ __forceinline__ int units() const { return team < shape.teams ? shape.rows : 0; }
  __device__ __forceinline__ int slots() const { return shape.slots; }
  __device__ __forceinline__ int kept() const { return shape.kept; }
  __device__ __forceinline__ int ahead() const { return WARPS ? 0 : shape.ahead; }
  __device__ __forceinline__ bool active() const { return true; }
  __device__ __forceinline__ bool first_thread() const { return threadIdx.x % kLanes == 0; }
  __device__ __forceinline__ int64_t Base(int unit) const {
    return static_cast<int64_t>(unit) * shape.segments * shape.length;
  }
  __device__ __forceinline__ uint4* Slot(int slot) const {
    return ring + slot * (TileBytes(BESIDE) / kVectorBytes);
  }
  // Which of the block's segments a lane looks after.
  __device__ __forceinline__ int LanesSegment() const {
    return min(static_cast<int>(threadIdx.x % 32), shape.own - 1);
  }
  // The segment of a tile, among the block's, and which of its tiles it is.
  __device__ __forceinline__ int SegmentOf(int tile) const {
    if (shape.own == 1) return 0;
    return segment_tiles == 1 ? tile : __umulhi(static_cast<unsigned>(tile), inverse);
  }
  __device__ __forceinline__ int InSegment(int tile, int segment) const {
    return tile - segment * segment_tiles;
  }
  // Vectors from the thread's first one of a row to its first one of a tile.
  __device__ __forceinline__ int OffsetOf(int tile) const {
    const int segment = SegmentOf(tile);
    return segment * shape.length + InSegment(tile, segment) * kTileVectors;
  }
  // Vectors of the tile.
  __device__ __forceinline__ int Left(int tile) const {
    return length - InSegment(tile, SegmentOf(tile)) * kTileVectors;
  }
  __device__ __forceinline__ bool Full(int tile) const { return Left(tile) >= kTileVectors; }
  __device__ __forceinline__ int Items(int tile) const {
    const int left = Left(tile) - static_cast<int>(threadIdx.x % kLanes);
    int items = 0;
#pragma unroll
    for (int j = 0; j < kItems; ++j) items += left > j * kLanes;
    return items;
  }

  // A thread asks for the lines that begin in its vectors, or at a tile's first one.
  template <int BYTES>
  __device__ __forceinline__ void PrefetchItems(const char* at, int items) const {
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
      const bool begins =
          (j == 0 && threadIdx.x % kLanes == 0) || (reinterpret_cast<uintptr_t>(at) & 127) < BYTES;
      if (begins && j < items) PrefetchLine(at);
      at += kLanes * BYTES;
    }
  }

  __device__ __forceinline__ void Prefetch(int64_t base, int tile) const {
    const int items = Full(tile) ? kItems : Items(tile);
    const int64_t at = base + OffsetOf(tile);
    PrefetchItems<kVectorBytes>(reinterpret_cast<const char*>(x + at), items);
    if constexpr (BESIDE > 0) PrefetchItems<BESIDE>(dy + at * BESIDE, items);
  }

  __device__ __forceinline__ void Load(int slot, int64_t base, int tile, uint64_t policy) const {
    const int items = Full(tile) ? kItems : Items(tile);
    const int64_t at = base + OffsetOf(tile);
    uint4* to = Slot(slot);
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
      if (j < items) CopyAsync<kVectorBytes>(this->X(to, j), x + (at + j * kLanes), policy);
    }
    if constexpr (BESIDE > 0) {
#pragma unroll
      for (int j = 0; j < kItems; ++j) {
        if (j < items) {
          CopyAsync<BESIDE>(this->Beside(to, j), dy + (at + j * kLanes) * BESIDE, policy);
        }
      }
    }
  }
};

// Sums over the threads of a warp, or of a block of kResidentThreads; every thread gets them. A
// block has two storages by turns: a thread may still read one when another is a row ahead.
template <int N, typename A>
struct TeamStorage {
  A warps[2][N][kResidentThreads / 32];
};
template <bool WARPS, int N, typename A>
__device__ __forceinline__ void TeamSum(A (&values)[N], TeamStorage<N, A>* storage, int parity) {
  WarpSum(values, 32);
  if (WARPS) return;
  auto& warps = storage->warps[parity];
  if (threadIdx.x % 32 == 0) {
#pragma unroll
    for (int n = 0; n < N; ++n) warps[n][threadIdx.x / 32] = values[n];
  }
  __syncthreads();
#pragma unroll
  for (int n = 0; n < N; ++n) {
    values[n] = 0;
#pragma unroll
    for (int i = 0; i < kResidentThreads / 32; ++i) values[n] += warps[n][i];
  }
}

#endif  // __CUDA_ARCH__ >= 800

// Bytes of the workspace for what the blocks of a team post, a post of each for every row.
inline int64_t MailBytes(const SegmentShape& shape) {
  return shape.blocks == 1 ? 0 : shape.posts() * kPostBytes;
}

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_SEGMENTS_CUH_
