// How the blocks of a group add up their columns' sums. A block writes its sums into the workspace,
// each beside the number of the round, and others read them until that number is there: so data and
// signal take one trip through the L2 cache. All blocks of a group run at the same time, because
// the kernel was launched cooperatively: nobody waits for a block
// that has not started.
#ifndef NV_NORMS_KERNELS_CUDA_COLUMNS_EXCHANGE_CUH_
#define NV_NORMS_KERNELS_CUDA_COLUMNS_EXCHANGE_CUH_

#include <cooperative_groups.h>

#include <utility>

#include "kernels/cuda/columns_resident.cuh"
#include "kernels/cuda/reduce.cuh"

namespace nv_norms {
namespace cuda {

// Of one round of a group: of each block N numbers for each column, then the same of all together.
template <int N>
NV_NORMS_HOST_DEVICE inline int64_t RoundWords(const StripShape& shape) {
  return static_cast<int64_t>(shape.blocks + 1) * N * shape.columns;
}

// Bytes of the workspace. A group needs two rounds: a block may be one ahead of another.
template <int N>
int64_t ExchangeBytes(const StripShape& shape) {
  if (shape.blocks == 1) return 0;
  return (8 * 2 * shape.groups * RoundWords<N>(shape) + 15) / 16 * 16;
}

// Sums over `count` rows of columns, N numbers each, in a fixed order: add(row, column, sums) adds
// a row. sums: [readers, columns, N] in shared memory, of which thread c then holds those of column
// c, c + threads, ... in sums[column]. Others see them after a barrier.
template <int N, typename Add>
__device__ __forceinline__ void ColumnSums(const StripShape& shape, int count, double* sums,
                                           const Add& add) {
#pragma unroll 1
  for (int i = threadIdx.x; i < shape.readers * shape.columns; i += kResidentThreads) {
    const int reader = i / shape.columns;
    const int column = i % shape.columns;
    double mine[N] = {};
    add(reader, count, column, mine);
#pragma unroll
    for (int k = 0; k < N; ++k) sums[i * N + k] = mine[k];
  }
  __syncthreads();
#pragma unroll 1
  for (int c = threadIdx.x; c < shape.columns; c += kResidentThreads) {
    double* mine = sums + c * N;
#pragma unroll 1
    for (int reader = 1; reader < shape.readers; ++reader) {
#pragma unroll
      for (int k = 0; k < N; ++k) mine[k] += mine[reader * shape.columns * N + k];
    }
  }
}

#if __CUDA_ARCH__ >= 800

// A number and its round are one word of 64 bits: of two of 32 one could be seen without the other.
__device__ __forceinline__ void Publish(uint2* to, float value, unsigned round) {
  const uint64_t word = static_cast<uint64_t>(round) << 32 | __float_as_uint(value);
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(word) : "memory");
}

__device__ __forceinline__ uint2 Peek(const uint2* from) {
  uint64_t word;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(from) : "memory");
  return make_uint2(static_cast<unsigned>(word), static_cast<unsigned>(word >> 32));
}

// Sums is what a block's sums of a column are when they travel, and how to add them:
//   Encode(sums, 1 / rows, out)   Add(numbers, rows, sums)
template <int N, typename Sums>
struct GroupExchange {
  static constexpr int kBatch = N == 2 ? 4 : 2;  // blocks whose numbers are under way at once

  const StripShape& shape;
  const StripPlace& place;
  uint2* words;  // the group's
  unsigned round = 0;
  cooperative_groups::grid_group::arrival_token cleared;

  __device__ __forceinline__ GroupExchange(const StripShape& shape, const StripPlace& place,
                                           void* workspace)
      : shape(shape),
        place(place),
        words(static_cast<uint2*>(workspace) + place.group * 2 * RoundWords<N>(shape)) {}

  __device__ __forceinline__ uint2* Round() const {
    return words + (round & 1) * RoundWords<N>(shape);
  }

  // No word may have a round's number before the block that it is of writes it, so nobody sends
  // before all have cleared theirs. That is asked for in the first Send: with the first copies on
  // their way, the barrier took 8 us, in which the sums wait for nothing else. By the block before
  // it asks for copies, which the barrier's fence would wait for: it takes 2 us, after them 3 to 5.
  __device__ __forceinline__ void Clear() {
    if (shape.blocks == 1) return;
    const int count = N * shape.columns;
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      uint2* to = words + half * RoundWords<N>(shape);
#pragma unroll 1
      for (int i = threadIdx.x; i < count; i += kResidentThreads) {
        Publish(to + static_cast<int64_t>(place.rank) * count + i, 0.0f, 0);
        if (place.rank == 0) Publish(to + static_cast<int64_t>(shape.blocks) * count + i, 0.0f, 0);
      }
    }
    cleared = cooperative_groups::this_grid().barrier_arrive();
  }

  // Adds what blocks first, first + step, ... published of a column.
  __device__ __forceinline__ void AddBlocks(const uint2* from, int first, int step, int column,
                                            double (&sums)[N]) const {
    const int stride = N * shape.columns;
#pragma unroll 1
    for (int block = first; block < shape.blocks; block += kBatch * step) {
      uint2 seen[kBatch][N];
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const uint2* at = from + static_cast<int64_t>(block + b * step) * stride + column;
#pragma unroll
        for (int k = 0; k < N; ++k) {
          if (block + b * step < shape.blocks) seen[b][k] = Peek(at + k * shape.columns);
        }
      }
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        if (block + b * step >= shape.blocks) break;
        const uint2* at = from + static_cast<int64_t>(block + b * step) * stride + column;
        float numbers[N];
#pragma unroll
        for (int k = 0; k < N; ++k) {
          while (seen[b][k].y != round) seen[b][k] = Peek(at + k * shape.columns);
          numbers[k] = __uint_as_float(seen[b][k].x);
        }
        Sums::Add(numbers, shape.LengthOf(block + b * step), sums);
      }
    }
  }

  __device__ __forceinline__ void PublishColumn(uint2* to, int column, double inverse,
                                                const double (&sums)[N]) const {
    float numbers[N];
    Sums::Encode(sums, inverse, numbers);
#pragma unroll
    for (int k = 0; k < N; ++k) Publish(to + k * shape.columns + column, numbers[k], round);
  }

  // The block's own sums, of column c in sums[c] of the thread c: into the workspace.
  __device__ __forceinline__ void Send(const double* sums) {
    if (round++ == 0) cooperative_groups::this_grid().barrier_wait(std::move(cleared));
    const double inverse = place.rank < shape.extra ? shape.inverse_longer : shape.inverse_share;
    uint2* to = Round() + static_cast<int64_t>(place.rank) * N * shape.columns;
#pragma unroll 1
    for (int c = threadIdx.x; c < shape.columns; c += kResidentThreads) {
      double mine[N];
#pragma unroll
      for (int k = 0; k < N; ++k) mine[k] = sums[c * N + k];
      PublishColumn(to, c, inverse, mine);
    }
  }

  // The group's sums, in the same place.
  __device__ __forceinline__ void Receive(double* sums) const {
    const uint2* from = Round();
    if (!shape.two_hops) {
      __syncthreads();  // sums are read no more
      ColumnSums<N>(shape, shape.blocks, sums, [&](int reader, int, int column, double (&mine)[N]) {
        AddBlocks(from, reader, shape.readers, column, mine);
      });
      return;
    }
    uint2* totals = Round() + static_cast<int64_t>(shape.blocks) * N * shape.columns;
    // Every warp of every block takes a column in turn.
#pragma unroll 1
    for (int c = place.rank + static_cast<int>(threadIdx.x / 32) * shape.blocks; c < shape.columns;
         c += shape.blocks * (kResidentThreads / 32)) {
      double mine[N] = {};
      AddBlocks(from, threadIdx.x % 32, 32, c, mine);
      WarpSum(mine, 32);
      if (threadIdx.x % 32 == 0) PublishColumn(totals, c, shape.inverse_rows, mine);
    }
    __syncwarp();
#pragma unroll 1
    for (int c = threadIdx.x; c < shape.columns; c += kResidentThreads) {
      float numbers[N];
      uint2 seen[N];
#pragma unroll
      for (int k = 0; k < N; ++k) seen[k] = Peek(totals + k * shape.columns + c);
#pragma unroll
      for (int k = 0; k < N; ++k) {
        while (seen[k].y != round) seen[k] = Peek(totals + k * shape.columns + c);
        numbers[k] = __uint_as_float(seen[k].x);
      }
      double mine[N] = {};
      Sums::Add(numbers, shape.rows, mine);
#pragma unroll
      for (int k = 0; k < N; ++k) sums[c * N + k] = mine[k];
    }
  }
};

#endif  // __CUDA_ARCH__ >= 800

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_COLUMNS_EXCHANGE_CUH_
