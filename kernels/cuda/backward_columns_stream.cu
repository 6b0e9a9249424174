// Gradients of instance and group norm, channels last, of tensors much larger than the chip. x and
// dy are read twice, the second time in part from the L2 cache, and memory has the next unit's sums
// to do while blocks tell each other those of the one before (columns_stream.h). A block's warps
// have roles and hand tiles in shared memory to each other.
#include <algorithm>

#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/backward_columns_stream_clerks.cuh"
#include "kernels/cuda/resident.cuh"

namespace nv_norms {
namespace cuda {
namespace {

constexpr int kPrepareThreads = 256;

int64_t SlotBytes(int beside) { return int64_t{kStreamVectors} * (kVectorBytes + beside); }

int64_t ScratchBytes(int columns) {
  const int64_t entries = int64_t{2} * 4 * kConsumers * kStreamNumbers * columns;
  const int64_t totals = int64_t{8} * std::max(4 * kClerkThreads, kStreamNumbers * columns);
  const int64_t terms = int64_t{4} * 6 * columns;
  return 8 * kStreamGates + entries + totals + terms;
}

// Zeros, and what all items of a column need to know of it.
__global__ void __launch_bounds__(kPrepareThreads)
    PrepareKernel(const __grid_constant__ StreamShape shape,
                  const __grid_constant__ BackwardProblem problem, const BackwardBuffers buffers,
                  const __grid_constant__ StreamWork work) {
  const int64_t threads = static_cast<int64_t>(gridDim.x) * kPrepareThreads;
  const int64_t first = blockIdx.x * int64_t{kPrepareThreads} + threadIdx.x;
  for (int64_t i = first; i < shape.units; i += threads) work.posted[i] = 0;
  for (int64_t i = first; i < work.columns; i += threads) {
    const int channel = static_cast<int>(i % shape.channels);
    const int64_t n = i / shape.channels;
    const int64_t stat = n * shape.norm_groups + channel / shape.depth;
    const int64_t param = shape.ParamOf(n, channel);
    work.means[i] = buffers.mean == nullptr ? 0.0f : static_cast<const float*>(buffers.mean)[stat];
    work.scales[i] = static_cast<const float*>(buffers.rstd)[stat] *
                     ParamOr<float>(problem.param, buffers.gamma, param, 1);
    work.betas[i] = ParamOr<float>(problem.param, buffers.beta, param, 0);
  }
}

#if __CUDA_ARCH__ >= 900

// ACT: an activation follows the norm.
template <typename X, typename D, bool ACT>
struct Stream : GradientClerks {
  static constexpr int kVec = kVectorBytes / sizeof(X);
  static constexpr int kBeside = kVec * sizeof(D);
  static constexpr int kSlotBytes = kStreamVectors * (kVectorBytes + kBeside);
  static constexpr int kItems = kStreamVectors / (32 * kConsumers);  // vectors of a tile, a thread

  char* tiles;  // [kStreamSlots]: vectors of x, then of dy

  __device__ __forceinline__ Stream(const StreamShape& shape, const BackwardProblem& problem,
                                    const BackwardBuffers& buffers, const StreamWork& work,
                                    void* shared)
      : GradientClerks(shape, problem, buffers, work,
                       static_cast<char*>(shared) + kStreamSlots * kSlotBytes),
        tiles(static_cast<char*>(shared)) {}

  // Half of every tile.
  __device__ __forceinline__ void LoadX(int half) const {
    LoadTiles<kStreamVectors, kLoaders / 2, kVectorBytes>(buffers.x, tiles, kSlotBytes, half);
  }
  __device__ __forceinline__ void LoadDy(int half) const {
    LoadTiles<kStreamVectors, kLoaders / 2, kBeside>(
        buffers.dy, tiles + kStreamVectors * kVectorBytes, kSlotBytes, half);
  }

  struct Place {
    int vector;  // of a row
    int row;
    int step;
  };

  __device__ __forceinline__ Place PlaceOfThread() const {
    const int thread = threadIdx.x - 32 * kFirstConsumer;
    return {thread % shape.vectors, thread / shape.vectors, 32 * kConsumers / shape.vectors};
  }

  // This thread's vectors of the next tile.
  __device__ __forceinline__ void TakeTile(StreamTurn& slots, uint32_t (&x)[kItems][4],
                                           uint32_t (&dy)[kItems][4]) const {
    using C = Chunk<kBeside>;
    const int thread = threadIdx.x - 32 * kFirstConsumer;
    const char* slot = tiles + slots.slot * kSlotBytes;
    const uint4* from = reinterpret_cast<const uint4*>(slot) + thread;
    const auto* beside =
        reinterpret_cast<const typename C::Type*>(slot + kStreamVectors * kVectorBytes) + thread;
    Full(slots.slot).Wait(slots.full());
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
      Chunk<kVectorBytes>::Split(from[j * 32 * kConsumers], x[j]);
      C::Split(beside[j * 32 * kConsumers], dy[j]);
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0) Empty(slots.slot).Arrive();
    slots.Next();
  }

  // What a thread knows of its columns of a unit.
  struct Line {
    float mean[kVec];
    float scale[kVec];
    float beta[ACT ? kVec : 4];
  };

  __device__ __forceinline__ void LoadLine(int unit, const Place& place, Line& line) const {
    const int64_t column = ColumnOf(unit) + place.vector * kVec;
    LoadColumns(work.means + column, line.mean);
    LoadColumns(work.scales + column, line.scale);
    if constexpr (ACT) LoadColumns(work.betas + column, line.beta);
  }

  // take(v, e, w) for each number of a vector, with e its x - mean and w its dy before the
  // activation. With one, more than two of 16 bits at once are more than fit into registers.
  template <typename Take>
  __device__ __forceinline__ void ForEach(const uint32_t (&x)[4], const uint32_t (&dy)[4],
                                          const Line& line, const Take& take) const {
    constexpr int kPart = 2;
#pragma unroll
    for (int at = 0; at < kVec; at += kPart) {
      float e[kPart];
      float w[kPart];
#pragma unroll
      for (int v = 0; v < kPart; ++v) {
        e[v] = To<float>::Of(Word<X>::Get(x, at + v)) - line.mean[at + v];
        w[v] = To<float>::Of(Word<D>::Get(dy, at + v));
      }
      if constexpr (ACT) {
        float t[kPart];
#pragma unroll
        for (int v = 0; v < kPart; ++v) t[v] = fmaf(e[v], line.scale[at + v], line.beta[at + v]);
        Activator<float>(problem.activation).Derive(t, w);
      }
#pragma unroll
      for (int v = 0; v < kPart; ++v) take(at + v, e[v], w[v]);
    }
  }

  __device__ __forceinline__ void Consume() const {
    const Place place = PlaceOfThread();
    const int lane = threadIdx.x % 32;
    Line in;   // of the unit whose sums are taken
    Line out;  // of the one that is written
    float sums[kStreamNumbers][kVec];
    float slope[kVec];
    float shift[kVec];
    int sum_unit = -1;
    const int64_t row_numbers = static_cast<int64_t>(shape.width) * kVec;
    const int64_t hop = place.step * row_numbers;
    int64_t base = 0;  // the first number that this thread writes of the unit
    StreamWalk walk(shape, blockIdx.x);
    StreamStep step;
    StreamTurn slots;
    unsigned posted = 0;
    unsigned fetched = 0;
#pragma unroll 1
    while (walk.Next(&step)) {
      int left = RowsOf(step);
      uint32_t x[kItems][4];
      uint32_t dy[kItems][4];
      if (!step.output) {
        if (step.unit != sum_unit) {
          sum_unit = step.unit;
          LoadLine(step.unit, place, in);
#pragma unroll
          for (int v = 0; v < kVec; ++v) sums[0][v] = sums[1][v] = sums[2][v] = 0;
        }
#pragma unroll 1
        for (; left > 0; left -= shape.tile_rows) {
          TakeTile(slots, x, dy);
#pragma unroll
          for (int j = 0; j < kItems; ++j) {
            if (place.row + j * place.step >= left) break;
            ForEach(x[j], dy[j], in, [&](int v, float e, float w) {
              sums[0][v] += e;
              sums[1][v] += w;
              sums[2][v] += w * e;
            });
          }
        }
        if (step.edge) Post(posted++, sums);
      } else {
        if (step.edge) {
          const int half = fetched % 2;
          LoadLine(step.unit, place, out);
          LinesFull(half).Wait(fetched / 2 & 1);
          LoadColumns(terms + 2 * half * shape.columns + place.vector * kVec, slope);
          LoadColumns(terms + (2 * half + 1) * shape.columns + place.vector * kVec, shift);
          __syncwarp();
          if (lane == 0) LinesEmpty(half).Arrive();
          ++fetched;
          const int64_t n = step.unit / shape.strips;
          const int strip = step.unit % shape.strips;
          base = (n * shape.rows + place.row) * row_numbers +
                 (strip * shape.vectors + place.vector) * kVec;
        }
        int64_t to = base + RowOf(step) * row_numbers;
#pragma unroll 1
        for (; left > 0; left -= shape.tile_rows) {
          TakeTile(slots, x, dy);
#pragma unroll
          for (int j = 0; j < kItems; ++j) {
            if (place.row + j * place.step >= left) break;
            float dx[kVec];
            ForEach(x[j], dy[j], out, [&](int v, float e, float w) {
              dx[v] = w * out.scale[v] - (e * slope[v] - shift[v]);
            });
            StoreStrip<X>(problem.dx, buffers.dx, to, dx, false);
            to += hop;
          }
        }
      }
    }
  }

  // The block's sums of a unit, to the clerks.
  __device__ __forceinline__ void Post(unsigned posted, float (&sums)[kStreamNumbers][kVec]) const {
#pragma unroll 1
    for (int lanes = shape.vectors; lanes < 32; lanes *= 2) {
#pragma unroll
      for (int k = 0; k < kStreamNumbers; ++k) {
#pragma unroll
        for (int v = 0; v < kVec; ++v) {
          sums[k][v] += __shfl_xor_sync(0xffffffffu, sums[k][v], lanes);
        }
      }
    }
    const int half = posted % 2;
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32 - kFirstConsumer;
    EntriesEmpty(half).Wait((posted / 2 & 1) ^ 1);
    if (lane < shape.vectors) {
      float* to =
          entries + (half * kConsumers + warp) * kStreamNumbers * shape.columns + lane * kVec;
#pragma unroll
      for (int k = 0; k < kStreamNumbers; ++k) {
#pragma unroll
        for (int v = 0; v < kVec; v += 4) {
          *reinterpret_cast<float4*>(to + k * shape.columns + v) =
              make_float4(sums[k][v], sums[k][v + 1], sums[k][v + 2], sums[k][v + 3]);
        }
      }
    }
    __syncwarp();
    if (lane == 0) EntriesFull(half).Arrive();
  }
};

#endif  // __CUDA_ARCH__ >= 900

template <typename X, typename D, bool ACT>
__global__ void __launch_bounds__(kStreamThreads, 1)
    BackwardStreamKernel(const __grid_constant__ StreamShape shape,
                         const __grid_constant__ BackwardProblem problem,
                         const BackwardBuffers buffers, const __grid_constant__ StreamWork work) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ uint4 shared[];
  using Roles = Stream<X, D, ACT>;
  const Roles stream(shape, problem, buffers, work, shared);
  if (threadIdx.x == 0) stream.Open();
  __syncthreads();
  const int warp = threadIdx.x / 32;
  if (warp >= kFirstConsumer) {
    stream.Consume();
  } else if (warp < kFirstLoader) {
    stream.AddUp();
  } else if (warp < kFirstLoader + kLoaders / 2) {
    stream.LoadX((warp - kFirstLoader) % 2);
  } else {
    stream.LoadDy((warp - kFirstLoader) % 2);
  }
#endif
}

using StreamKernel = void (*)(StreamShape, BackwardProblem, BackwardBuffers, StreamWork);

template <typename X, typename D>
StreamKernel KernelOf(bool activated) {
  if (activated) return BackwardStreamKernel<X, D, true>;
  return BackwardStreamKernel<X, D, false>;
}

// Null: no kernel for this problem.
StreamKernel KernelFor(const BackwardProblem& problem) {
  const bool activated = ActivatedOnChip(problem);
  if (!HasGradientKernel(problem) || problem.dx != problem.x) return nullptr;
  if (problem.x == DType::kFloat) {
    if (problem.dy == DType::kHalf) return KernelOf<float, __half>(activated);
    if (problem.dy == DType::kBfloat16) return KernelOf<float, __nv_bfloat16>(activated);
    return KernelOf<float, float>(activated);
  }
  if (problem.x == DType::kHalf) return KernelOf<__half, __half>(activated);
  return KernelOf<__nv_bfloat16, __nv_bfloat16>(activated);
}

int64_t SharedBytes(const StreamShape& shape, int beside) {
  return kStreamSlots * SlotBytes(beside) + ScratchBytes(shape.columns);
}

bool Cut(const BackwardPlan& plan, StreamShape* shape) {
  const BackwardProblem& problem = plan.problem;
  return KernelFor(problem) != nullptr && plan.want_dx &&
         CutStream(problem.geometry.columns, plan.device, static_cast<int>(SizeOf(problem.x)),
                   BesideOf(problem), ScratchBytes, shape);
}

}  // namespace

void PlanBackwardColumnsStream(BackwardPlan* plan) {
  StreamShape shape;
  if (!Cut(*plan, &shape)) return;
  plan->workspace = std::max(plan->workspace, StreamWork(shape, plan->problem, nullptr).bytes);
}

Status LaunchBackwardColumnsStream(const BackwardPlan& plan, const BackwardBuffers& buffers,
                                   void* workspace, void* stream, bool* launched) {
  const BackwardProblem& problem = plan.problem;
  StreamShape shape;
  *launched = buffers.dx != nullptr && Cut(plan, &shape) && AlignedTo(buffers.x, kVectorBytes) &&
              AlignedTo(buffers.dy, kVectorBytes) && AlignedTo(buffers.dx, kVectorBytes);
  if (!*launched) return Status();
  const StreamWork work(shape, problem, workspace);
  const int64_t prepared = std::max<int64_t>(shape.units, work.columns);
  NV_NORMS_RETURN_IF_ERROR(LaunchKernel(
      "preparation of streamed columns", PrepareKernel,
      static_cast<unsigned>(std::min<int64_t>(CeilDiv(prepared, kPrepareThreads), 1024)),
      kPrepareThreads, 0, 1, stream, shape, problem, buffers, work));
  NV_NORMS_RETURN_IF_ERROR(LaunchTogether("normalization gradient of streamed columns",
                                          KernelFor(problem), shape.blocks, kStreamThreads, true,
                                          SharedBytes(shape, BesideOf(problem)), stream, launched,
                                          shape, problem, buffers, work));
  if (!*launched) return Status();
  if (buffers.dgamma == nullptr && buffers.dbeta == nullptr) return Status();
  return LaunchColumnParams(problem.geometry.columns, problem.dparam, 1, work.sums, work.lines,
                            buffers, stream);
}

}  // namespace cuda
}  // namespace nv_norms
