// Rows whose parameters are their own (instance norm of NC...) or those of runs of columns (group
// norm of NC...): see held.h.
#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/held.cuh"
#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/resident.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/segments.h"
#include "kernels/cuda/short_row.cuh"
#include "kernels/cuda/staged.cuh"

namespace nv_norms {
namespace cuda {
namespace {

struct Arguments {
  SegmentRuns runs;
  HeldCut cut;
  int vectors;    // of a row, at most
  float inverse;  // 1 / numbers of a row
  ForwardProblem problem;
  ForwardBuffers buffers;
};

// Of what a block of a cluster has: how many numbers, their mean in two parts, and the squares
// about it.
enum PartOfRow { kCount, kHigh, kLow, kSquares, kPartNumbers };

template <typename X, typename Y, int ITEMS, Runs RUNS, bool ACTIVATED, bool CLUSTER>
__global__ void __launch_bounds__(kMostHeldThreads)
    HeldKernel(const __grid_constant__ Arguments args) {
  constexpr int VEC = kVectorOf<X>;
  __shared__ BlockStorage<1, float> sum_storage;
  __shared__ BlockStorage<2, float> squares_storage;
  if constexpr (CLUSTER) ArriveAtCluster(args.cut.blocks);
  const HeldRow<RUNS, VEC, CLUSTER> at(args.problem.geometry.reduced, args.vectors, args.cut.blocks,
                                       args.cut.share);
  const X* x = static_cast<const X*>(args.buffers.x) + at.first;
  Bits<float, VEC> bits[ITEMS];
  LoadHeld(x, at.vectors, bits);
  const auto load_single = [&] {
    return To<float>::Of(static_cast<const X*>(args.buffers.x)[at.Single()]);
  };
  extern __shared__ RunParams memory[];
  const RowRuns<RUNS, VEC, ITEMS, CLUSTER> runs(args.runs, at, args.problem.param,
                                                args.buffers.gamma, args.buffers.beta, memory);
  // Two passes: the second one about the first one's mean, or nearly so.
  const bool center = args.problem.formula != Formula::kRms;
  const float inverse = CLUSTER ? 1.0f / static_cast<float>(max(1, at.Numbers())) : args.inverse;
  float shift = 0;
  if (center) {
    constexpr bool kPivot = sizeof(X) == 4;
    const float pivot = kPivot ? To<float>::Of(x[0]) : 0.0f;
    float parts[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      if (HasItem(i, at.vectors)) {
        float values[VEC];
        ConvertBits<X>(bits[i], values);
#pragma unroll
        for (int v = 0; v < VEC; ++v) parts[v % 4] += kPivot ? values[v] - pivot : values[v];
      }
    }
    if (at.HasSingle()) parts[0] += load_single() - pivot;
    float sum[1] = {(parts[0] + parts[1]) + (parts[2] + parts[3])};
    BlockSum(sum, &sum_storage);
    ForgetConverted<X>(bits);
    shift = pivot + sum[0] * inverse;
  }
  float parts[4] = {0, 0, 0, 0};
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    if (HasItem(i, at.vectors)) {
      float values[VEC];
      ConvertBits<X>(bits[i], values);
#pragma unroll
      for (int v = 0; v < VEC; ++v) {
        const float e = values[v] - shift;
        parts[v % 2] += e;
        parts[2 + v % 2] += e * e;
      }
    }
  }
  if (at.HasSingle()) {
    const float e = load_single() - shift;
    parts[0] += e;
    parts[2] += e * e;
  }
  float sums[2] = {parts[0] + parts[1], parts[2] + parts[3]};
  BlockSum(sums, &squares_storage);
  ForgetConverted<X>(bits);
  float low = 0;
  float m2 = sums[1];
  if (center) {
    low = sums[0] * inverse;
    m2 -= sums[0] * low;
    m2 = m2 < 0 ? 0.0f : m2;  // keeps NaN
  }
  if constexpr (CLUSTER) {
    __shared__ float of_blocks[kMostHeldBlocks][kPartNumbers];
    const float mine[kPartNumbers] = {static_cast<float>(at.Numbers()), shift, low, m2};
    PostInCluster(mine, of_blocks, args.cut.blocks);
    // About the first block's mean, so that equal numbers have just this mean.
    const float high = of_blocks[0][kHigh];
    const auto mean_of = [&](int block) {
      return (of_blocks[block][kHigh] - high) + of_blocks[block][kLow];
    };
    float mean = 0;
#pragma unroll 1
    for (int block = 0; block < args.cut.blocks; ++block) {
      mean += mean_of(block) * (of_blocks[block][kCount] * args.inverse);
    }
    m2 = 0;
#pragma unroll 1
    for (int block = 0; block < args.cut.blocks; ++block) {
      const float e = mean_of(block) - mean;
      m2 += of_blocks[block][kSquares] + e * e * of_blocks[block][kCount];
    }
    shift = high + mean;
    low = (high - shift) + mean;
  }
  const float rstd = ShortInverseRoot(m2 * args.inverse + static_cast<float>(args.problem.epsilon));
  if (threadIdx.x == 0 && at.rank == 0) {
    if (args.buffers.mean != nullptr) static_cast<float*>(args.buffers.mean)[at.row] = shift + low;
    if (args.buffers.rstd != nullptr) static_cast<float*>(args.buffers.rstd)[at.row] = rstd;
  }
  if (args.problem.formula != Formula::kCenter) shift = low = 0;
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    if (HasItem(i, at.vectors)) {
      const int column = static_cast<int>(i * blockDim.x + threadIdx.x) * VEC;
      float values[VEC];
      ConvertBits<X>(bits[i], values);
      const HeldParams<RUNS> of = runs.Of(i);
      const float scale = rstd * of.gamma;
      const float offset = of.beta - low * scale;
      if constexpr (kRunsOfNumbers<RUNS>) {
        const float other_scale = rstd * of.others.gamma;
        const float other_offset = of.others.beta - low * other_scale;
#pragma unroll
        for (int v = 0; v < VEC; ++v) {
          const bool own = v < of.own;
          values[v] =
              (values[v] - shift) * (own ? scale : other_scale) + (own ? offset : other_offset);
        }
      } else {
#pragma unroll
        for (int v = 0; v < VEC; ++v) values[v] = (values[v] - shift) * scale + offset;
      }
      if constexpr (ACTIVATED) Activator<float>(args.problem.activation).Apply(values);
      StoreAs(static_cast<Y*>(args.buffers.y) + at.first + column, values);
    }
  }
  if (at.HasSingle()) {
    const RunParams of = runs.OfSingle();
    const float scale = rstd * of.gamma;
    float y[1] = {(load_single() - shift) * scale + (of.beta - low * scale)};
    if constexpr (ACTIVATED) Activator<float>(args.problem.activation).Apply(y);
    StoreAs(static_cast<Y*>(args.buffers.y) + at.Single(), y);
  }
}

using KernelPointer = void (*)(Arguments);

// Eight vectors to a thread spill registers in the others.
constexpr bool HasEight(Runs runs, bool same_size) { return runs != Runs::kVectors || same_size; }

template <typename X, typename Y, Runs RUNS, bool ACTIVATED>
KernelPointer KernelOf(const HeldCut& cut) {
  if constexpr (HasClusters(RUNS)) {
    if (cut.blocks > 1) return HeldKernel<X, Y, 8, RUNS, ACTIVATED, true>;
  }
  if (cut.items == 2) return HeldKernel<X, Y, 2, RUNS, ACTIVATED, false>;
  if constexpr (HasEight(RUNS, sizeof(X) == sizeof(Y))) {
    if (cut.items == 8) return HeldKernel<X, Y, 8, RUNS, ACTIVATED, false>;
  }
  return HeldKernel<X, Y, 4, RUNS, ACTIVATED, false>;
}

template <typename X, typename Y, Runs RUNS>
KernelPointer KernelOf(const ForwardProblem& problem, const HeldCut& cut) {
  return Activated(problem) ? KernelOf<X, Y, RUNS, true>(cut) : KernelOf<X, Y, RUNS, false>(cut);
}

KernelPointer KernelFor(const ForwardProblem& problem, const HeldCut& cut) {
  return ForwardKernelOf(problem.x, problem.y, [&](auto* x, auto* y) -> KernelPointer {
    using X = std::remove_pointer_t<decltype(x)>;
    using Y = std::remove_pointer_t<decltype(y)>;
    if constexpr (std::is_void_v<Y>) {
      return nullptr;
    } else {
      switch (RunsOf(problem.geometry.rows, problem.x)) {
        case Runs::kOne:
          return KernelOf<X, Y, Runs::kOne>(problem, cut);
        case Runs::kOneOdd:
          return KernelOf<X, Y, Runs::kOneOdd>(problem, cut);
        case Runs::kVectors:
          return KernelOf<X, Y, Runs::kVectors>(problem, cut);
        case Runs::kNumbers:
          return KernelOf<X, Y, Runs::kNumbers>(problem, cut);
        case Runs::kNumbersOdd:
          return KernelOf<X, Y, Runs::kNumbersOdd>(problem, cut);
      }
      return nullptr;
    }
  });
}

// No items: these kernels do not suit. Parts of a copy's speed on an H200, by the kernels before ->
// by these, of rows x columns (in brackets of so many segments to a
// row): float16 1024 x 1728 0.74 -> 0.82 (two vectors to a thread), 8192 x 3136 0.84 -> 0.94, 2048
// x 4096 0.86 -> 0.92 (four), 4096 x 12544 0.76 -> 0.93, 1024 x 20000 0.77 -> 0.90 (eight), 2048 x
// 32768 0.83 -> 0.91, 384 x 50176 0.66 -> 0.74, but 1024 x 65536 0.78 -> 0.75; float32 8192 x 3136
// 0.94 -> 0.95, 256 x 13824 0.73 -> 0.93, but 1024 x 20000 0.84 -> 0.77; 2048 x 6272 (8) float16
// 0.52 -> 0.92, float32 0.66 -> 0.93; 1024 x 25088 (8) float16 0.69 -> 0.83, float32 0.79 -> 0.78,
// but 512 x 40960 (10) float16 0.76 -> 0.68. Odd rows, of any length that fits: float32 1024 x
// 32761 0.27 -> 0.76; by clusters 512 x 66049 0.27 -> 0.64, float16 0.17 -> 0.68, 256 x 33282 (2)
// float32 0.17 -> 0.67.
HeldCut CutOf(const ForwardProblem& problem, const Device& device) {
  if (problem.in_double() || (problem.y != problem.x && problem.x != DType::kFloat)) return {};
  const Runs runs = RunsOf(problem.geometry.rows, problem.x);
  const bool by_row = problem.geometry.rows.by_row();
  const int64_t vectors = HeldVectors(problem.geometry.rows, problem.x);
  const int64_t most = runs == Runs::kOneOdd        ? 8192
                       : problem.x == DType::kFloat ? 3584
                       : by_row                     ? 6912
                                                    : 4096;
  if (vectors > most) {
    const bool clusters = HasClusters(runs) && device.capability >= 90;
    const bool full = runs == Runs::kOneOdd && problem.y != DType::kFloat;
    return clusters ? HeldCut::OfCluster(vectors, 8, full) : HeldCut();
  }
  // Float32 to 16 bits, 32768 x 784: 0.71 with two vectors, 0.88 with four.
  if (vectors <= (problem.x == DType::kFloat ? 128 : 256)) return HeldCut::Of(vectors, 2, 1);
  const bool eight = HasEight(runs, problem.y == problem.x);
  return HeldCut::Of(vectors, vectors <= 1792 || !eight ? 4 : 8, 1);
}

}  // namespace

Status LaunchForwardHeld(const ForwardPlan& plan, const ForwardBuffers& buffers, void* stream,
                         bool* launched) {
  *launched = false;
  const ForwardProblem& problem = plan.problem;
  const HeldCut cut = CutOf(problem, plan.device);
  if (cut.items == 0 || !AlignedTo(buffers.x, kVectorBytes) ||
      !AlignedTo(buffers.y, kVectorBytes)) {
    return Status();
  }
  const RowLayout& layout = problem.geometry.rows;
  Arguments args = {};
  args.runs = HeldRuns(layout, problem.x);
  args.cut = cut;
  args.vectors = static_cast<int>(HeldVectors(layout, problem.x));
  args.inverse = 1.0f / static_cast<float>(problem.geometry.reduced);
  args.problem = problem;
  args.buffers = buffers;
  return LaunchHeld("normalization of rows that blocks hold", KernelFor(problem, cut), cut,
                    layout.rows, RunBytes(layout, RunsOf(layout, problem.x), cut), stream, launched,
                    args);
}

}  // namespace cuda
}  // namespace nv_norms
