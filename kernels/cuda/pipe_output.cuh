// The warps of forward_columns_pipe.cu that make statistics of the group's sums, and those that
// write the output.
#ifndef NV_NORMS_KERNELS_CUDA_PIPE_OUTPUT_CUH_
#define NV_NORMS_KERNELS_CUDA_PIPE_OUTPUT_CUH_

#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/pipe_places.cuh"
#include "kernels/cuda/reduce.cuh"

namespace nv_norms {
namespace cuda {

#if __CUDA_ARCH__ >= 900

struct PipeFinisher : PipePlaces {
  __device__ __forceinline__ PipeMoment Total(unsigned round, int column) const {
    const PipePost* at = TotalsOf(round) + column;
    PipePost seen = Look(at);
    while (seen.round != round + 1) seen = Look(at);
    return {seen.high, seen.low, seen.m2};
  }

  __device__ __forceinline__ float2 LoadParams(int unit, int column) const {
    const int64_t param =
        shape.ParamOf(unit / shape.strips, unit % shape.strips * shape.columns + column);
    return make_float2(ParamOr<float>(problem.param, buffers.gamma, param, 1),
                       ParamOr<float>(problem.param, buffers.beta, param, 0));
  }

  // Statistic g of a unit, from its mean and squares about it.
  __device__ __forceinline__ Scaling<float> StatOf(int unit, int g, double mean, double m2,
                                                   double inverse, bool store) const {
    const double rstd = rsqrt((m2 < 0 ? 0.0 : m2) * inverse + problem.epsilon);
    Scaling<float> out = {0, 0, static_cast<float>(rstd)};
    if (problem.formula == Formula::kCenter) {
      out.high = static_cast<float>(mean);
      out.low = static_cast<float>(mean - out.high);
    }
    if (store && rank == 0) {
      const int64_t stat = static_cast<int64_t>(unit / shape.strips) * shape.norm_groups +
                           static_cast<int64_t>(unit % shape.strips) * shape.stats() + g;
      if (buffers.mean != nullptr) {
        static_cast<float*>(buffers.mean)[stat] = static_cast<float>(mean);
      }
      if (buffers.rstd != nullptr) static_cast<float*>(buffers.rstd)[stat] = out.rstd;
    }
    return out;
  }

  __device__ __forceinline__ void PutLine(unsigned round, int column, const Scaling<float>& stat,
                                          float2 params) const {
    const float scale = stat.rstd * params.x;
    lines[round % 2 * shape.columns + column] = {stat.high, scale, params.y - stat.low * scale};
  }

  __device__ __forceinline__ void Finish() const {
    constexpr int kThreads = 32 * kFinishers;
    const int thread = threadIdx.x - 32 * kFirstFinisher;
    const double rows = shape.rows;
    const double inverse = shape.inverse_rows / shape.depth;
    int lanes = 1;  // to a statistic
    while (lanes < shape.depth && lanes < 32) lanes *= 2;
    unsigned round = 0;
#pragma unroll 1
    for (int unit = group; unit < shape.units; unit += shape.groups, ++round) {
      // A warp without a column waits, too: its arrival counts.
      if (round >= 2) LinesEmpty(round).Wait(HalfParity(round - 2));
      if (shape.depth == 1) {
#pragma unroll 1
        for (int c = thread; c < shape.columns; c += kThreads) {
          const float2 params = LoadParams(unit, c);
          const PipeMoment total = Total(round, c);
          PutLine(round, c, StatOf(unit, c, MeanOf(total.high, total.low), total.m2, inverse, true),
                  params);
        }
      } else {
#pragma unroll 1
        for (int c = thread; c < shape.columns; c += kThreads) totals[c] = Total(round, c);
        SyncSome<kFinishersBarrier, kThreads>();
        const int step = kThreads / lanes;
#pragma unroll 1
        for (int first = 0; first < shape.stats(); first += step) {
          const int g = first + thread / lanes;
          const bool there = g < shape.stats();
          const PipeMoment* from = totals + (there ? g * shape.depth : 0);
          const double about = MeanOf(from->high, from->low);
          double sums[2] = {0, 0};
#pragma unroll 1
          for (int m = thread % lanes; m < shape.depth; m += lanes) {
            const double d = MeanOf(from[m].high, from[m].low) - about;
            sums[0] += rows * d;
            sums[1] += from[m].m2 + rows * d * d;
          }
          WarpSum(sums, lanes);
          if (!there) continue;
          const double move = sums[0] * inverse;
          const Scaling<float> stat =
              StatOf(unit, g, about + move, sums[1] - sums[0] * move, inverse, thread % lanes == 0);
#pragma unroll 1
          for (int c = g * shape.depth + thread % lanes; c < (g + 1) * shape.depth; c += lanes) {
            PutLine(round, c, stat, LoadParams(unit, c));
          }
        }
        SyncSome<kFinishersBarrier, kThreads>();  // totals are read no more
      }
      __syncwarp();
      if (threadIdx.x % 32 == 0) LinesFull(round).Arrive();
    }
  }
};

template <typename X, typename Y, bool ACTIVATED>
struct PipeWriter : PipePlaces {
  static constexpr int kVec = kVectorBytes / sizeof(X);

  __device__ __forceinline__ void Write() const {
    constexpr int kItems = kTileVectors / (32 * kWriters);
    const int lane = threadIdx.x % 32;
    const int place = threadIdx.x - 32 * kFirstWriter;
    const int vector = lane % shape.vectors;
    const int row = place / shape.vectors;
    const int step = 32 * kWriters / shape.vectors;
    const int64_t hop = static_cast<int64_t>(step) * shape.width * kVec;
    const Activator<float> activator(problem.activation);
    const int staying = shape.tiles - shape.streamed;
    PipeTurn stay;
    PipeTurn stream;
    unsigned round = 0;
#pragma unroll 1
    for (int unit = group; unit < shape.units; unit += shape.groups, ++round) {
      LinesFull(round).Wait(HalfParity(round));
      float high[kVec];
      float scale[kVec];
      float shift[kVec];
#pragma unroll
      for (int v = 0; v < kVec; ++v) {
        const PipeLine line = lines[round % 2 * shape.columns + vector * kVec + v];
        high[v] = line.high;
        scale[v] = line.scale;
        shift[v] = line.shift;
      }
      __syncwarp();
      if (lane == 0) LinesEmpty(round).Arrive();
      const int64_t base = (BaseOf(unit) + static_cast<int64_t>(row) * shape.width + vector) * kVec;
#pragma unroll 1
      for (int i = 0; i < shape.tiles; ++i) {
        const bool streamed = i >= staying;
        const int tile = streamed ? shape.tiles - 1 - i : shape.streamed + i;
        const int slot = streamed ? reread_slots() + stream.slot : stay.slot;
        Full(slot).Wait((streamed ? stream.lap : stay.lap) & 1);
        const uint4* from = tiles + slot * kTileVectors + place;
        const int rows = RowsOf(tile);
        uint32_t words[kItems][4];
#pragma unroll
        for (int j = 0; j < kItems; ++j) {
          if (row + j * step < rows) Chunk<16>::Split(from[j * 32 * kWriters], words[j]);
        }
        __syncwarp();
        if (lane == 0) Empty(slot).Arrive();
        int64_t to = base + static_cast<int64_t>(RowOf(tile)) * shape.width * kVec;
#pragma unroll
        for (int j = 0; j < kItems; ++j) {
          if (row + j * step >= rows) break;
          float y[kVec];
#pragma unroll
          for (int v = 0; v < kVec; ++v)
            y[v] = (PipeNumber<X>(words[j], v) - high[v]) * scale[v] + shift[v];
          if constexpr (ACTIVATED) {
            activator.Apply(y);
          }
          StoreStrip<Y>(problem.y, buffers.y, to, y, false);
          to += hop;
        }
        if (streamed) {
          stream.Next(shape.stream_slots);
        } else {
          stay.Next(stay_slots());
        }
      }
    }
  }
};

#endif  // __CUDA_ARCH__ >= 900

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_PIPE_OUTPUT_CUH_
