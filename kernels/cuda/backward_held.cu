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
  HeldCut cut;
  int vectors;    // of a row, at most
  int lanes;      // that add up a run's sums
  int pieces;     // of these
  float inverse;  // 1 / numbers of a row
  BackwardProblem problem;
  BackwardBuffers buffers;
  SegmentSums<float>* sums;  // [rows, segments, pieces]; null where not wanted
  XhatLine<float>* lines;    // [rows]
};

// Of a run's sums, one of each block that may have some of its numbers.
int64_t PiecesOf(const RowLayout& layout, DType x, const HeldCut& cut) {
  if (layout.by_row() || cut.blocks == 1) return 1;
  const int64_t vectors = layout.col_divisor * SizeOf(x) / kVectorBytes + 3;
  return std::min<int64_t>(cut.blocks, CeilDiv(vectors - 1, cut.share) + 1);
}

// What is in shared memory where there are runs: sums of dy and dy * e of the block's vectors;
// where runs may end within these, of the heads of runs that begin amid a vector, which counts as
// the former run's, of single numbers before and after the row's vectors, and the runs' parameters.
struct RunMemory {
  float2* memory;
  const Arguments& args;

  __device__ __forceinline__ float2* vectors() const { return memory; }
  __device__ __forceinline__ float2* heads() const { return vectors() + args.cut.share; }
  __device__ __forceinline__ float2* singles() const { return heads() + args.runs.layout.segments; }
  __device__ __forceinline__ RunParams* params() const {
    return reinterpret_cast<RunParams*>(singles() + kVectorBytes);
  }
  static int64_t Bytes(const RowLayout& layout, Runs runs, const HeldCut& cut) {
    constexpr int64_t kPair = sizeof(float2);
    if (layout.by_row()) return 0;
    if (runs == Runs::kVectors) return cut.share * kPair;
    return (cut.share + SegmentLayout::Of(layout).segments + kVectorBytes) * kPair +
           RunBytes(layout, runs, cut);
  }
};

// Sums over every run of columns, or what the block has of those that it has some of, in a fixed
// order.
template <Runs RUNS, int VEC, bool CLUSTER>
__device__ __forceinline__ void StoreRunSums(const Arguments& args,
                                             const HeldRow<RUNS, VEC, CLUSTER>& at,
                                             const RunMemory& of_block) {
  constexpr int kUnit = kRunsOfNumbers<RUNS> ? VEC : 1;  // of a run's length, to a vector
  const int lane = threadIdx.x & (args.lanes - 1);
  const int runs = static_cast<int>(args.runs.layout.segments);
  const int length = static_cast<int>(args.runs.length.value);
  const int at_once = static_cast<int>(blockDim.x) / args.lanes;
  const int begin_number = at.begin * VEC + at.before;
  const bool is_last = at.rank == at.last;
  const int first_run = at.rank == 0 ? 0 : args.runs.SegmentAt(begin_number);
  const int end_run = is_last ? runs : args.runs.SegmentAt(begin_number + at.vectors * VEC - 1) + 1;
  for (int first = first_run; first < end_run; first += at_once) {
    const int run = first + static_cast<int>(threadIdx.x) / args.lanes;
    float sums[2] = {0, 0};
    const auto add = [&](const float2& of) {
      sums[0] += of.x;
      sums[1] += of.y;
    };
    if (run < end_run) {
      // In the block, of the first vector that begins at this number of the row or later.
      const auto vector_at = [&](int number) {
        return max(0, number - at.before + kUnit - 1) / kUnit - at.begin;
      };
      const int begin = max(0, vector_at(run * length));
      const int end = min(at.vectors, vector_at((run + 1) * length));
#pragma unroll 1
      for (int i = begin + lane; i < end; i += args.lanes) add(of_block.vectors()[i]);
    }
    WarpSum(sums, args.lanes);
    if (run >= end_run || lane != 0) continue;
    if constexpr (kRunsOfNumbers<RUNS>) {
      const int number = run * length - at.before;
      const int vector = number / VEC - at.begin;
      if (number > 0 && number % VEC != 0 && vector >= 0 && vector < at.vectors) {
        add(of_block.heads()[run]);
      }
    }
    if constexpr (kOddRow<RUNS>) {
      if (at.rank == 0 && run == 0) {
#pragma unroll 1
        for (int i = 0; i < at.before; ++i) add(of_block.singles()[i]);
      }
      if (is_last && run == runs - 1) {
#pragma unroll 1
        for (int i = 0; i < at.after; ++i) add(of_block.singles()[at.before + i]);
      }
    }
    SegmentSums<float>* const to =
        args.sums + (int64_t{at.row} * runs + run) * (CLUSTER ? args.pieces : 1);
    if constexpr (CLUSTER) {
      // The block that has this number of the row.
      const auto rank_of = [&](int number) {
        return min(at.last, max(0, number - at.before) / VEC / args.cut.share);
      };
      const int piece = at.rank - rank_of(run * length);
      to[piece] = {sums[0], sums[1]};
      if (at.rank == rank_of((run + 1) * length - 1)) {
#pragma unroll 1
        for (int i = piece + 1; i < args.pieces; ++i) to[i] = {0, 0};
      }
    } else {
      *to = {sums[0], sums[1]};
    }
  }
}

template <typename X, typename D, int ITEMS, Runs RUNS, Behind BEHIND, bool CLUSTER>
__global__ void __launch_bounds__(kMostHeldThreads)
    HeldKernel(const __grid_constant__ Arguments args) {
  constexpr int VEC = kVectorOf<X>;
  LetNextKernelStart();
  __shared__ BlockStorage<3, float> storage;
  extern __shared__ float2 memory[];
  const RunMemory of_block = {memory, args};
  if constexpr (CLUSTER) ArriveAtCluster(args.cut.blocks);
  const HeldRow<RUNS, VEC, CLUSTER> at(args.problem.geometry.reduced, args.vectors, args.cut.blocks,
                                       args.cut.share);
  Bits<float, VEC> x_bits[ITEMS];
  Bits<float, VEC> dy_bits[ITEMS];
  LoadHeld(static_cast<const X*>(args.buffers.x) + at.first, at.vectors, x_bits);
  LoadHeld(static_cast<const D*>(args.buffers.dy) + at.first, at.vectors, dy_bits);
  const float mean = StoredMean<float>(args.buffers, DType::kFloat, at.row);
  const float rstd = static_cast<const float*>(args.buffers.rstd)[at.row];
  const RowRuns<RUNS, VEC, ITEMS, CLUSTER> runs(
      args.runs, at, args.problem.param, args.buffers.gamma,
      BEHIND != Behind::kNothing ? args.buffers.beta : nullptr, of_block.params());
  if constexpr (runs.kShared) __syncthreads();
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
        if constexpr (kRunsOfNumbers<RUNS>) {
          t[v] = v < of.own ? fmaf(e[v], rstd * of.gamma, of.beta)
                            : fmaf(e[v], rstd * of.others.gamma, of.others.beta);
        } else {
          t[v] = fmaf(e[v], rstd * of.gamma, of.beta);
        }
      }
      activator.Derive(t, d);
    }
  };
  // Of the single number, as `read`.
  const auto read_single = [&](const RunParams& of, float& e, float& d) {
    e = To<float>::Of(static_cast<const X*>(args.buffers.x)[at.Single()]) - mean;
    d = To<float>::Of(static_cast<const D*>(args.buffers.dy)[at.Single()]);
    if constexpr (BEHIND != Behind::kNothing) {
      Activator<float> activator(args.problem.activation);
      activator.silu = BEHIND == Behind::kSilu;
      const float t[1] = {fmaf(e, rstd * of.gamma, of.beta)};
      float derived[1] = {d};
      activator.Derive(t, derived);
      d = derived[0];
    }
  };
  float sums[3] = {0, 0, 0};
  if (at.HasSingle()) {
    const RunParams of = runs.OfSingle();
    float e;
    float d;
    read_single(of, e, d);
    const float weight = kOneRun<RUNS> ? 1.0f : of.gamma;
    sums[0] = e;
    sums[1] = weight * d;
    sums[2] = weight * d * e;
    if (!kOneRun<RUNS> && args.sums != nullptr) of_block.singles()[threadIdx.x] = {d, d * e};
  }
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    if (HasItem(i, at.vectors)) {
      const HeldParams<RUNS> params_here = runs.Of(i);
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
        if constexpr (kRunsOfNumbers<RUNS>) {
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
        of_block.vectors()[i * blockDim.x + threadIdx.x] = of;
      }
      if constexpr (kRunsOfNumbers<RUNS>) {
        if (params_here.own < VEC) {
          sums[1] += params_here.others.gamma * others.x;
          sums[2] += params_here.others.gamma * others.y;
          if (args.sums != nullptr) {
            of_block.heads()[args.runs.SegmentAt(at.NumberAt(i)) + 1] = others;
          }
        }
      }
    }
  }
  BlockSum(sums, &storage);
  if constexpr (CLUSTER) {
    __shared__ float blocks[kMostHeldBlocks][3];
    PostInCluster(sums, blocks, args.cut.blocks);
#pragma unroll
    for (int n = 0; n < 3; ++n) {
      sums[n] = 0;
#pragma unroll 1
      for (int block = 0; block < args.cut.blocks; ++block) sums[n] += blocks[block][n];
    }
  }
  ForgetConverted<X>(x_bits);
  ForgetConverted<D>(dy_bits);
  float weight = 1;
  if constexpr (kOneRun<RUNS>) weight = runs.OfSingle().gamma;
  const GradientLine line = LineOf(args.problem.formula, mean, rstd, sums[0], weight * sums[1],
                                   weight * sums[2], args.inverse);
  if (args.sums != nullptr && threadIdx.x == 0 && at.rank == 0) {
    if (kOneRun<RUNS>) args.sums[at.row] = {sums[1], sums[2]};
    args.lines[at.row] = {rstd, line.xhat_offset};
  }
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    if (HasItem(i, at.vectors)) {
      const int column = static_cast<int>(i * blockDim.x + threadIdx.x) * VEC;
      const HeldParams<RUNS> of = runs.Of(i);
      const float scale = rstd * of.gamma;
      float e[VEC];
      float d[VEC];
      read(i, of, e, d);
#pragma unroll
      for (int v = 0; v < VEC; ++v) {
        float scale_here = scale;
        if constexpr (kRunsOfNumbers<RUNS>) {
          if (v >= of.own) scale_here = rstd * of.others.gamma;
        }
        d[v] = d[v] * scale_here + (line.offset - e[v] * line.slope);
      }
      StoreAs(static_cast<X*>(args.buffers.dx) + at.first + column, d);
    }
  }
  if (at.HasSingle()) {
    const RunParams of = runs.OfSingle();
    float e;
    float d;
    read_single(of, e, d);
    const float dx[1] = {d * (rstd * of.gamma) + (line.offset - e * line.slope)};
    StoreAs(static_cast<X*>(args.buffers.dx) + at.Single(), dx);
  }
  if (!kOneRun<RUNS> && args.sums != nullptr) StoreRunSums(args, at, of_block);
}

using KernelPointer = void (*)(Arguments);

// Vectors of a thread, the most that spill no registers.
constexpr int MostItems(bool by_float, Runs runs) {
  if (by_float && (runs == Runs::kOne || runs == Runs::kVectors)) return 5;
  return !by_float && runs == Runs::kNumbersOdd ? 3 : 4;
}

template <typename X, typename D, Runs RUNS, Behind BEHIND>
KernelPointer KernelOf(const HeldCut& cut) {
  constexpr int kMost = MostItems(sizeof(X) == 4, RUNS);
  if constexpr (HasClusters(RUNS)) {
    if (cut.blocks > 1) return HeldKernel<X, D, kMost, RUNS, BEHIND, true>;
  }
  if (cut.items == 2) return HeldKernel<X, D, 2, RUNS, BEHIND, false>;
  if constexpr (kMost == 5) {
    if (cut.items == 4) return HeldKernel<X, D, 4, RUNS, BEHIND, false>;
  }
  return HeldKernel<X, D, kMost, RUNS, BEHIND, false>;
}

template <typename X, typename D, Runs RUNS>
KernelPointer KernelOf(const Activation& activation, const HeldCut& cut) {
  if (activation.none()) return KernelOf<X, D, RUNS, Behind::kNothing>(cut);
  if (activation.silu) return KernelOf<X, D, RUNS, Behind::kSilu>(cut);
  return KernelOf<X, D, RUNS, Behind::kRelu>(cut);
}

KernelPointer KernelFor(const BackwardProblem& problem, const HeldCut& cut) {
  return BackwardKernelOf(problem, [&](auto* x, auto* dy, auto* dx) -> KernelPointer {
    using X = std::remove_pointer_t<decltype(x)>;
    using D = std::remove_pointer_t<decltype(dy)>;
    using Y = std::remove_pointer_t<decltype(dx)>;
    if constexpr (std::is_void_v<Y>) {
      return nullptr;
    } else {
      switch (RunsOf(problem.geometry.rows, problem.x)) {
        case Runs::kOne:
          return KernelOf<X, D, Runs::kOne>(problem.activation, cut);
        case Runs::kOneOdd:
          return KernelOf<X, D, Runs::kOneOdd>(problem.activation, cut);
        case Runs::kVectors:
          return KernelOf<X, D, Runs::kVectors>(problem.activation, cut);
        case Runs::kNumbers:
          return KernelOf<X, D, Runs::kNumbers>(problem.activation, cut);
        case Runs::kNumbersOdd:
          return KernelOf<X, D, Runs::kNumbersOdd>(problem.activation, cut);
      }
      return nullptr;
    }
  });
}

// No items: these kernels do not suit. Parts of a copy's speed on an H200, by the kernels before ->
// by these, of rows x columns (in brackets of so many segments to a
// row): float16 1024 x 1728 0.87 -> 0.93 (two vectors to a thread), 8192 x 3136 0.80 -> 0.92, 512 x
// 12288 0.76 -> 0.85, 1024 x 20000 0.75 -> 0.89, 512 x 24576 0.70 -> 0.82, 1024 x 32768 0.86 ->
// 0.86, with a leaky relu 0.65 -> 0.76; float32 8192 x 3136 0.91 -> 0.94, 256 x 13824 0.78 -> 0.91,
// 1024 x 20480 0.80 -> 0.90 (five), but 512 x 24576 (six) 0.85 -> 0.85, and beside 16 bits with
// silu 32768 x 784 0.84 -> 0.73; 2048 x 4096 (4) float16 0.40 -> 0.83, float32 0.57 -> 0.86; 1024 x
// 12544 (16) float16 0.36 -> 0.73, float32 0.41 -> 0.76; by clusters, odd 512 x 66049 float16 0.34
// -> 0.74, float32 0.55 -> 0.64, 256 x 33282 (2) 0.33 -> 0.63, 0.59 -> 0.60.
HeldCut CutOf(const BackwardProblem& problem, const Device& device) {
  if (!HasGradientKernel(problem) || problem.dx != problem.x) return {};
  const bool by_float = problem.x == DType::kFloat;
  const int64_t vectors = HeldVectors(problem.geometry.rows, problem.x);
  const Runs runs = RunsOf(problem.geometry.rows, problem.x);
  const int most = MostItems(by_float, runs);
  if (vectors > int64_t{most} * kMostHeldThreads) {
    const bool clusters = HasClusters(runs) && device.capability >= 90;
    return clusters ? HeldCut::OfCluster(vectors, most, !by_float && runs == Runs::kOneOdd)
                    : HeldCut();
  }
  if (by_float && runs == Runs::kOne && vectors < 256) return {};
  if (vectors <= 448) return HeldCut::Of(vectors, 2, 1);
  return HeldCut::Of(vectors, most == 5 && vectors <= 3584 ? 4 : most, 1);
}

// Where things lie in the workspace.
int64_t LinesAt(const BackwardProblem& problem, const HeldCut& cut) {
  const RowLayout& layout = problem.geometry.rows;
  return Align16(SumsBytes<float>(SegmentLayout::Of(layout), PiecesOf(layout, problem.x, cut)));
}

}  // namespace

void PlanBackwardHeld(BackwardPlan* plan) {
  const BackwardProblem& problem = plan->problem;
  const HeldCut cut = CutOf(problem, plan->device);
  if (!plan->want_dx || cut.items == 0) return;
  plan->workspace =
      std::max(plan->workspace, LinesAt(problem, cut) + Align16(XhatLineBytes(problem)));
}

Status LaunchBackwardHeld(const BackwardPlan& plan, const BackwardBuffers& buffers, void* workspace,
                          void* stream, bool* launched) {
  *launched = false;
  const BackwardProblem& problem = plan.problem;
  const HeldCut cut = CutOf(problem, plan.device);
  if (cut.items == 0 || buffers.dx == nullptr || !AlignedTo(buffers.x, kVectorBytes) ||
      !AlignedTo(buffers.dy, kVectorBytes) || !AlignedTo(buffers.dx, kVectorBytes)) {
    return Status();
  }
  const SegmentLayout layout = SegmentLayout::Of(problem.geometry.rows);
  const int64_t vectors = HeldVectors(problem.geometry.rows, problem.x);
  Arguments args = {};
  args.runs = HeldRuns(problem.geometry.rows, problem.x);
  args.cut = cut;
  args.vectors = static_cast<int>(vectors);
  args.lanes = PowerOfTwo(std::min<int64_t>(32, vectors / layout.segments));
  args.pieces = static_cast<int>(PiecesOf(problem.geometry.rows, problem.x, cut));
  args.inverse = 1.0f / static_cast<float>(problem.geometry.reduced);
  args.problem = problem;
  args.buffers = buffers;
  const bool params = buffers.dgamma != nullptr || buffers.dbeta != nullptr;
  if (params) {
    char* const base = static_cast<char*>(workspace);
    args.sums = reinterpret_cast<SegmentSums<float>*>(base);
    args.lines = reinterpret_cast<XhatLine<float>*>(base + LinesAt(problem, cut));
  }
  const Runs runs = RunsOf(problem.geometry.rows, problem.x);
  const int64_t shared = RunMemory::Bytes(problem.geometry.rows, runs, cut);
  NV_NORMS_RETURN_IF_ERROR(LaunchHeld("normalization gradient of rows that blocks hold",
                                      KernelFor(problem, cut), cut, layout.rows, shared, stream,
                                      launched, args));
  if (!*launched || !params) return Status();
  return LaunchSegmentParams<float>(layout, args.pieces, problem.dparam, args.sums, args.lines,
                                    buffers, plan.device, stream);
}

}  // namespace cuda
}  // namespace nv_norms
