// x is [rows, cols] of up to 512 columns. A warp goes through tiles of rows; while it works on
// one, x and dy of the next ones are on their way to shared memory. gamma and the columns' sums for
// dgamma and dbeta stay in registers; a gamma that is a row's own (instance norm of NC...) is
// loaded with its row, whose sums are left for dgamma and dbeta.
#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/segments_sums.cuh"
#include "kernels/cuda/tile.cuh"
#include "kernels/cuda/warp_sums.cuh"

namespace nv_norms {
namespace cuda {
namespace {

constexpr int kStages = 3;
constexpr int kTileBytes = 2048;  // at most, where fewer rows are whole pieces
// Columns of rows that have parameters of their own. Of a copy's speed on an H200, by the kernels
// before -> by these: float32 32768 x 128 0.68 -> 0.72, but 32768 x 196 0.72 -> 0.70, 65536 x 256
// 0.77 -> 0.72; float16 65536 x 256 0.64 -> 0.72, but 16384 x 512 0.82 -> 0.77.
constexpr int kMostOwnWide = 128;
constexpr int kMostOwn = 256;

// Blocks to a multiprocessor, by the numbers that a lane keeps.
constexpr int Resident(int numbers, bool direct) { return numbers <= 8 ? 5 : direct ? 4 : 3; }

struct Arguments {
  DType param;
  Formula formula;
  int64_t rows;
  int cols;
  TileShape shape;
  BackwardBuffers buffers;
  float* dgamma;  // partial sums [blocks, cols], where wanted
  float* dbeta;
  RowsOwn own;
  Activation activation;     // of rows with parameters of their own alone
  SegmentSums<float>* sums;  // [rows], of dy and dy * xhat; null where not wanted
};

// The block's sums over its columns, by way of `sums` [warps][2][cols]: the lanes of a column, then
// the warps, are added in order.
template <int ITEMS, int VEC>
__device__ __forceinline__ void StoreColumnSums(const Arguments& args, float* sums,
                                                float (&dgamma)[ITEMS][VEC],
                                                float (&dbeta)[ITEMS][VEC]) {
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int lanes = args.shape.lanes;
  const int cols = args.cols;
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
#pragma unroll
    for (int v = 0; v < VEC; ++v) {
      for (int other = lanes; other < 32; other *= 2) {
        dgamma[i][v] += __shfl_xor_sync(0xffffffffu, dgamma[i][v], other);
        dbeta[i][v] += __shfl_xor_sync(0xffffffffu, dbeta[i][v], other);
      }
      const int c = ColumnOf<VEC>(i, lanes, lane & (lanes - 1)) + v;
      if (lane < lanes && c < cols) {
        sums[2 * warp * cols + c] = dgamma[i][v];
        sums[(2 * warp + 1) * cols + c] = dbeta[i][v];
      }
    }
  }
  AddWarpSums<kTileThreads>(sums, cols, args.dgamma, args.dbeta);
}

// kDirect: rows are aligned to vectors of 16 bytes and dx is stored from registers; else it takes
// x's place in shared memory and leaves as a tile.
// D: of dy.
template <typename T, typename D, typename C, bool kOwn, bool kActivated>
__global__ void __launch_bounds__(kTileThreads, Resident(C::kNumbers, kTileDirect<C, T>))
    TileKernel(const __grid_constant__ Arguments args) {
  constexpr int VEC = C::kVector;
  constexpr int ITEMS = C::kItems;
  constexpr bool kDirect = kTileDirect<C, T>;
  LetNextKernelStart();
  extern __shared__ uint4 stages[];  // [warps][kStages][x tile, dy tile, means, rstds]
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const TileShape& shape = args.shape;
  const int lanes = C::kCols != 0 ? 1 : shape.lanes;
  const int rank = lane & (lanes - 1);
  const int group = lane / lanes;
  const int groups = 32 / lanes;
  const int cols = C::kCols != 0 ? C::kCols : args.cols;
  const int dy_bytes = shape.bytes / static_cast<int>(sizeof(T) / sizeof(D));
  const int means_at = shape.bytes + dy_bytes;
  const int stage_bytes = means_at + (8 * shape.rows + 15) / 16 * 16;
  char* stage = reinterpret_cast<char*>(stages) + warp * kStages * stage_bytes;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kTileWarps * shape.rows;
  int64_t first = (static_cast<int64_t>(blockIdx.x) * kTileWarps + warp) * shape.rows;
  const auto copy = [&](int64_t row, int slot) {
    char* to = stage + slot * stage_bytes;
    CopyTile<false>(to, static_cast<const T*>(args.buffers.x), row, args.rows, shape.rows, cols,
                    shape.bytes, lane);
    CopyTile<false>(to + shape.bytes, static_cast<const D*>(args.buffers.dy), row, args.rows,
                    shape.rows, cols, dy_bytes, lane);
    float* means = reinterpret_cast<float*>(to + means_at);
    for (int r = lane; r < shape.rows && row + r < args.rows; r += 32) {
      if (args.buffers.mean != nullptr) {
        CopyAsync<4>(means + r, static_cast<const float*>(args.buffers.mean) + row + r);
      }
      CopyAsync<4>(means + shape.rows + r, static_cast<const float*>(args.buffers.rstd) + row + r);
    }
    CommitCopies();
  };
#pragma unroll
  for (int s = 0; s < kStages - 1; ++s) copy(first + s * step, s);
  float gamma[ITEMS][VEC];
  float dgamma[ITEMS][VEC] = {};
  float dbeta[ITEMS][VEC] = {};
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    const int c = ColumnOf<VEC>(i, lanes, rank);
    if (!kOwn && C::Has(i, c, cols))
      LoadParams<float, VEC>({}, args.param, args.buffers.gamma, 0, c, 1, gamma[i]);
  }
  const float inverse = 1.0f / static_cast<float>(cols);
  int at = 0;
  for (; first < args.rows; first += step) {
    copy(first + (kStages - 1) * step, at == 0 ? kStages - 1 : at - 1);
    WaitForCopies<kStages - 1>();
    __syncwarp();
    T* x_tile = reinterpret_cast<T*>(stage + at * stage_bytes);
    const D* dy_tile = reinterpret_cast<const D*>(stage + at * stage_bytes + shape.bytes);
    const float* means = reinterpret_cast<const float*>(stage + at * stage_bytes + means_at);
    for (int r = group; r < shape.rows; r += groups) {
      // Rows beyond the last are computed from what lies there, and not used.
      const int64_t row = first + r;
      const bool valid = row < args.rows;
      const float mean = args.buffers.mean != nullptr ? means[r] : 0.0f;
      const float rstd = means[shape.rows + r];
      RowParam own = {1, 0};
      if constexpr (kOwn) {
        own = LoadRowParam(args.own, args.param, args.buffers.gamma,
                           kActivated ? args.buffers.beta : nullptr, row);
      }
      float e[ITEMS][VEC];
      float d[ITEMS][VEC];
#pragma unroll
      for (int i = 0; i < ITEMS; ++i) {
        const int c = ColumnOf<VEC>(i, lanes, rank);
        if (C::Has(i, c, cols)) {
          Unpack<T>(x_tile + r * cols + c, e[i]);
          Unpack<D>(dy_tile + r * cols + c, d[i]);
#pragma unroll
          for (int v = 0; v < VEC; ++v) e[i][v] -= mean;
        }
      }
      if constexpr (kActivated) {
        // All of them at once: between branches the compiler would not overlap their work.
        float t[ITEMS * VEC];
#pragma unroll
        for (int i = 0; i < ITEMS * VEC; ++i) {
          t[i] = fmaf(e[i / VEC][i % VEC], rstd * own.gamma, own.beta);
        }
        Activator<float>(args.activation).Derive(t, reinterpret_cast<float (&)[ITEMS * VEC]>(d));
      }
      float sums[3] = {0, 0, 0};
#pragma unroll
      for (int i = 0; i < ITEMS; ++i) {
        if (C::Has(i, ColumnOf<VEC>(i, lanes, rank), cols)) {
#pragma unroll
          for (int v = 0; v < VEC; ++v) {
            const float w = kOwn ? d[i][v] : d[i][v] * gamma[i][v];
            sums[0] += e[i][v];
            sums[1] += w;
            sums[2] += w * e[i][v];
          }
        }
      }
      WarpSum(sums, lanes);
      const GradientLine line = LineOf(args.formula, mean, rstd, sums[0], own.gamma * sums[1],
                                       own.gamma * sums[2], inverse);
      if (kOwn && valid && rank == 0 && args.sums != nullptr) {
        args.sums[row] = {sums[1], rstd * sums[2] + line.xhat_offset * sums[1]};
      }
      if (valid) {
        T* dx = static_cast<T*>(args.buffers.dx) + row * cols;
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
          const int c = ColumnOf<VEC>(i, lanes, rank);
          if (C::Has(i, c, cols)) {
            float out[VEC];
#pragma unroll
            for (int v = 0; v < VEC; ++v) {
              const float w = d[i][v] * (kOwn ? own.gamma : gamma[i][v]);
              out[v] = w * rstd + (line.offset - e[i][v] * line.slope);
              if constexpr (!kOwn) {
                dgamma[i][v] += d[i][v] * (e[i][v] * rstd + line.xhat_offset);
                dbeta[i][v] += d[i][v];
              }
            }
            if constexpr (kDirect) {
              if (args.buffers.dx != nullptr) StoreAs(dx + c, out);
            } else {
              StoreAs(x_tile + r * cols + c, out);
            }
          }
        }
      }
    }
    __syncwarp();
    if constexpr (!kDirect) {
      if (args.buffers.dx != nullptr) {
        StoreTile(static_cast<T*>(args.buffers.dx), x_tile, first, args.rows, shape.rows, cols,
                  shape.bytes, lane);
        __syncwarp();
      }
    }
    at = at == kStages - 1 ? 0 : at + 1;
  }
  if (kOwn || (args.dgamma == nullptr && args.dbeta == nullptr)) return;
  WaitForCopies<0>();
  __syncthreads();
  StoreColumnSums(args, reinterpret_cast<float*>(stages), dgamma, dbeta);
}

using KernelPointer = void (*)(Arguments);

// The kernel and how many of its blocks are resident.
struct Choice {
  KernelPointer kernel = nullptr;
  int resident = 1;
};

template <typename T, typename D, typename C, bool kOwn, bool kActivated>
Choice ChoiceOf() {
  return {TileKernel<T, D, C, kOwn, kActivated>, Resident(C::kNumbers, kTileDirect<C, T>)};
}

template <typename T, typename D = T>
Choice ChoiceFor(const BackwardProblem& problem, const TileShape& shape) {
  Choice out;
  WithTileCut<T>(shape, [&](auto cut) {
    using C = decltype(cut);
    out = problem.geometry.rows.by_column() ? ChoiceOf<T, D, C, false, false>()
          : Activated(problem)              ? ChoiceOf<T, D, AnyTileCut<C, T>, true, true>()
                                            : ChoiceOf<T, D, C, true, false>();
  });
  return out;
}

Choice ChoiceFor(const BackwardProblem& problem, const TileShape& shape) {
  if (problem.dy != problem.x) {
    return problem.dy == DType::kHalf ? ChoiceFor<float, __half>(problem, shape)
                                      : ChoiceFor<float, __nv_bfloat16>(problem, shape);
  }
  return problem.x == DType::kFloat  ? ChoiceFor<float>(problem, shape)
         : problem.x == DType::kHalf ? ChoiceFor<__half>(problem, shape)
                                     : ChoiceFor<__nv_bfloat16>(problem, shape);
}

TileShape ShapeOf(const BackwardPlan& plan) {
  const BackwardProblem& problem = plan.problem;
  return TileShapeOf(problem.geometry.rows, SizeOf(problem.x), SizeOf(problem.dy), true,
                     16 * plan.device.multiprocessors, kTileBytes);
}

Arguments ArgumentsOf(const BackwardPlan& plan, const BackwardBuffers& buffers,
                      const TileShape& shape) {
  const BackwardProblem& problem = plan.problem;
  const RowLayout& layout = problem.geometry.rows;
  Arguments args = {};
  args.param = problem.param;
  args.formula = problem.formula;
  args.rows = layout.rows;
  args.cols = static_cast<int>(layout.cols);
  args.shape = shape;
  args.buffers = buffers;
  args.own = RowsOwn::Of(layout);
  args.activation = problem.activation;
  return args;
}

// Of shared memory to a block, in bytes: the stages, whose place the columns' sums take.
int64_t SharedOf(const BackwardProblem& problem, const TileShape& shape) {
  const int64_t dy_bytes = shape.bytes * SizeOf(problem.dy) / SizeOf(problem.x);
  const int64_t staged =
      int64_t{kTileWarps} * kStages * (shape.bytes + dy_bytes + Align16(8 * shape.rows));
  return std::max<int64_t>(staged, 2 * kTileWarps * problem.geometry.rows.cols * 4);
}

Status LaunchTiles(const BackwardProblem& problem, const Arguments& args, int64_t blocks,
                   void* stream) {
  const KernelPointer kernel = ChoiceFor(problem, args.shape).kernel;
  const int64_t shared = SharedOf(problem, args.shape);
  const char* name = "normalization gradient of short rows";
  NV_NORMS_RETURN_IF_ERROR(AllowShared(kernel, shared, name));
  return LaunchKernel(name, kernel, static_cast<unsigned>(blocks), kTileThreads,
                      static_cast<size_t>(shared), 1, stream, args);
}

bool Aligned(const BackwardBuffers& buffers) {
  return AlignedTo(buffers.x, 16) && AlignedTo(buffers.dy, 16) && AlignedTo(buffers.dx, 16);
}

}  // namespace

bool SuitsTiles(const BackwardPlan& plan) {
  const BackwardProblem& problem = plan.problem;
  const RowLayout& layout = problem.geometry.rows;
  const ParamOf param = ParamOfTiles(layout);
  if (param != ParamOf::kColumn && param != ParamOf::kRow) return false;
  const bool wide = problem.x == DType::kFloat && problem.dy == problem.x;
  if (!SuitsTiles(layout, SizeOf(problem.x), wide ? kMostOwnWide : kMostOwn) ||
      problem.dx != problem.x || !(problem.dy == problem.x || MixedGradient(problem)) ||
      problem.in_double()) {
    return false;
  }
  const TileShape shape = ShapeOf(plan);
  return shape.bytes <= (layout.by_row() ? kMostOwnTileBytes : kMostTileBytes) &&
         SharedOf(problem, shape) <= plan.device.shared_bytes;
}

int64_t TilePartials(const BackwardPlan& plan) {
  const TileShape shape = ShapeOf(plan);
  const int64_t tiles = CeilDiv(plan.problem.geometry.rows.rows, shape.rows);
  return std::min(CeilDiv(tiles, kTileWarps),
                  TileBlocks(ChoiceFor(plan.problem, shape).resident, SharedOf(plan.problem, shape),
                             plan.device));
}

Status LaunchBackwardRowsTile(const BackwardPlan& plan, const BackwardBuffers& buffers,
                              int64_t partials, float* dgamma, float* dbeta, void* stream,
                              bool* launched) {
  const TileShape shape = ShapeOf(plan);
  *launched =
      SuitsTiles(plan) && Aligned(buffers) && (shape.vector == 1 || AlignedTo(buffers.gamma, 16));
  if (!*launched) return Status();
  Arguments args = ArgumentsOf(plan, buffers, shape);
  args.dgamma = dgamma;
  args.dbeta = dbeta;
  return LaunchTiles(plan.problem, args, partials, stream);
}

void PlanBackwardRowsTileOwn(BackwardPlan* plan) {
  if (!SuitsTiles(*plan)) return;
  const SegmentLayout layout = SegmentLayout::Of(plan->problem.geometry.rows);
  plan->workspace = std::max(plan->workspace, Align16(SumsBytes<float>(layout, 1)));
}

Status LaunchBackwardRowsTileOwn(const BackwardPlan& plan, const BackwardBuffers& buffers,
                                 void* workspace, void* stream, bool* launched) {
  *launched = SuitsTiles(plan) && Aligned(buffers);
  if (!*launched) return Status();
  const BackwardProblem& problem = plan.problem;
  Arguments args = ArgumentsOf(plan, buffers, ShapeOf(plan));
  const bool params = buffers.dgamma != nullptr || buffers.dbeta != nullptr;
  if (params) args.sums = static_cast<SegmentSums<float>*>(workspace);
  NV_NORMS_RETURN_IF_ERROR(LaunchTiles(problem, args, TilePartials(plan), stream));
  if (!params) return Status();
  return LaunchSegmentParams<float>(SegmentLayout::Of(problem.geometry.rows), 1, problem.dparam,
                                    args.sums, nullptr, buffers, plan.device, stream);
}

}  // namespace cuda
}  // namespace nv_norms
