// The clerks of a block of the streamed gradient: warps that bring its sums of a unit together,
// then those of all blocks, and make of them what dx needs of each column.
#ifndef NV_NORMS_KERNELS_CUDA_BACKWARD_COLUMNS_STREAM_CLERKS_CUH_
#define NV_NORMS_KERNELS_CUDA_BACKWARD_COLUMNS_STREAM_CLERKS_CUH_

#include "kernels/cuda/columns_stream.cuh"
#include "kernels/cuda/columns_sums.cuh"
#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/reduce.cuh"

namespace nv_norms {
namespace cuda {

constexpr int kStreamNumbers = 3;  // of a column, e = x - mean: sums of e, dy and dy * e

// Arrays of the workspace; of the tensor's columns: [n, channels].
struct StreamWork {
  unsigned* posted;        // [units]: blocks whose partial sums are there
  float* means;            // as the forward pass stored them
  float* scales;           // rstd * gamma
  float* betas;            // where there is an activation
  float* partials;         // [units, blocks, kStreamNumbers, columns]
  ChannelSums* sums;       // [n, channels]
  XhatLine<float>* lines;  // [statistics]
  int64_t bytes;
  int64_t columns;  // n * channels

  StreamWork(const StreamShape& shape, const BackwardProblem& problem, void* workspace) {
    char* to = static_cast<char*>(workspace);
    const auto take = [&](auto** at, int64_t count) {
      using T = std::remove_pointer_t<std::remove_reference_t<decltype(*at)>>;
      *at = reinterpret_cast<T*>(to);
      to += Align16(count * static_cast<int64_t>(sizeof(T)));
    };
    const ColumnLayout& layout = problem.geometry.columns;
    columns = layout.n * layout.channels();
    take(&posted, shape.units);
    take(&means, columns);
    take(&scales, columns);
    take(&betas, columns);
    take(&partials, int64_t{shape.units} * shape.blocks * kStreamNumbers * shape.columns);
    take(&sums, columns);
    take(&lines, problem.geometry.statistics);
    bytes = to - static_cast<char*>(workspace);
  }
};

#if __CUDA_ARCH__ >= 900

struct GradientClerks : StreamGates {
  const BackwardProblem& problem;
  const BackwardBuffers& buffers;
  const StreamWork& work;
  double* totals;  // [readers, kStreamNumbers, columns]
  float* entries;  // [2, kConsumers, kStreamNumbers, columns]
  float* terms;    // [2, 2, columns]: slope and shift, dx = dy * scale - (x - mean) * slope + shift
  float* stats;    // [2, columns]: the same of statistics

  // shared: behind the tiles.
  __device__ __forceinline__ GradientClerks(const StreamShape& shape,
                                            const BackwardProblem& problem,
                                            const BackwardBuffers& buffers, const StreamWork& work,
                                            char* shared)
      : StreamGates(shape), problem(problem), buffers(buffers), work(work) {
    gates = reinterpret_cast<uint64_t*>(shared);
    shared += 8 * kStreamGates;
    totals = reinterpret_cast<double*>(shared);
    shared += 8 * max(4 * kClerkThreads, kStreamNumbers * shape.columns);
    entries = reinterpret_cast<float*>(shared);
    shared += 2 * 4 * kConsumers * kStreamNumbers * shape.columns;
    terms = reinterpret_cast<float*>(shared);
    stats = terms + 4 * shape.columns;
  }

  // The first of a unit's columns, among those of all samples.
  __device__ __forceinline__ int64_t ColumnOf(int unit) const {
    return static_cast<int64_t>(unit / shape.strips) * shape.channels +
           unit % shape.strips * shape.columns;
  }

  __device__ __forceinline__ void AddUp() const {
    WalkEdges([&](const StreamStep& step, unsigned sent) { Send(step, sent); },
              [&](const StreamStep& step, unsigned fetched) { Fetch(step, fetched); });
  }

  __device__ __forceinline__ float* PartialsOf(int unit) const {
    return work.partials +
           static_cast<int64_t>(unit) * shape.blocks * kStreamNumbers * shape.columns;
  }

  __device__ __forceinline__ void Send(const StreamStep& step, unsigned posted) const {
    const int numbers = kStreamNumbers * shape.columns;
    const int half = posted % 2;
    float* to = PartialsOf(step.unit) + static_cast<int64_t>(step.rank) * numbers;
    EntriesFull(half).Wait(posted / 2 & 1);
#pragma unroll 1
    for (int i = Clerk(); i < numbers; i += kClerkThreads) {
      const float* from = entries + half * kConsumers * numbers + i;
      float sum = from[0];
#pragma unroll
      for (int warp = 1; warp < kConsumers; ++warp) sum += from[warp * numbers];
      __stcg(to + i, sum);
    }
    SyncClerks();
    if (Clerk() == 0) {
      EntriesEmpty(half).Arrive();
      __threadfence();
      atomicAdd(work.posted + step.unit, 1u);
    }
  }

  // Adds up all blocks' sums, each block for itself and in the same order.
  __device__ __forceinline__ void Fetch(const StreamStep& step, unsigned fetched) const {
    const int clerk = Clerk();
    const int numbers = kStreamNumbers * shape.columns;
    const int quads = numbers / 4;
    const int readers = max(1, kClerkThreads / quads);
    AwaitPosts(work.posted + step.unit);
    const float* partials = PartialsOf(step.unit);
#pragma unroll 1
    for (int i = clerk; i < readers * quads; i += kClerkThreads) {
      const int quad = i % quads;
      double sums[4] = {0, 0, 0, 0};
#pragma unroll 8
      for (int post = i / quads; post < shape.blocks; post += readers) {
        const float4 at = __ldcg(reinterpret_cast<const float4*>(
            partials + static_cast<int64_t>(post) * numbers + 4 * quad));
        sums[0] += at.x;
        sums[1] += at.y;
        sums[2] += at.z;
        sums[3] += at.w;
      }
#pragma unroll
      for (int k = 0; k < 4; ++k) totals[i / quads * numbers + 4 * quad + k] = sums[k];
    }
    SyncClerks();
#pragma unroll 1
    for (int i = clerk; i < numbers; i += kClerkThreads) {
      double sum = totals[i];
      for (int reader = 1; reader < readers; ++reader) sum += totals[reader * numbers + i];
      totals[i] = sum;
    }
    SyncClerks();
    TakeTerms(step);
    SyncClerks();
    const int half = fetched % 2;
    LinesEmpty(half).Wait((fetched / 2 & 1) ^ 1);
    const int64_t column = ColumnOf(step.unit);
#pragma unroll 1
    for (int c = clerk; c < shape.columns; c += kClerkThreads) {
      const int g = c / shape.depth;
      terms[2 * half * shape.columns + c] = stats[g];
      terms[(2 * half + 1) * shape.columns + c] = stats[shape.columns + g];
      if (step.rank == 0) {
        work.sums[column + c] = {totals[c], totals[shape.columns + c],
                                 totals[2 * shape.columns + c]};
      }
    }
    SyncClerks();
    if (clerk == 0) LinesFull(half).Arrive();
  }

  // Of a unit's statistics, of `totals`.
  __device__ __forceinline__ void TakeTerms(const StreamStep& step) const {
    const int64_t n = step.unit / shape.strips;
    const int strip = step.unit % shape.strips;
    const int64_t stat = n * shape.norm_groups + static_cast<int64_t>(strip) * shape.stats();
    const double count = static_cast<double>(shape.rows) * shape.depth;
    const int lanes = shape.depth == 1 ? 1 : 32;
    const int lane = Clerk() % lanes;
#pragma unroll 1
    for (int g = Clerk() / lanes; g < shape.stats(); g += kClerkThreads / lanes) {
      double sums[3] = {0, 0, 0};
#pragma unroll 1
      for (int c = g * shape.depth + lane; c < (g + 1) * shape.depth; c += lanes) {
        const double gamma = ParamOr<float>(problem.param, buffers.gamma,
                                            shape.ParamOf(n, strip * shape.columns + c), 1);
        sums[0] += totals[c];
        sums[1] += gamma * totals[shape.columns + c];
        sums[2] += gamma * totals[2 * shape.columns + c];
      }
      if (lanes > 1) WarpSum(sums, 32);
      if (lane != 0) continue;
      const float mean = work.means[ColumnOf(step.unit) + g * shape.depth];
      const float rstd = static_cast<const float*>(buffers.rstd)[stat + g];
      const GradientTerms<float> found =
          TermsOf<float, double>(problem.formula, mean, rstd, sums[0], sums[1], sums[2], count);
      const float slope = found.rstd * found.slope;
      stats[g] = slope;
      stats[shape.columns + g] = found.low * slope - found.rstd * found.w_mean;
      if (step.rank == 0) work.lines[stat + g] = XhatLineOf(found);
    }
  }
};

#endif  // __CUDA_ARCH__ >= 900

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_BACKWARD_COLUMNS_STREAM_CLERKS_CUH_
