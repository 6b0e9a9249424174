// x is [rows, cols] of up to 512 columns. A warp goes through tiles of rows; while it works on
// one, the next ones are on their way to shared memory. gamma and beta stay in registers, or are
// loaded with their row.
#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/short_row.cuh"
#include "kernels/cuda/tile.cuh"

namespace nv_norms {
namespace cuda {
namespace {

constexpr int kStages = 3;
constexpr int kTileBytes = 3328;  // at most, where a tile has more than one row
// Columns of rows that have parameters of their own. Of a copy's speed on an H200, by the kernels
// before -> by these: float32 65536 x 256 0.83 -> 0.89, float16 0.64 -> 0.74, but 32768 x 400 0.88
// -> 0.76, 0.69 -> 0.52.
constexpr int kMostOwn = 256;

// Blocks to a multiprocessor, by the numbers that a lane keeps.
template <int NUMBERS, bool kDirect>
constexpr int kResident = NUMBERS <= 8 ? 7
                          : kDirect    ? 5
                                       : 4;

struct Arguments {
  DType param;
  Formula formula;
  float epsilon;
  int64_t rows;
  int cols;
  TileShape shape;
  ForwardBuffers buffers;
  RowsOwn own;
  Activation activation;
};

// kDirect: rows are aligned to vectors of 16 bytes and y is stored from registers; else it takes
// x's place in shared memory and leaves as a tile. A y of smaller numbers moves up: by then its
// place holds x of rows that all lanes have read.
template <typename T, typename Y, int VEC, int ITEMS, bool kDirect, ParamOf PARAM, bool kActivated>
__global__ void __launch_bounds__(kTileThreads, kResident<VEC * ITEMS, kDirect>)
    TileKernel(const __grid_constant__ Arguments args) {
  extern __shared__ uint4 stages[];  // [warps][kStages][tile]
  // All of a row behind the last number's activation. Elsewhere a vector is stored when it is
  // ready, and the row's number is not kept while the statistics are taken.
  constexpr bool kStoresLast = PARAM != ParamOf::kColumn || (!kDirect && !std::is_same_v<T, Y>);
  // Microseconds of 10^6 x 100 float32 217 without, 211 with, 10^7 x 10 222, 215, to bfloat16 162,
  // 160; bfloat16 123, 124.
  constexpr bool kKeep = sizeof(T) == 4;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const TileShape& shape = args.shape;
  const int lanes = shape.lanes;
  const int rank = lane & (lanes - 1);
  const int group = lane / lanes;
  const int groups = 32 / lanes;
  const int cols = args.cols;
  char* stage = reinterpret_cast<char*>(stages) + warp * kStages * shape.bytes;
  const T* x = static_cast<const T*>(args.buffers.x);
  const int64_t step = static_cast<int64_t>(gridDim.x) * kTileWarps * shape.rows;
  int64_t first = (static_cast<int64_t>(blockIdx.x) * kTileWarps + warp) * shape.rows;
#pragma unroll
  for (int s = 0; s < kStages - 1; ++s) {
    CopyTile<kKeep>(stage + s * shape.bytes, x, first + s * step, args.rows, shape.rows, cols,
                    shape.bytes, lane);
    CommitCopies();
  }
  float gamma[ITEMS][VEC];
  float beta[ITEMS][VEC];
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    const int c = ColumnOf<VEC>(i, lanes, rank);
    if (PARAM == ParamOf::kColumn && c < cols) {
      LoadParams<float, VEC>({}, args.param, args.buffers.gamma, 0, c, 1, gamma[i]);
      LoadParams<float, VEC>({}, args.param, args.buffers.beta, 0, c, 0, beta[i]);
    }
  }
  const bool center = args.formula != Formula::kRms;  // the statistics, at least
  int at = 0;
  for (; first < args.rows; first += step) {
    CopyTile<kKeep>(stage + (at == 0 ? kStages - 1 : at - 1) * shape.bytes, x,
                    first + (kStages - 1) * step, args.rows, shape.rows, cols, shape.bytes, lane);
    CommitCopies();
    WaitForCopies<kStages - 1>();
    __syncwarp();
    T* tile = reinterpret_cast<T*>(stage + at * shape.bytes);
    for (int r = group; r < shape.rows; r += groups) {
      // Rows beyond the last are computed from what lies there, and not stored.
      T* from = tile + r * cols;
      int64_t row;
      if constexpr (kStoresLast) row = first + r;
      RowParam own = {1, 0};
      if constexpr (PARAM == ParamOf::kRow) {
        own = LoadRowParam(args.own, args.param, args.buffers.gamma, args.buffers.beta, row);
      }
      if constexpr (PARAM == ParamOf::kColumnOfRow) {
        const int64_t param = static_cast<unsigned>(row) % args.own.modulus * args.own.stride;
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
          const int c = ColumnOf<VEC>(i, lanes, rank);
          if (c < cols) {
            LoadParams<float, VEC>({}, args.param, args.buffers.gamma, 0, param + c, 1, gamma[i]);
            LoadParams<float, VEC>({}, args.param, args.buffers.beta, 0, param + c, 0, beta[i]);
          }
        }
      }
      float values[ITEMS][VEC];
#pragma unroll
      for (int i = 0; i < ITEMS; ++i) {
        const int c = ColumnOf<VEC>(i, lanes, rank);
        if (c < cols) Unpack<T>(from + c, values[i]);
      }
      if constexpr (!kDirect && !std::is_same_v<T, Y>) __syncwarp();
      const ShortRow found = CenterShortRow<kInOnePass<T>>(
          values, [&](int i) { return ColumnOf<VEC>(i, lanes, rank) < cols; },
          [&](int i, float (&item)[VEC]) { Unpack<T>(from + ColumnOf<VEC>(i, lanes, rank), item); },
          lanes, group * lanes, center, cols, args.epsilon);
      if constexpr (!kStoresLast) row = first + r;
      if (rank == 0 && row < args.rows) {
        if (args.buffers.mean != nullptr) {
          static_cast<float*>(args.buffers.mean)[row] = found.mean;
        }
        static_cast<float*>(args.buffers.rstd)[row] = found.rstd;
      }
      const float offset = found.Offset(args.formula);
      Y* y = static_cast<Y*>(args.buffers.y) + row * cols;
      const auto store = [&](int i, int c) {
        if constexpr (kDirect) {
          if (row < args.rows) StoreAs(y + c, values[i]);
        } else {
          StoreAs(reinterpret_cast<Y*>(tile) + r * cols + c, values[i]);
        }
      };
#pragma unroll
      for (int i = 0; i < ITEMS; ++i) {
        const int c = ColumnOf<VEC>(i, lanes, rank);
        if (c < cols) {
#pragma unroll
          for (int v = 0; v < VEC; ++v) {
            const float xhat = values[i][v] * found.rstd + offset;
            values[i][v] = PARAM == ParamOf::kRow ? xhat * own.gamma + own.beta
                                                  : xhat * gamma[i][v] + beta[i][v];
          }
          if constexpr (!kStoresLast) store(i, c);
        }
      }
      if constexpr (kStoresLast) {
        if constexpr (kActivated) {  // all at once: between branches work would not overlap
          Activator<float>(args.activation).Apply(reinterpret_cast<float (&)[ITEMS * VEC]>(values));
        }
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
          const int c = ColumnOf<VEC>(i, lanes, rank);
          if (c < cols) store(i, c);
        }
      }
    }
    __syncwarp();
    if constexpr (!kDirect) {
      StoreTile(static_cast<Y*>(args.buffers.y), tile, first, args.rows, shape.rows, cols,
                shape.bytes / static_cast<int>(sizeof(T) / sizeof(Y)), lane);
      __syncwarp();
    }
    at = at == kStages - 1 ? 0 : at + 1;
  }
}

// A warp of a block that is not resident from the start takes so many tiles. Multiprocessors are
// not equally fast, and blocks that start in turn go through memory side by side: from float32 to
// float32, 10^6 x 100 reached 0.83 of a copy's speed with as many blocks as are resident, 0.94 with
// 3 tiles to a warp, 0.85 with less than 2; 10^7 x 10 0.89, 0.97 and 0.94. To 16 bits 10^6 x 100
// 0.82, with 3 to 6 tiles 0.92 to 0.89, with 1.5 65536 x 256 0.76 in place of 0.82. From 16 bits
// all more than those resident lose: 65536 x 512 0.93, with 6 tiles 0.80.
int64_t TilesOfWarp(const ForwardProblem& problem, bool direct) {
  if (problem.x != DType::kFloat) return int64_t{1} << 31;
  return problem.y == DType::kFloat ? 3 : direct ? 4 : 8;
}

using KernelPointer = void (*)(Arguments);

// The kernel for `numbers` numbers to a lane, or a few more, and how many of its blocks are
// resident.
struct Choice {
  KernelPointer kernel = nullptr;
  int resident = 1;
};

template <typename T, typename Y, int VEC, bool kDirect, int NUMBERS>
Choice ChoiceOf(const ForwardProblem& problem) {
  constexpr int kItems = NUMBERS / VEC;
  Choice out;
  out.resident = kResident<NUMBERS, kDirect>;
  const ParamOf param = ParamOfTiles(problem.geometry.rows);
  if (param == ParamOf::kColumn) {
    out.kernel = TileKernel<T, Y, VEC, kItems, kDirect, ParamOf::kColumn, false>;
  } else if constexpr (std::is_same_v<T, Y> || std::is_same_v<T, float>) {
    const auto pick = [&](auto plain, auto activated) {
      return Activated(problem) ? activated : plain;
    };
    if (param == ParamOf::kRow) {
      out.kernel = pick(TileKernel<T, Y, VEC, kItems, kDirect, ParamOf::kRow, false>,
                        TileKernel<T, Y, VEC, kItems, kDirect, ParamOf::kRow, true>);
    } else if constexpr (VEC > 1) {  // number by number the parameters are too many for registers
      if (param == ParamOf::kColumnOfRow)
        out.kernel = pick(TileKernel<T, Y, VEC, kItems, kDirect, ParamOf::kColumnOfRow, false>,
                          TileKernel<T, Y, VEC, kItems, kDirect, ParamOf::kColumnOfRow, true>);
    }
  }
  return out;
}

template <typename T, typename Y>
Choice DirectKernelFor(const ForwardProblem& problem, int numbers) {
  constexpr int kVector = kVectorOf<T>;
  if (numbers <= 8) return ChoiceOf<T, Y, kVector, true, 8>(problem);
  return ChoiceOf<T, Y, kVector, true, 16>(problem);
}

template <typename T>
Choice KernelFor(const ForwardProblem& problem, int vector, int numbers) {
  const DType y = problem.y;
  if (vector == kVectorOf<T>) {
    if (problem.x == y) return DirectKernelFor<T, T>(problem, numbers);
    if constexpr (std::is_same_v<T, float>) {
      return y == DType::kHalf ? DirectKernelFor<T, __half>(problem, numbers)
                               : DirectKernelFor<T, __nv_bfloat16>(problem, numbers);
    } else {
      return y == DType::kFloat ? DirectKernelFor<T, float>(problem, numbers) : Choice();
    }
  }
  if (numbers > 16) return Choice();
  if (problem.x != y) {
    if constexpr (std::is_same_v<T, float>) {
      // 100000 x 33 0.31 -> 0.68 of a copy's speed, but 1405552 x 3 0.49 -> 0.38.
      if (vector == 1 && problem.geometry.rows.cols < 8) return Choice();
      if (vector == 1 && y == DType::kHalf) return ChoiceOf<T, __half, 1, false, 16>(problem);
      if (vector == 1) return ChoiceOf<T, __nv_bfloat16, 1, false, 16>(problem);
      if (vector == 2 && y == DType::kHalf) return ChoiceOf<T, __half, 2, false, 16>(problem);
      if (vector == 2) return ChoiceOf<T, __nv_bfloat16, 2, false, 16>(problem);
    }
    return Choice();
  }
  if (vector == 1) return ChoiceOf<T, T, 1, false, 16>(problem);
  if (vector == 2) return ChoiceOf<T, T, 2, false, 16>(problem);
  return ChoiceOf<T, T, kVectorOf<T> / 2, false, 16>(problem);
}

}  // namespace

Status LaunchForwardRowsTile(const ForwardPlan& plan, const ForwardBuffers& buffers, void* stream,
                             bool* launched) {
  *launched = false;
  const ForwardProblem& problem = plan.problem;
  const RowLayout& layout = problem.geometry.rows;
  if (problem.in_double() || !SuitsTiles(layout, SizeOf(problem.x), kMostOwn) ||
      !AlignedTo(buffers.x, 16) || !AlignedTo(buffers.y, 16)) {
    return Status();
  }
  const TileShape shape = TileShapeOf(
      layout.rows, layout.cols, SizeOf(problem.x), std::min(SizeOf(problem.x), SizeOf(problem.y)),
      layout.by_row() || (AlignedTo(buffers.gamma, 16) && AlignedTo(buffers.beta, 16)),
      16 * plan.device.multiprocessors, kTileBytes);
  const bool direct = shape.vector * SizeOf(problem.x) == 16;
  if (shape.bytes > (direct ? 4096 : kTileBytes)) return Status();
  const int numbers = shape.items * shape.vector;
  const Choice choice =
      problem.x == DType::kFloat  ? KernelFor<float>(problem, shape.vector, numbers)
      : problem.x == DType::kHalf ? KernelFor<__half>(problem, shape.vector, numbers)
                                  : KernelFor<__nv_bfloat16>(problem, shape.vector, numbers);
  if (choice.kernel == nullptr) return Status();
  Arguments args = {};
  args.param = problem.param;
  args.formula = problem.formula;
  args.epsilon = static_cast<float>(problem.epsilon);
  args.rows = layout.rows;
  args.cols = static_cast<int>(layout.cols);
  args.shape = shape;
  args.buffers = buffers;
  args.own = RowsOwn::Of(layout);
  args.activation = problem.activation;
  const int64_t shared = int64_t{kTileWarps} * kStages * shape.bytes;
  *launched = true;
  NV_NORMS_RETURN_IF_ERROR(AllowShared(choice.kernel, shared, "normalization of short rows"));
  const int64_t tiles = CeilDiv(layout.rows, shape.rows);
  const int64_t resident = int64_t{choice.resident} * plan.device.multiprocessors;
  const int64_t blocks = std::min<int64_t>(
      CeilDiv(tiles, kTileWarps),
      std::max(resident, CeilDiv(tiles, kTileWarps * TilesOfWarp(problem, direct))));
  return LaunchKernel("normalization of short rows", choice.kernel, static_cast<unsigned>(blocks),
                      kTileThreads, static_cast<size_t>(shared), 1, stream, args);
}

}  // namespace cuda
}  // namespace nv_norms
