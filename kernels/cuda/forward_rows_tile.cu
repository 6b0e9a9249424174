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
constexpr int kTileBytes = 3328;  // at most, where fewer rows are whole pieces
// Columns of rows that have parameters of their own. Of a copy's speed on an H200, by the kernels
// before -> by these: float32 65536 x 256 0.83 -> 0.89, float16 0.64 -> 0.74, but 32768 x 400 0.88
// -> 0.76, 0.69 -> 0.52.
constexpr int kMostOwn = 256;

// Blocks to a multiprocessor, by the numbers that a lane keeps.
constexpr int Resident(int numbers, bool direct) { return numbers <= 8 ? 7 : direct ? 5 : 4; }

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
template <typename T, typename Y, typename C, ParamOf PARAM, bool kActivated>
__global__ void __launch_bounds__(kTileThreads, Resident(C::kNumbers, kTileDirect<C, T>))
    TileKernel(const __grid_constant__ Arguments args) {
  constexpr int VEC = C::kVector;
  constexpr int ITEMS = C::kItems;
  constexpr bool kDirect = kTileDirect<C, T>;
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
  const int lanes = C::kCols != 0 ? 1 : shape.lanes;
  const int rank = lane & (lanes - 1);
  const int group = lane / lanes;
  const int groups = 32 / lanes;
  const int cols = C::kCols != 0 ? C::kCols : args.cols;
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
    if (PARAM == ParamOf::kColumn && C::Has(i, c, cols)) {
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
          if (C::Has(i, c, cols)) {
            LoadParams<float, VEC>({}, args.param, args.buffers.gamma, 0, param + c, 1, gamma[i]);
            LoadParams<float, VEC>({}, args.param, args.buffers.beta, 0, param + c, 0, beta[i]);
          }
        }
      }
      float values[ITEMS][VEC];
#pragma unroll
      for (int i = 0; i < ITEMS; ++i) {
        const int c = ColumnOf<VEC>(i, lanes, rank);
        if (C::Has(i, c, cols)) Unpack<T>(from + c, values[i]);
      }
      if constexpr (!kDirect && !std::is_same_v<T, Y>) __syncwarp();
      const ShortRow found = CenterShortRow<kInOnePass<T>>(
          values, [&](int i) { return C::Has(i, ColumnOf<VEC>(i, lanes, rank), cols); },
          [&](int i, float (&item)[VEC]) { Unpack<T>(from + ColumnOf<VEC>(i, lanes, rank), item); },
          lanes, group * lanes, center, cols, args.epsilon);
      if constexpr (!kStoresLast) row = first + r;
      if (rank == 0 && row < args.rows) {
        if (args.buffers.mean != nullptr) {
          static_cast<float*>(args.buffers.mean)[row] = found.mean;
        }
        if (args.buffers.rstd != nullptr) static_cast<float*>(args.buffers.rstd)[row] = found.rstd;
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
        if (C::Has(i, c, cols)) {
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
          if (C::Has(i, c, cols)) store(i, c);
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

// The kernel and how many of its blocks are resident.
struct Choice {
  KernelPointer kernel = nullptr;
  int resident = 1;
};

template <typename T, typename Y, typename C, ParamOf PARAM, bool kActivated>
Choice ChoiceOf() {
  return {TileKernel<T, Y, C, PARAM, kActivated>, Resident(C::kNumbers, kTileDirect<C, T>)};
}

template <typename T, typename Y = T>
Choice ChoiceFor(const ForwardProblem& problem, const TileShape& shape) {
  const ParamOf param = ParamOfTiles(problem.geometry.rows);
  const bool activated = Activated(problem);
  Choice out;
  WithTileCut<T>(shape, [&](auto cut) {
    using C = decltype(cut);
    using Any = AnyTileCut<C, T>;
    constexpr bool kFits = sizeof(Y) <= sizeof(T);  // y in x's place
    if constexpr (kFits || kTileDirect<C, T>) {
      if (param == ParamOf::kColumn) out = ChoiceOf<T, Y, C, ParamOf::kColumn, false>();
    }
    if constexpr (kFits) {
      if (param == ParamOf::kRow) {
        out = activated ? ChoiceOf<T, Y, Any, ParamOf::kRow, true>()
                        : ChoiceOf<T, Y, C, ParamOf::kRow, false>();
      }
      // Number by number the parameters are too many for registers.
      if constexpr (C::kVector > 1) {
        if (param == ParamOf::kColumnOfRow) {
          out = activated ? ChoiceOf<T, Y, Any, ParamOf::kColumnOfRow, true>()
                          : ChoiceOf<T, Y, Any, ParamOf::kColumnOfRow, false>();
        }
      }
    }
  });
  return out;
}

Choice ChoiceFor(const ForwardProblem& problem, const TileShape& shape) {
  const DType y = problem.y;
  if (problem.x == DType::kFloat) {
    return y == DType::kFloat  ? ChoiceFor<float>(problem, shape)
           : y == DType::kHalf ? ChoiceFor<float, __half>(problem, shape)
                               : ChoiceFor<float, __nv_bfloat16>(problem, shape);
  }
  const auto of = [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    return y == problem.x       ? ChoiceFor<T>(problem, shape)
           : y == DType::kFloat ? ChoiceFor<T, float>(problem, shape)
                                : Choice();
  };
  return problem.x == DType::kHalf ? of(static_cast<__half*>(nullptr))
                                   : of(static_cast<__nv_bfloat16*>(nullptr));
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
  const TileShape shape =
      TileShapeOf(layout, SizeOf(problem.x), std::min(SizeOf(problem.x), SizeOf(problem.y)), false,
                  16 * plan.device.multiprocessors, kTileBytes);
  const bool direct = shape.vector * SizeOf(problem.x) == 16;
  const bool vectors_of_params = shape.vector > 1 && !layout.by_row();
  if (vectors_of_params && !(AlignedTo(buffers.gamma, 16) && AlignedTo(buffers.beta, 16))) {
    return Status();
  }
  const int64_t shared = int64_t{kTileWarps} * kStages * shape.bytes;
  const int64_t most = !layout.by_row()             ? kMostTileBytes
                       : problem.x == DType::kFloat ? kTileBytes
                                                    : kMostOwnTileBytes;
  if (shape.bytes > most || shared > plan.device.shared_bytes) return Status();
  const Choice choice = ChoiceFor(problem, shape);
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
  *launched = true;
  NV_NORMS_RETURN_IF_ERROR(AllowShared(choice.kernel, shared, "normalization of short rows"));
  const int64_t tiles = CeilDiv(layout.rows, shape.rows);
  const int64_t resident = TileBlocks(choice.resident, shared, plan.device);
  const int64_t blocks = std::min<int64_t>(
      CeilDiv(tiles, kTileWarps),
      std::max(resident, CeilDiv(tiles, kTileWarps * TilesOfWarp(problem, direct))));
  return LaunchKernel("normalization of short rows", choice.kernel, static_cast<unsigned>(blocks),
                      kTileThreads, static_cast<size_t>(shared), 1, stream, args);
}

}  // namespace cuda
}  // namespace nv_norms
