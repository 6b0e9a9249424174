// The clerks of a block of the streamed norm: warps that bring what it found of a unit together,
// then what all blocks found, and make of that the line that each column's y is on.
#ifndef NV_NORMS_KERNELS_CUDA_FORWARD_COLUMNS_STREAM_CLERKS_CUH_
#define NV_NORMS_KERNELS_CUDA_FORWARD_COLUMNS_STREAM_CLERKS_CUH_

#include "kernels/cuda/columns_stream.cuh"
#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/reduce.cuh"

namespace nv_norms {
namespace cuda {

// What a block, or a warp, found of a column: the mean is high + low, m2 the squares about it.
struct alignas(16) StreamFound {
  float high;
  float low;
  float m2;
  float count;
};

#if __CUDA_ARCH__ >= 900

__device__ __forceinline__ double MeanOf(const StreamFound& found) {
  return static_cast<double>(found.high) + found.low;
}

struct ForwardClerks : StreamGates {
  const ForwardProblem& problem;
  const ForwardBuffers& buffers;
  unsigned* posted;      // [units]
  StreamFound* posts;    // [units, blocks, columns]
  double* totals;        // [2, readers, columns]
  StreamFound* entries;  // [2, kConsumers, columns]
  float* lines;          // [2, 3, columns]: y = (x - high) * scale + shift
  float* stats;          // [3, columns]: high, low and rstd of statistics

  // shared: behind the tiles.
  __device__ __forceinline__ ForwardClerks(const StreamShape& shape, const ForwardProblem& problem,
                                           const ForwardBuffers& buffers, unsigned* posted,
                                           StreamFound* posts, char* shared)
      : StreamGates(shape), problem(problem), buffers(buffers), posted(posted), posts(posts) {
    gates = reinterpret_cast<uint64_t*>(shared);
    shared += 8 * kStreamGates;
    entries = reinterpret_cast<StreamFound*>(shared);
    shared += sizeof(StreamFound) * 2 * kConsumers * shape.columns;
    totals = reinterpret_cast<double*>(shared);
    shared += 8 * 2 * max(kClerkThreads, shape.columns);
    lines = reinterpret_cast<float*>(shared);
    stats = lines + 2 * 3 * shape.columns;
  }

  __device__ __forceinline__ void AddUp() const {
    WalkEdges([&](const StreamStep& step, unsigned sent) { Send(step, sent); },
              [&](const StreamStep& step, unsigned fetched) { Fetch(step, fetched); });
  }

  __device__ __forceinline__ StreamFound* PostsOf(int unit) const {
    return posts + static_cast<int64_t>(unit) * shape.blocks * shape.columns;
  }

  __device__ __forceinline__ void Send(const StreamStep& step, unsigned sent) const {
    const int half = sent % 2;
    StreamFound* to = PostsOf(step.unit) + static_cast<int64_t>(step.rank) * shape.columns;
    EntriesFull(half).Wait(sent / 2 & 1);
#pragma unroll 1
    for (int c = Clerk(); c < shape.columns; c += kClerkThreads) {
      const StreamFound* from = entries + half * kConsumers * shape.columns + c;
      const double about = MeanOf(*from);  // the first warp has rows
      double count = 0;
      double sum = 0;
      double squares = 0;
#pragma unroll
      for (int warp = 0; warp < kConsumers; ++warp) {
        const StreamFound entry = from[warp * shape.columns];
        const double n = entry.count;
        const double d = n > 0 ? MeanOf(entry) - about : 0.0;
        count += n;
        sum += n * d;
        squares += entry.m2 + n * d * d;
      }
      const double move = sum / count;
      const double mean = about + move;
      const float mean_high = static_cast<float>(mean);
      __stcg(reinterpret_cast<float4*>(to + c),
             make_float4(mean_high, static_cast<float>(mean - mean_high),
                         static_cast<float>(squares - sum * move), static_cast<float>(count)));
    }
    SyncClerks();
    if (Clerk() == 0) {
      EntriesEmpty(half).Arrive();
      __threadfence();
      atomicAdd(posted + step.unit, 1u);
    }
  }

  // Merges what all blocks found, each block for itself and in the same order.
  __device__ __forceinline__ void Fetch(const StreamStep& step, unsigned fetched) const {
    const int clerk = Clerk();
    const int columns = shape.columns;
    const int readers = max(1, kClerkThreads / columns);
    const double rows = shape.rows;
    AwaitPosts(posted + step.unit);
    const auto look = [&](int post, int c) {
      const float4 at = __ldcg(reinterpret_cast<const float4*>(
          PostsOf(step.unit) + static_cast<int64_t>(post) * columns + c));
      return StreamFound{at.x, at.y, at.z, at.w};
    };
#pragma unroll 1
    for (int i = clerk; i < readers * columns; i += kClerkThreads) {
      const int c = i % columns;
      const double about = MeanOf(look(0, c));
      double sum = 0;
      double squares = 0;
#pragma unroll 8
      for (int post = i / columns; post < shape.blocks; post += readers) {
        const StreamFound found = look(post, c);
        const double d = MeanOf(found) - about;
        sum += found.count * d;
        squares += found.m2 + found.count * d * d;
      }
      totals[i] = sum;
      totals[readers * columns + i] = squares;
    }
    SyncClerks();
    // Of a column: its mean and the squares about it.
#pragma unroll 1
    for (int c = clerk; c < columns; c += kClerkThreads) {
      const double about = MeanOf(look(0, c));
      double sum = 0;
      double squares = 0;
#pragma unroll 1
      for (int reader = 0; reader < readers; ++reader) {
        sum += totals[reader * columns + c];
        squares += totals[(readers + reader) * columns + c];
      }
      const double move = sum / rows;
      totals[c] = about + move;
      totals[readers * columns + c] = squares - sum * move;
    }
    SyncClerks();
    TakeStats(step, totals, totals + readers * columns);
    SyncClerks();
    const int half = fetched % 2;
    LinesEmpty(half).Wait((fetched / 2 & 1) ^ 1);
    const int n = step.unit / shape.strips;
    const int strip = step.unit % shape.strips;
    float* to = lines + 3 * half * columns;
#pragma unroll 1
    for (int c = clerk; c < columns; c += kClerkThreads) {
      const int64_t param = shape.ParamOf(n, strip * columns + c);
      const int g = c / shape.depth;
      const float scale =
          stats[2 * columns + g] * ParamOr<float>(problem.param, buffers.gamma, param, 1);
      to[c] = stats[g];
      to[columns + c] = scale;
      to[2 * columns + c] =
          ParamOr<float>(problem.param, buffers.beta, param, 0) - stats[columns + g] * scale;
    }
    SyncClerks();
    if (clerk == 0) LinesFull(half).Arrive();
  }

  // Of a unit's columns' means and squares about these.
  __device__ __forceinline__ void TakeStats(const StreamStep& step, const double* means,
                                            const double* squares) const {
    const int64_t first = static_cast<int64_t>(step.unit / shape.strips) * shape.norm_groups +
                          static_cast<int64_t>(step.unit % shape.strips) * shape.stats();
    const double rows = shape.rows;
    const int lanes = shape.depth == 1 ? 1 : 32;
    const int lane = Clerk() % lanes;
#pragma unroll 1
    for (int g = Clerk() / lanes; g < shape.stats(); g += kClerkThreads / lanes) {
      const double about = means[g * shape.depth];
      double sums[2] = {0, 0};
#pragma unroll 1
      for (int c = g * shape.depth + lane; c < (g + 1) * shape.depth; c += lanes) {
        const double d = means[c] - about;
        sums[0] += rows * d;
        sums[1] += squares[c] + rows * d * d;
      }
      if (lanes > 1) WarpSum(sums, 32);
      if (lane != 0) continue;
      Moments moments;
      moments.count = rows * shape.depth;
      const double move = sums[0] / moments.count;
      moments.mean = about + move;
      moments.m2 = sums[1] - sums[0] * move;
      const Scaling<float> stat =
          ScalingOf<float>(problem, buffers, first + g, moments, step.rank == 0);
      stats[g] = stat.high;
      stats[shape.columns + g] = stat.low;
      stats[2 * shape.columns + g] = stat.rstd;
    }
  }
};

#endif  // __CUDA_ARCH__ >= 900

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_FORWARD_COLUMNS_STREAM_CLERKS_CUH_
