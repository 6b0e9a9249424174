// Instance and group norm, channels last, of tensors of few units that are larger than the chip: x
// is read twice, as in backward_columns_stream.cu.
#include <algorithm>

#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/columns_stream.cuh"
#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/resident.cuh"

namespace nv_norms {
namespace cuda {
namespace {

constexpr int kTile = 1024;  // vectors of x

// What a block, or a warp, found of a column: the mean is high + low, m2 the squares about it.
struct alignas(16) Found {
  float high;
  float low;
  float m2;
  float count;
};

int64_t SharedBytes(int columns) {
  const int64_t entries = static_cast<int64_t>(sizeof(Found)) * 2 * kConsumers * columns;
  const int64_t totals = int64_t{8} * 2 * std::max(kClerkThreads, columns);
  return int64_t{kStreamSlots} * kTile * kVectorBytes + 8 * kStreamGates + entries + totals +
         int64_t{4} * 3 * 3 * columns;
}

// Of the workspace: posts of every unit, [units, blocks, columns], and how many are there.
int64_t CountBytes(const StreamShape& shape) { return Align16(int64_t{4} * shape.units); }
int64_t PostBytes(const StreamShape& shape) {
  return static_cast<int64_t>(sizeof(Found)) * shape.units * shape.blocks * shape.columns;
}

#if __CUDA_ARCH__ >= 900

__device__ __forceinline__ double MeanOf(const Found& found) {
  return static_cast<double>(found.high) + found.low;
}

template <typename X, typename Y, bool ACT>
struct Stream : StreamGates {
  static constexpr int kVec = kVectorBytes / sizeof(X);
  static constexpr int kItems = kTile / (32 * kConsumers);  // vectors of a tile, a thread

  const ForwardProblem& problem;
  const ForwardBuffers& buffers;
  unsigned* posted;  // [units]
  Found* posts;      // [units, blocks, columns]
  uint4* tiles;      // [kStreamSlots, kTile]
  double* totals;    // [2, readers, columns]
  Found* entries;    // [2, kConsumers, columns]
  float* lines;      // [2, 3, columns]: y = (x - high) * scale + shift
  float* stats;      // [3, columns]: high, low and rstd of statistics

  __device__ __forceinline__ Stream(const StreamShape& shape, const ForwardProblem& problem,
                                    const ForwardBuffers& buffers, unsigned* posted, Found* posts,
                                    void* shared)
      : StreamGates(shape), problem(problem), buffers(buffers), posted(posted), posts(posts) {
    tiles = static_cast<uint4*>(shared);
    char* to = reinterpret_cast<char*>(tiles + kStreamSlots * kTile);
    gates = reinterpret_cast<uint64_t*>(to);
    to += 8 * kStreamGates;
    entries = reinterpret_cast<Found*>(to);
    to += sizeof(Found) * 2 * kConsumers * shape.columns;
    totals = reinterpret_cast<double*>(to);
    to += 8 * 2 * max(kClerkThreads, shape.columns);
    lines = reinterpret_cast<float*>(to);
    stats = lines + 2 * 3 * shape.columns;
  }

  __device__ __forceinline__ void Load(int part) const {
    LoadTiles<kTile, kLoaders, kVectorBytes>(buffers.x, reinterpret_cast<char*>(tiles),
                                             kTile * kVectorBytes, part);
  }

  __device__ __forceinline__ static float Get(const uint32_t (&words)[4], int v) {
    return To<float>::Of(Word<X>::Get(words, v));
  }

  // About the mean of what the thread has seen.
  struct Sums {
    float count;
    float reference[kVec];
    float sum[kVec];      // of x - reference
    float squares[kVec];  // of its square

    __device__ __forceinline__ void Clear() {
      count = 0;
#pragma unroll
      for (int v = 0; v < kVec; ++v) reference[v] = sum[v] = squares[v] = 0;
    }

    __device__ __forceinline__ void Add(const uint32_t (&words)[kItems][4], int items,
                                        bool about_mean) {
      if (items <= 0) return;
      if (count == 0 && about_mean) {
#pragma unroll
        for (int v = 0; v < kVec; ++v) reference[v] = Get(words[0], v);
      }
      count += static_cast<float>(items);
#pragma unroll
      for (int j = 0; j < kItems; ++j) {
        if (j >= items) break;
#pragma unroll
        for (int v = 0; v < kVec; ++v) {
          const float x = Get(words[j], v) - reference[v];
          sum[v] += x;
          squares[v] += x * x;
        }
      }
      if (about_mean && IsPowerOfTwo(count)) Center(count, reference, sum, squares);
    }

    __device__ __forceinline__ void Merge(int vectors, bool about_mean) {
      MergeThreads(vectors, about_mean, count, reference, sum, squares);
    }
  };

  __device__ __forceinline__ bool about_mean() const { return problem.formula != Formula::kRms; }

  __device__ __forceinline__ void Consume() const {
    const int thread = threadIdx.x - 32 * kFirstConsumer;
    const int lane = threadIdx.x % 32;
    const int vector = thread % shape.vectors;
    const int row = thread / shape.vectors;
    const int row_step = 32 * kConsumers / shape.vectors;
    const int64_t row_numbers = static_cast<int64_t>(shape.width) * kVec;
    const Activator<float> activator(problem.activation);
    Sums sums;
    float high[kVec];
    float scale[kVec];
    float shift[kVec];
    int64_t base = 0;  // the first number that this thread writes of the unit
    int sum_unit = -1;
    unsigned sent = 0;
    unsigned fetched = 0;
    StreamWalk walk(shape, blockIdx.x);
    StreamStep step;
    StreamTurn slots;
#pragma unroll 1
    while (walk.Next(&step)) {
      if (step.output && step.edge) {
        const int half = fetched % 2;
        LinesFull(half).Wait(fetched / 2 & 1);
        const float* from = lines + 3 * half * shape.columns + vector * kVec;
#pragma unroll
        for (int v = 0; v < kVec; ++v) {
          high[v] = from[v];
          scale[v] = from[shape.columns + v];
          shift[v] = from[2 * shape.columns + v];
        }
        __syncwarp();
        if (lane == 0) LinesEmpty(half).Arrive();
        ++fetched;
        const int64_t n = step.unit / shape.strips;
        const int strip = step.unit % shape.strips;
        base = (n * shape.rows + row) * row_numbers + (strip * shape.vectors + vector) * kVec;
      }
      if (!step.output && step.unit != sum_unit) {
        sum_unit = step.unit;
        sums.Clear();
      }
      int64_t to = base + RowOf(step) * row_numbers;
#pragma unroll 1
      for (int left = RowsOf(step); left > 0; left -= shape.tile_rows) {
        uint32_t words[kItems][4];
        const uint4* from = tiles + slots.slot * kTile + thread;
        Full(slots.slot).Wait(slots.full());
#pragma unroll
        for (int j = 0; j < kItems; ++j) {
          Chunk<kVectorBytes>::Split(from[j * 32 * kConsumers], words[j]);
        }
        __syncwarp();
        if (lane == 0) Empty(slots.slot).Arrive();
        slots.Next();
        const int items = left >= shape.tile_rows ? kItems : (left - row + row_step - 1) / row_step;
        if (!step.output) {
          sums.Add(words, items, about_mean());
          continue;
        }
#pragma unroll
        for (int j = 0; j < kItems; ++j) {
          if (j >= items) break;
          float y[kVec];
#pragma unroll
          for (int v = 0; v < kVec; ++v) {
            y[v] = (Get(words[j], v) - high[v]) * scale[v] + shift[v];
          }
          if constexpr (ACT) activator.Apply(y);
          StoreStrip<Y>(problem.y, buffers.y, to, y, false);
          to += row_step * row_numbers;
        }
      }
      if (!step.output && step.edge) Post(sent++, sums);
    }
  }

  // The block's sums of a unit, to the clerks.
  __device__ __forceinline__ void Post(unsigned sent, Sums& sums) const {
    const int half = sent % 2;
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32 - kFirstConsumer;
    sums.Merge(shape.vectors, about_mean());
    EntriesEmpty(half).Wait((sent / 2 & 1) ^ 1);
    if (lane < shape.vectors) {
      Found* to = entries + (half * kConsumers + warp) * shape.columns + lane * kVec;
#pragma unroll
      for (int v = 0; v < kVec; ++v) {
        to[v] = {sums.reference[v], sums.sum[v], sums.squares[v], sums.count};
      }
    }
    __syncwarp();
    if (lane == 0) EntriesFull(half).Arrive();
  }

  // The clerks' work.
  __device__ __forceinline__ void AddUp() const {
    WalkEdges([&](const StreamStep& step, unsigned sent) { Send(step, sent); },
              [&](const StreamStep& step, unsigned fetched) { Fetch(step, fetched); });
  }

  __device__ __forceinline__ Found* PostsOf(int unit) const {
    return posts + static_cast<int64_t>(unit) * shape.blocks * shape.columns;
  }

  __device__ __forceinline__ void Send(const StreamStep& step, unsigned sent) const {
    const int half = sent % 2;
    Found* to = PostsOf(step.unit) + static_cast<int64_t>(step.rank) * shape.columns;
    EntriesFull(half).Wait(sent / 2 & 1);
#pragma unroll 1
    for (int c = Clerk(); c < shape.columns; c += kClerkThreads) {
      const Found* from = entries + half * kConsumers * shape.columns + c;
      const double about = MeanOf(*from);  // the first warp has rows
      double count = 0;
      double sum = 0;
      double squares = 0;
#pragma unroll
      for (int warp = 0; warp < kConsumers; ++warp) {
        const Found entry = from[warp * shape.columns];
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
      return Found{at.x, at.y, at.z, at.w};
    };
#pragma unroll 1
    for (int i = clerk; i < readers * columns; i += kClerkThreads) {
      const int c = i % columns;
      const double about = MeanOf(look(0, c));
      double sum = 0;
      double squares = 0;
#pragma unroll 8
      for (int post = i / columns; post < shape.blocks; post += readers) {
        const Found found = look(post, c);
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

template <typename X, typename Y, bool ACT>
__global__ void __launch_bounds__(kStreamThreads, 1)
    ForwardStreamKernel(const __grid_constant__ StreamShape shape,
                        const __grid_constant__ ForwardProblem problem,
                        const ForwardBuffers buffers, unsigned* posted, Found* posts) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ uint4 shared[];
  const Stream<X, Y, ACT> stream(shape, problem, buffers, posted, posts, shared);
  if (threadIdx.x == 0) stream.Open();
  __syncthreads();
  const int warp = threadIdx.x / 32;
  if (warp >= kFirstConsumer) {
    stream.Consume();
  } else if (warp < kFirstLoader) {
    stream.AddUp();
  } else {
    stream.Load(warp - kFirstLoader);
  }
#endif
}

using StreamKernel = void (*)(StreamShape, ForwardProblem, ForwardBuffers, unsigned*, Found*);

template <bool ACT>
StreamKernel KernelOf(DType x, DType y) {
  if (x == DType::kFloat) {
    if (y == DType::kHalf) return ForwardStreamKernel<float, __half, ACT>;
    if (y == DType::kBfloat16) return ForwardStreamKernel<float, __nv_bfloat16, ACT>;
    return ForwardStreamKernel<float, float, ACT>;
  }
  if (x != y) return nullptr;
  if (x == DType::kHalf) return ForwardStreamKernel<__half, __half, ACT>;
  return ForwardStreamKernel<__nv_bfloat16, __nv_bfloat16, ACT>;
}

// Null: no kernel for these types.
StreamKernel KernelFor(const ForwardProblem& problem) {
  if (problem.in_double()) return nullptr;
  return ActivatedOnChip(problem) ? KernelOf<true>(problem.x, problem.y)
                                  : KernelOf<false>(problem.x, problem.y);
}

bool Cut(const ForwardPlan& plan, StreamShape* shape) {
  const ForwardProblem& problem = plan.problem;
  const int size = static_cast<int>(SizeOf(problem.x));
  return KernelFor(problem) != nullptr &&
         CutForwardStream(problem.geometry.columns, plan.device, size,
                          static_cast<int>(SizeOf(problem.y)), kTile, SharedBytes, shape);
}

}  // namespace

void PlanForwardColumnsStream(ForwardPlan* plan) {
  StreamShape shape;
  if (!Cut(*plan, &shape)) return;
  plan->workspace = std::max(plan->workspace, CountBytes(shape) + PostBytes(shape));
}

Status LaunchForwardColumnsStream(const ForwardPlan& plan, const ForwardBuffers& buffers,
                                  void* workspace, void* stream, bool* launched) {
  const ForwardProblem& problem = plan.problem;
  StreamShape shape;
  *launched =
      Cut(plan, &shape) && AlignedTo(buffers.x, kVectorBytes) && AlignedTo(buffers.y, kVectorBytes);
  if (!*launched) return Status();
  auto* posted = static_cast<unsigned*>(workspace);
  auto* posts = reinterpret_cast<Found*>(static_cast<char*>(workspace) + CountBytes(shape));
  const char* name = "normalization of streamed columns";
  NV_NORMS_RETURN_IF_ERROR(FromCuda(
      cudaMemsetAsync(posted, 0, CountBytes(shape), static_cast<cudaStream_t>(stream)), name));
  return LaunchTogether(name, KernelFor(problem), shape.blocks, kStreamThreads, true,
                        SharedBytes(shape.columns), stream, launched, shape, problem, buffers,
                        posted, posts);
}

}  // namespace cuda
}  // namespace nv_norms
