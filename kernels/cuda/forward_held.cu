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
  int vectors;    // of a row, at most
  float inverse;  // 1 / numbers of a row
  ForwardProblem problem;
  ForwardBuffers buffers;
};

template <typename X, typename Y, int ITEMS, Runs RUNS, bool ACTIVATED>
__global__ void __launch_bounds__(kMostHeldThreads)
    HeldKernel(const __grid_constant__ Arguments args) {
  constexpr int VEC = kVectorOf<X>;
  __shared__ BlockStorage<1, float> sum_storage;
  __shared__ BlockStorage<2, float> squares_storage;
  const int row = static_cast<int>(blockIdx.x);
  const HeldRow<RUNS, VEC> at(row, args.problem.geometry.reduced, args.vectors);
  const X* x = static_cast<const X*>(args.buffers.x) + at.first;
  Bits<float, VEC> bits[ITEMS];
  LoadHeld(x, at.vectors, bits);
  float single = 0;
  if (at.HasSingle()) single = To<float>::Of(static_cast<const X*>(args.buffers.x)[at.single]);
  constexpr int kParams = kOneRun<RUNS> ? 1 : ITEMS;
  HeldParams<RUNS> params[kParams];
#pragma unroll
  for (int i = 0; i < kParams; ++i) {
    if (kOneRun<RUNS> || HasItem(i, at.vectors)) {
      params[i] = LoadHeldParams<RUNS, VEC>(args.runs, args.problem.param, args.buffers.gamma,
                                            args.buffers.beta, row, i);
    }
  }
  // Two passes: the second one about the first one's mean, or nearly so.
  const bool center = args.problem.formula != Formula::kRms;
  float shift = 0;
  if (center) {
    constexpr bool kPivot = kShortPivot<X>;
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
    if (at.HasSingle()) parts[0] += single - pivot;
    float sum[1] = {(parts[0] + parts[1]) + (parts[2] + parts[3])};
    BlockSum(sum, &sum_storage);
    ForgetConverted<X>(bits);
    shift = pivot + sum[0] * args.inverse;
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
    parts[0] += single - shift;
    parts[2] += (single - shift) * (single - shift);
  }
  float sums[2] = {parts[0] + parts[1], parts[2] + parts[3]};
  BlockSum(sums, &squares_storage);
  ForgetConverted<X>(bits);
  float low = 0;
  float m2 = sums[1];
  if (center) {
    low = sums[0] * args.inverse;
    m2 -= sums[0] * low;
    m2 = m2 < 0 ? 0.0f : m2;  // keeps NaN
  }
  const float rstd = ShortInverseRoot(m2 * args.inverse + static_cast<float>(args.problem.epsilon));
  if (threadIdx.x == 0) {
    if (args.buffers.mean != nullptr) static_cast<float*>(args.buffers.mean)[row] = shift + low;
    static_cast<float*>(args.buffers.rstd)[row] = rstd;
  }
  if (args.problem.formula != Formula::kCenter) shift = low = 0;
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    if (HasItem(i, at.vectors)) {
      const int column = static_cast<int>(i * blockDim.x + threadIdx.x) * VEC;
      float values[VEC];
      ConvertBits<X>(bits[i], values);
      const HeldParams<RUNS>& of = params[kOneRun<RUNS> ? 0 : i];
      const float scale = rstd * of.gamma;
      const float offset = of.beta - low * scale;
      if constexpr (RUNS == Runs::kNumbers) {
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
    const float scale = rstd * params[0].gamma;
    float y[1] = {(single - shift) * scale + (params[0].beta - low * scale)};
    if constexpr (ACTIVATED) Activator<float>(args.problem.activation).Apply(y);
    StoreAs(static_cast<Y*>(args.buffers.y) + at.single, y);
  }
}

using KernelPointer = void (*)(Arguments);

// Eight vectors to a thread spill registers in the others.
template <typename X, typename Y, Runs RUNS>
constexpr bool kHasEight = kOneRun<RUNS> || (RUNS == Runs::kVectors && sizeof(X) == sizeof(Y));

template <typename X, typename Y, Runs RUNS, bool ACTIVATED>
KernelPointer KernelOf(int items) {
  if (items == 2) return HeldKernel<X, Y, 2, RUNS, ACTIVATED>;
  if constexpr (kHasEight<X, Y, RUNS>) {
    if (items == 8) return HeldKernel<X, Y, 8, RUNS, ACTIVATED>;
  }
  return HeldKernel<X, Y, 4, RUNS, ACTIVATED>;
}

template <typename X, typename Y, Runs RUNS>
KernelPointer KernelOf(const ForwardProblem& problem, int items) {
  return Activated(problem) ? KernelOf<X, Y, RUNS, true>(items)
                            : KernelOf<X, Y, RUNS, false>(items);
}

KernelPointer KernelFor(const ForwardProblem& problem, int items) {
  return ForwardKernelOf(problem.x, problem.y, [&](auto* x, auto* y) -> KernelPointer {
    using X = std::remove_pointer_t<decltype(x)>;
    using Y = std::remove_pointer_t<decltype(y)>;
    if constexpr (std::is_void_v<Y>) {
      return nullptr;
    } else {
      switch (RunsOf(problem.geometry.rows, problem.x)) {
        case Runs::kOne:
          return KernelOf<X, Y, Runs::kOne>(problem, items);
        case Runs::kOneOdd:
          return KernelOf<X, Y, Runs::kOneOdd>(problem, items);
        case Runs::kVectors:
          return KernelOf<X, Y, Runs::kVectors>(problem, items);
        case Runs::kNumbers:
          return KernelOf<X, Y, Runs::kNumbers>(problem, items);
      }
      return nullptr;
    }
  });
}

// Vectors of 16 bytes to a thread; 0: these kernels do not suit. Parts of a copy's speed on an
// H200, by the kernels before -> by these, of rows x columns (in brackets of so many segments to a
// row): float16 1024 x 1728 0.74 -> 0.82 (two vectors to a thread), 8192 x 3136 0.84 -> 0.94, 2048
// x 4096 0.86 -> 0.92 (four), 4096 x 12544 0.76 -> 0.93, 1024 x 20000 0.77 -> 0.90 (eight), 2048 x
// 32768 0.83 -> 0.91, 384 x 50176 0.66 -> 0.74, but 1024 x 65536 0.78 -> 0.75; float32 8192 x 3136
// 0.94 -> 0.95, 256 x 13824 0.73 -> 0.93, but 1024 x 20000 0.84 -> 0.77; 2048 x 6272 (8) float16
// 0.52 -> 0.92, float32 0.66 -> 0.93; 1024 x 25088 (8) float16 0.69 -> 0.83, float32 0.79 -> 0.78,
// but 512 x 40960 (10) float16 0.76 -> 0.68. Odd rows, of any length that fits: float32 1024 x
// 32761 0.27
// -> 0.76.
int ItemsFor(const ForwardProblem& problem) {
  if (problem.in_double() || (problem.y != problem.x && problem.x != DType::kFloat)) return 0;
  const Runs runs = RunsOf(problem.geometry.rows, problem.x);
  const bool by_row = problem.geometry.rows.by_row();
  const int64_t vectors = HeldVectors(problem.geometry.rows, problem.x);
  const int64_t most = runs == Runs::kOneOdd        ? 8192
                       : problem.x == DType::kFloat ? 3584
                       : by_row                     ? 6912
                                                    : 4096;
  if (vectors > most) return 0;
  // Float32 to 16 bits, 32768 x 784: 0.71 with two vectors, 0.88 with four.
  if (vectors <= (problem.x == DType::kFloat ? 128 : 256)) return 2;
  const bool eight = by_row || (runs == Runs::kVectors && problem.y == problem.x);
  return vectors <= 1792 || !eight ? 4 : 8;
}

}  // namespace

Status LaunchForwardHeld(const ForwardPlan& plan, const ForwardBuffers& buffers, void* stream,
                         bool* launched) {
  *launched = false;
  const ForwardProblem& problem = plan.problem;
  const int items = ItemsFor(problem);
  if (items == 0 || !AlignedTo(buffers.x, kVectorBytes) || !AlignedTo(buffers.y, kVectorBytes)) {
    return Status();
  }
  const RowLayout& layout = problem.geometry.rows;
  const int64_t vectors = HeldVectors(layout, problem.x);
  Arguments args = {};
  args.runs = HeldRuns(layout, problem.x);
  args.vectors = static_cast<int>(vectors);
  args.inverse = 1.0f / static_cast<float>(problem.geometry.reduced);
  args.problem = problem;
  args.buffers = buffers;
  *launched = true;
  return LaunchKernel("normalization of rows that blocks hold", KernelFor(problem, items),
                      static_cast<unsigned>(layout.rows),
                      static_cast<unsigned>(HeldThreads(vectors, items)), 0, 1, stream, args);
}

}  // namespace cuda
}  // namespace nv_norms
