// Gradients of rows whose parameters are their own (instance norm of NC...) or those of runs of
// columns (group norm of NC...): see held.h.
#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/held.cuh"
#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/resident.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/segments_sums.cuh"
#include "kernels/cuda/staged.cuh"

namespace nv_norms {
namespace cuda {
namespace {

struct Arguments {
  SegmentRuns runs;
  int vectors;    // of a row, at most
  int lanes;      // that add up a run's sums
  float inverse;  // 1 / numbers of a row
  BackwardProblem problem;
  BackwardBuffers buffers;
  SegmentSums<float>* sums;  // [rows, segments]; null where not wanted
  XhatLine<float>* lines;    // [rows]
};

// Sums over every run of columns, from those of its vectors in shared memory, in a fixed order. A
// vector that has numbers of two runs is the former's; those of the latter are in its head, behind
// the vectors.
template <Runs RUNS, int VEC>
__device__ __forceinline__ void StoreRunSums(const Arguments& args, int row,
                                             const float2* vectors) {
  constexpr int kUnit = RUNS == Runs::kNumbers ? VEC : 1;  // of a run's length, to a vector
  const int lane = threadIdx.x & (args.lanes - 1);
  const int runs = static_cast<int>(args.runs.layout.segments);
  const int length = static_cast<int>(args.runs.length.value);
  const int at_once = static_cast<int>(blockDim.x) / args.lanes;
  for (int first = 0; first < runs; first += at_once) {
    const int run = first + static_cast<int>(threadIdx.x) / args.lanes;
    float sums[2] = {0, 0};
    const auto add = [&](const float2& of) {
      sums[0] += of.x;
      sums[1] += of.y;
    };
    if (run < runs) {
      const int begin = (run * length + kUnit - 1) / kUnit;
      const int end = ((run + 1) * length + kUnit - 1) / kUnit;
      for (int i = begin + lane; i < end; i += args.lanes) add(vectors[i]);
    }
    WarpSum(sums, args.lanes);
    if (RUNS == Runs::kNumbers && run < runs && run * length % kUnit != 0) {
      add(vectors[args.vectors + run]);
    }
    if (run < runs && lane == 0) args.sums[int64_t{row} * runs + run] = {sums[0], sums[1]};
  }
}

template <typename X, typename D, int ITEMS, Runs RUNS, Behind BEHIND>
__global__ void __launch_bounds__(kMostHeldThreads)
    HeldKernel(const __grid_constant__ Arguments args) {
  constexpr int VEC = kVectorOf<X>;
  LetNextKernelStart();
  __shared__ BlockStorage<3, float> storage;
  // Of dy and dy * e, where there are runs: of vectors, and of runs' heads (see StoreRunSums).
  extern __shared__ float2 vector_sums[];
  const int row = static_cast<int>(blockIdx.x);
  const HeldRow<RUNS, VEC> at(row, args.problem.geometry.reduced, args.vectors);
  Bits<float, VEC> x_bits[ITEMS];
  Bits<float, VEC> dy_bits[ITEMS];
  LoadHeld(static_cast<const X*>(args.buffers.x) + at.first, at.vectors, x_bits);
  LoadHeld(static_cast<const D*>(args.buffers.dy) + at.first, at.vectors, dy_bits);
  float single_x = 0;
  float single_dy = 0;
  if (at.HasSingle()) {
    single_x = To<float>::Of(static_cast<const X*>(args.buffers.x)[at.single]);
    single_dy = To<float>::Of(static_cast<const D*>(args.buffers.dy)[at.single]);
  }
  const float mean = StoredMean<float>(args.buffers, DType::kFloat, row);
  const float rstd = static_cast<const float*>(args.buffers.rstd)[row];
  const auto load_params = [&](int i) {
    return LoadHeldParams<RUNS, VEC>(args.runs, args.problem.param, args.buffers.gamma,
                                     BEHIND != Behind::kNothing ? args.buffers.beta : nullptr, row,
                                     i);
  };
  // Those of runs of numbers, for which there are too few registers, are loaded when needed.
  constexpr int kParams = RUNS == Runs::kVectors ? ITEMS : 1;
  HeldParams<RUNS> params[kParams];
  if constexpr (RUNS != Runs::kNumbers) {
#pragma unroll
    for (int i = 0; i < kParams; ++i) {
      if (kOneRun<RUNS> || HasItem(i, at.vectors)) params[i] = load_params(i);
    }
  }
  const auto params_of = [&](int i) -> decltype(auto) {
    if constexpr (RUNS == Runs::kNumbers) {
      return load_params(i);
    } else {
      return (params[kOneRun<RUNS> ? 0 : i]);
    }
  };
  // x - mean, and the gradient of what is before the activation.
  const auto read = [&](int i, const HeldParams<RUNS>& of, float (&e)[VEC], float (&d)[VEC]) {
    ConvertBits<X>(x_bits[i], e);
    ConvertBits<D>(dy_bits[i], d);
#pragma unroll
    for (int v = 0; v < VEC; ++v) e[v] -= mean;
    if constexpr (BEHIND != Behind::kNothing) {
      Activator<float> activator(args.problem.activation);
      activator.silu = BEHIND == Behind::kSilu;  // known to the compiler
      float t[VEC];
#pragma unroll
      for (int v = 0; v < VEC; ++v) {
        if constexpr (RUNS == Runs::kNumbers) {
          t[v] = v < of.own ? fmaf(e[v], rstd * of.gamma, of.beta)
                            : fmaf(e[v], rstd * of.others.gamma, of.others.beta);
        } else {
          t[v] = fmaf(e[v], rstd * of.gamma, of.beta);
        }
      }
      activator.Derive(t, d);
    }
  };
  float sums[3] = {0, 0, 0};
  if (at.HasSingle()) {
    single_x -= mean;
    if constexpr (BEHIND != Behind::kNothing) {
      Activator<float> activator(args.problem.activation);
      activator.silu = BEHIND == Behind::kSilu;
      const float t[1] = {fmaf(single_x, rstd * params[0].gamma, params[0].beta)};
      float d[1] = {single_dy};
      activator.Derive(t, d);
      single_dy = d[0];
    }
    sums[0] = single_x;
    sums[1] = single_dy;
    sums[2] = single_dy * single_x;
  }
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    if (HasItem(i, at.vectors)) {
      const auto& params_here = params_of(i);
      float e[VEC];
      float d[VEC];
      read(i, params_here, e, d);
      float of_e[2] = {0, 0};
      float of_dy[2] = {0, 0};
      float of_dy_e[2] = {0, 0};
      float2 others = {0, 0};
#pragma unroll
      for (int v = 0; v < VEC; ++v) {
        of_e[v % 2] += e[v];
        if constexpr (RUNS == Runs::kNumbers) {
          if (v >= params_here.own) {
            others.x += d[v];
            others.y += d[v] * e[v];
            continue;
          }
        }
        of_dy[v % 2] += d[v];
        of_dy_e[v % 2] += d[v] * e[v];
      }
      const float2 of = {of_dy[0] + of_dy[1], of_dy_e[0] + of_dy_e[1]};
      const float weight = kOneRun<RUNS> ? 1.0f : params_here.gamma;
      sums[0] += of_e[0] + of_e[1];
      sums[1] += weight * of.x;
      sums[2] += weight * of.y;
      if (!kOneRun<RUNS> && args.sums != nullptr) {
        vector_sums[i * blockDim.x + threadIdx.x] = of;
      }
      if constexpr (RUNS == Runs::kNumbers) {
        if (params_here.own < VEC) {
          sums[1] += params_here.others.gamma * others.x;
          sums[2] += params_here.others.gamma * others.y;
          const unsigned vector = i * blockDim.x + threadIdx.x;
          if (args.sums != nullptr) {
            vector_sums[args.vectors + args.runs.SegmentAt(vector * VEC) + 1] = others;
          }
        }
      }
    }
  }
  BlockSum(sums, &storage);
  ForgetConverted<X>(x_bits);
  ForgetConverted<D>(dy_bits);
  float weight = 1;
  if constexpr (kOneRun<RUNS>) weight = params[0].gamma;
  const GradientLine line = LineOf(args.problem.formula, mean, rstd, sums[0], weight * sums[1],
                                   weight * sums[2], args.inverse);
  if (args.sums != nullptr && threadIdx.x == 0) {
    if (kOneRun<RUNS>) args.sums[row] = {sums[1], sums[2]};
    args.lines[row] = {rstd, line.xhat_offset};
  }
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    if (HasItem(i, at.vectors)) {
      const int column = static_cast<int>(i * blockDim.x + threadIdx.x) * VEC;
      const auto& of = params_of(i);
      const float scale = rstd * of.gamma;
      float e[VEC];
      float d[VEC];
      read(i, of, e, d);
#pragma unroll
      for (int v = 0; v < VEC; ++v) {
        float scale_here = scale;
        if constexpr (RUNS == Runs::kNumbers) {
          if (v >= of.own) scale_here = rstd * of.others.gamma;
        }
        d[v] = d[v] * scale_here + (line.offset - e[v] * line.slope);
      }
      StoreAs(static_cast<X*>(args.buffers.dx) + at.first + column, d);
    }
  }
  if (at.HasSingle()) {
    const float d[1] = {single_dy * (rstd * params[0].gamma) +
                        (line.offset - single_x * line.slope)};
    StoreAs(static_cast<X*>(args.buffers.dx) + at.single, d);
  }
  if (!kOneRun<RUNS> && args.sums != nullptr) StoreRunSums<RUNS, VEC>(args, row, vector_sums);
}

using KernelPointer = void (*)(Arguments);

// Five vectors to a thread spill registers in the others.
constexpr bool HasFive(DType x, Runs runs) {
  return x == DType::kFloat && (runs == Runs::kOne || runs == Runs::kVectors);
}

template <typename X, typename D, Runs RUNS, Behind BEHIND>
KernelPointer KernelOf(int items) {
  if (items == 2) return HeldKernel<X, D, 2, RUNS, BEHIND>;
  if constexpr (sizeof(X) == 4 && HasFive(DType::kFloat, RUNS)) {
    if (items == 5) return HeldKernel<X, D, 5, RUNS, BEHIND>;
  }
  return HeldKernel<X, D, 4, RUNS, BEHIND>;
}

template <typename X, typename D, Runs RUNS>
KernelPointer KernelOf(const Activation& activation, int items) {
  if (activation.none()) return KernelOf<X, D, RUNS, Behind::kNothing>(items);
  if (activation.silu) return KernelOf<X, D, RUNS, Behind::kSilu>(items);
  return KernelOf<X, D, RUNS, Behind::kRelu>(items);
}

KernelPointer KernelFor(const BackwardProblem& problem, int items) {
  return BackwardKernelOf(problem, [&](auto* x, auto* dy, auto* dx) -> KernelPointer {
    using X = std::remove_pointer_t<decltype(x)>;
    using D = std::remove_pointer_t<decltype(dy)>;
    using Y = std::remove_pointer_t<decltype(dx)>;
    if constexpr (std::is_void_v<Y>) {
      return nullptr;
    } else {
      switch (RunsOf(problem.geometry.rows, problem.x)) {
        case Runs::kOne:
          return KernelOf<X, D, Runs::kOne>(problem.activation, items);
        case Runs::kOneOdd:
          return KernelOf<X, D, Runs::kOneOdd>(problem.activation, items);
        case Runs::kVectors:
          return KernelOf<X, D, Runs::kVectors>(problem.activation, items);
        case Runs::kNumbers:
          return KernelOf<X, D, Runs::kNumbers>(problem.activation, items);
      }
      return nullptr;
    }
  });
}

// Vectors of 16 bytes to a thread; 0: these kernels do not suit. Parts of a copy's speed on an
// H200, by the kernels before -> by these, of rows x columns (in brackets of so many segments to a
// row): float16 1024 x 1728 0.87 -> 0.93 (two vectors to a thread), 8192 x 3136 0.80 -> 0.92, 512 x
// 12288 0.76 -> 0.85, 1024 x 20000 0.75 -> 0.89, 512 x 24576 0.70 -> 0.82, 1024 x 32768 0.86 ->
// 0.86, with a leaky relu 0.65 -> 0.76; float32 8192 x 3136 0.91 -> 0.94, 256 x 13824 0.78 -> 0.91,
// 1024 x 20480 0.80 -> 0.90 (five), but 512 x 24576 (six) 0.85 -> 0.85, and beside 16 bits with
// silu 32768 x 784 0.84 -> 0.73; 2048 x 4096 (4) float16 0.40 -> 0.83, float32 0.57 -> 0.86; 1024 x
// 12544 (16) float16 0.36 -> 0.73, float32 0.41 -> 0.76.
int ItemsFor(const BackwardProblem& problem) {
  if (!HasGradientKernel(problem) || problem.dx != problem.x) return 0;
  const bool by_float = problem.x == DType::kFloat;
  const int64_t vectors = HeldVectors(problem.geometry.rows, problem.x);
  const Runs runs = RunsOf(problem.geometry.rows, problem.x);
  if (vectors > (HasFive(problem.x, runs) ? 5120 : 4096)) return 0;
  if (by_float && runs == Runs::kOne && vectors < 256) return 0;
  if (vectors <= 448) return 2;
  return vectors > 3584 && HasFive(problem.x, runs) ? 5 : 4;
}

// Where things lie in the workspace.
int64_t LinesAt(const BackwardProblem& problem) {
  return Align16(SumsBytes<float>(SegmentLayout::Of(problem.geometry.rows), 1));
}

}  // namespace

void PlanBackwardHeld(BackwardPlan* plan) {
  const BackwardProblem& problem = plan->problem;
  if (!plan->want_dx || ItemsFor(problem) == 0) return;
  plan->workspace = std::max(plan->workspace, LinesAt(problem) + Align16(XhatLineBytes(problem)));
}

Status LaunchBackwardHeld(const BackwardPlan& plan, const BackwardBuffers& buffers, void* workspace,
                          void* stream, bool* launched) {
  *launched = false;
  const BackwardProblem& problem = plan.problem;
  const int items = ItemsFor(problem);
  if (items == 0 || buffers.dx == nullptr || !AlignedTo(buffers.x, kVectorBytes) ||
      !AlignedTo(buffers.dy, kVectorBytes) || !AlignedTo(buffers.dx, kVectorBytes)) {
    return Status();
  }
  const SegmentLayout layout = SegmentLayout::Of(problem.geometry.rows);
  const int64_t vectors = HeldVectors(problem.geometry.rows, problem.x);
  Arguments args = {};
  args.runs = HeldRuns(problem.geometry.rows, problem.x);
  args.vectors = static_cast<int>(vectors);
  args.lanes = PowerOfTwo(std::min<int64_t>(32, vectors / layout.segments));
  args.inverse = 1.0f / static_cast<float>(problem.geometry.reduced);
  args.problem = problem;
  args.buffers = buffers;
  const bool params = buffers.dgamma != nullptr || buffers.dbeta != nullptr;
  if (params) {
    char* const base = static_cast<char*>(workspace);
    args.sums = reinterpret_cast<SegmentSums<float>*>(base);
    args.lines = reinterpret_cast<XhatLine<float>*>(base + LinesAt(problem));
  }
  *launched = true;
  const Runs runs = RunsOf(problem.geometry.rows, problem.x);
  const KernelPointer kernel = KernelFor(problem, items);
  const int64_t sums = problem.geometry.rows.by_row() ? 0
                       : runs == Runs::kVectors       ? vectors
                                                      : vectors + layout.segments;
  const int64_t shared = sums * static_cast<int64_t>(sizeof(float2));
  const char* const name = "normalization gradient of rows that blocks hold";
  NV_NORMS_RETURN_IF_ERROR(AllowShared(kernel, shared, name));
  NV_NORMS_RETURN_IF_ERROR(LaunchKernel(name, kernel, static_cast<unsigned>(layout.rows),
                                        static_cast<unsigned>(HeldThreads(vectors, items)),
                                        static_cast<size_t>(shared), 1, stream, args));
  if (!params) return Status();
  return LaunchSegmentParams<float>(layout, 1, problem.dparam, args.sums, args.lines, buffers,
                                    plan.device, stream);
}

}  // namespace cuda
}  // namespace nv_norms
