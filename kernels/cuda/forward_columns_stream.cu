// Instance and group norm, channels last, of tensors of few units that are larger than the chip: x
// is read twice, as in backward_columns_stream.cu.
#include <algorithm>

#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/forward_columns_stream_clerks.cuh"
#include "kernels/cuda/resident.cuh"

namespace nv_norms {
namespace cuda {
namespace {

constexpr int kTile = 1024;  // vectors of x

int64_t SharedBytes(int columns) {
  const int64_t entries = static_cast<int64_t>(sizeof(StreamFound)) * 2 * kConsumers * columns;
  const int64_t totals = int64_t{8} * 2 * std::max(kClerkThreads, columns);
  return int64_t{kStreamSlots} * kTile * kVectorBytes + 8 * kStreamGates + entries + totals +
         int64_t{4} * 3 * 3 * columns;
}

// Of the workspace: posts of every unit, [units, blocks, columns], and how many are there.
int64_t CountBytes(const StreamShape& shape) { return Align16(int64_t{4} * shape.units); }
int64_t PostBytes(const StreamShape& shape) {
  return static_cast<int64_t>(sizeof(StreamFound)) * shape.units * shape.blocks * shape.columns;
}

#if __CUDA_ARCH__ >= 900

template <typename X, typename Y, bool ACT>
struct Stream : ForwardClerks {
  static constexpr int kVec = kVectorBytes / sizeof(X);
  static constexpr int kItems = kTile / (32 * kConsumers);  // vectors of a tile, a thread

  uint4* tiles;  // [kStreamSlots, kTile]

  __device__ __forceinline__ Stream(const StreamShape& shape, const ForwardProblem& problem,
                                    const ForwardBuffers& buffers, unsigned* posted,
                                    StreamFound* posts, uint4* shared)
      : ForwardClerks(shape, problem, buffers, posted, posts,
                      reinterpret_cast<char*>(shared + kStreamSlots * kTile)),
        tiles(shared) {}

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
      StreamFound* to = entries + (half * kConsumers + warp) * shape.columns + lane * kVec;
#pragma unroll
      for (int v = 0; v < kVec; ++v) {
        to[v] = {sums.reference[v], sums.sum[v], sums.squares[v], sums.count};
      }
    }
    __syncwarp();
    if (lane == 0) EntriesFull(half).Arrive();
  }
};

#endif  // __CUDA_ARCH__ >= 900

template <typename X, typename Y, bool ACT>
__global__ void __launch_bounds__(kStreamThreads, 1)
    ForwardStreamKernel(const __grid_constant__ StreamShape shape,
                        const __grid_constant__ ForwardProblem problem,
                        const ForwardBuffers buffers, unsigned* posted, StreamFound* posts) {
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

using StreamKernel = void (*)(StreamShape, ForwardProblem, ForwardBuffers, unsigned*, StreamFound*);

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
  auto* posts = reinterpret_cast<StreamFound*>(static_cast<char*>(workspace) + CountBytes(shape));
  const char* name = "normalization of streamed columns";
  NV_NORMS_RETURN_IF_ERROR(FromCuda(
      cudaMemsetAsync(posted, 0, CountBytes(shape), static_cast<cudaStream_t>(stream)), name));
  return LaunchTogether(name, KernelFor(problem), shape.blocks, kStreamThreads, true,
                        SharedBytes(shape.columns), stream, launched, shape, problem, buffers,
                        posted, posts);
}

}  // namespace cuda
}  // namespace nv_norms
