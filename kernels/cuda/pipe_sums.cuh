// The warps of forward_columns_pipe.cu that add up: a block's columns, and each column of all
// blocks of the group.
#ifndef NV_NORMS_KERNELS_CUDA_PIPE_SUMS_CUH_
#define NV_NORMS_KERNELS_CUDA_PIPE_SUMS_CUH_

#include "kernels/cuda/pipe_places.cuh"
#include "kernels/cuda/reduce.cuh"

namespace nv_norms {
namespace cuda {

#if __CUDA_ARCH__ >= 900

template <typename X>
struct PipeSummer : PipePlaces {
  static constexpr int kVec = kVectorBytes / sizeof(X);

  // Each thread sums about the mean of what it has seen; a thread has some 1000 rows of 128^3.
  struct Sums {
    float count = 0;
    float reference[kVec];
    float sum[kVec];      // of x - reference
    float squares[kVec];  // of its square

    __device__ __forceinline__ Sums() {
#pragma unroll
      for (int v = 0; v < kVec; ++v) reference[v] = sum[v] = squares[v] = 0;
    }

    template <int ITEMS>
    __device__ __forceinline__ void Add(const uint32_t (&words)[ITEMS][4], bool shift) {
      if (count == 0 && shift) {
#pragma unroll
        for (int v = 0; v < kVec; ++v) reference[v] = PipeNumber<X>(words[0], v);
      }
      count += ITEMS;
#pragma unroll
      for (int j = 0; j < ITEMS; ++j) {
#pragma unroll
        for (int v = 0; v < kVec; ++v) {
          const float x = PipeNumber<X>(words[j], v) - reference[v];
          sum[v] += x;
          squares[v] += x * x;
        }
      }
      if (shift && IsPowerOfTwo(count)) Center(count, reference, sum, squares);
    }

    __device__ __forceinline__ void Merge(int vectors, bool shift) {
      MergeThreads(vectors, shift, count, reference, sum, squares);
    }
  };

  template <typename Wait>
  __device__ __forceinline__ void Sum(const Wait& wait_for_all) const {
    constexpr int kItems = kTileVectors / (32 * kSummers);
    const int warp = threadIdx.x / 32 - kFirstSummer;
    const int lane = threadIdx.x % 32;
    const int place = warp * 32 + lane;
    const bool shift = problem.formula != Formula::kRms;
    if (shape.streamed == 0) wait_for_all();
    PipeTurn stay;
    PipeTurn stream;
    unsigned round = 0;
#pragma unroll 1
    for (int unit = group; unit < shape.units; unit += shape.groups, ++round) {
      Sums sums;
#pragma unroll 1
      for (int tile = 0; tile < shape.tiles; ++tile) {
        const bool streamed = tile < shape.streamed;
        const int slot = streamed ? stay_slots() + stream.slot : stay.slot;
        Full(slot).Wait((streamed ? stream.lap : stay.lap) & 1);
        const uint4* from = tiles + slot * kTileVectors + place;
        if (RowsOf(tile) == shape.tile_rows) {
          uint32_t words[kItems][4];
#pragma unroll
          for (int j = 0; j < kItems; ++j) Chunk<16>::Split(from[j * 32 * kSummers], words[j]);
          sums.Add(words, shift);
        } else {
          const int step = 32 * kSummers / shape.vectors;
#pragma unroll 1
          for (int row = place / shape.vectors; row < RowsOf(tile); row += step) {
            uint32_t words[1][4];
            Chunk<16>::Split(*from, words[0]);
            sums.Add(words, shift);
            from += 32 * kSummers;
          }
        }
        if (streamed) {
          __syncwarp();
          if (lane == 0) Empty(slot).Arrive(kWriters / kSummers);
          stream.Next(shape.stream_slots);
        } else {
          stay.Next(stay_slots());
        }
      }
      sums.Merge(shape.vectors, shift);
      const int half = round % 2;
      if (lane < shape.vectors) {
        PipeMoment* to = entries + (half * kSummers + warp) * shape.columns + lane * kVec;
#pragma unroll
        for (int v = 0; v < kVec; ++v) to[v] = {sums.reference[v], sums.sum[v], sums.squares[v]};
        if (lane == 0) counts[half * kSummers + warp] = sums.count;
      }
      if (round == 0 && shape.streamed > 0) wait_for_all();
      // Nobody writes this half again before all have come to the next unit's barrier.
      SyncSome<kSummersBarrier, 32 * kSummers>();
      PostSums(round);
    }
  }

  // A thread to a column.
  __device__ __forceinline__ void PostSums(unsigned round) const {
    const int half = round % 2;
#pragma unroll 1
    for (int c = threadIdx.x - 32 * kFirstSummer; c < shape.columns; c += 32 * kSummers) {
      const PipeMoment* from = entries + half * kSummers * shape.columns + c;
      const double about = MeanOf(from->high, from->low);  // the first warp has rows
      double sum = 0;
      double squares = 0;
#pragma unroll
      for (int w = 0; w < kSummers; ++w) {
        const PipeMoment entry = from[w * shape.columns];
        const double n = counts[half * kSummers + w];
        const double d = n > 0 ? MeanOf(entry.high, entry.low) - about : 0.0;
        sum += n * d;
        squares += entry.m2 + n * d * d;
      }
      const double step = sum * shape.inverse_lengths[rank < shape.last_extra ? 0 : 1];
      Send(PostsOf(round, c) + rank, about + step, squares - sum * step, round + 1);
    }
  }
};

struct PipeOwner : PipePlaces {
  // The columns of a round belong to the group's blocks in turn.
  __device__ __forceinline__ void AddUp() const {
    constexpr int kPosts = kMaxPipeBlocks / 32;  // of a lane; all are asked for at once
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32 - kFirstOwner;
    unsigned round = 0;
    int mine = rank;
#pragma unroll 1
    for (int unit = group; unit < shape.units; unit += shape.groups, ++round) {
#pragma unroll 1
      for (int c = mine + warp * shape.blocks; c < shape.columns; c += kOwners * shape.blocks) {
        const PipePost* const from = PostsOf(round, c);
        PipePost seen[kPosts];
        bool missing = true;
        while (missing) {
          missing = false;
#pragma unroll
          for (int i = 0; i < kPosts; ++i) {
            if (i * 32 + lane < shape.blocks) seen[i] = Look(from + i * 32 + lane);
          }
#pragma unroll
          for (int i = 0; i < kPosts; ++i) {
            if (i * 32 + lane < shape.blocks) missing |= seen[i].round != round + 1;
          }
        }
        __syncwarp();
        const double about = MeanOf(__shfl_sync(0xffffffffu, seen[0].high, 0),
                                    __shfl_sync(0xffffffffu, seen[0].low, 0));
        double sums[2] = {0, 0};
#pragma unroll
        for (int i = 0; i < kPosts; ++i) {
          const int block = i * 32 + lane;
          if (block >= shape.blocks) continue;
          const double n = shape.LengthOf(block);
          const double d = MeanOf(seen[i].high, seen[i].low) - about;
          sums[0] += n * d;
          sums[1] += seen[i].m2 + n * d * d;
        }
        WarpSum(sums, 32);
        const double step = sums[0] * shape.inverse_rows;
        if (lane == 0) Send(TotalsOf(round) + c, about + step, sums[1] - sums[0] * step, round + 1);
      }
      if (--mine < 0) mine = shape.blocks - 1;
    }
  }
};

#endif  // __CUDA_ARCH__ >= 900

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_PIPE_SUMS_CUH_
