// x is [rows, cols], a statistic a row, of any types and any alignment; samples may have parameters
// of their own. A row lies in the registers of a part of a warp, of a block or of a cluster of
// blocks, so that x is read once.
#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/rows.cuh"

namespace nv_norms {
namespace cuda {
namespace {

constexpr int kWarpThreads = 128;   // block size where a row has a part of a warp
constexpr int kBlockThreads = 896;  // at most, where a row has a block

struct Arguments {
  DType x;
  DType param;
  DType y;
  DType stat;
  Formula formula;
  double epsilon;
  int64_t rows;
  int cols;
  int threads;     // to a row
  int blocks;      // to a row
  int64_t repeat;  // rows to a sample with parameters of its own; 0: there is none
  RowParams params;
  ForwardBuffers buffers;
};

template <typename A, int VEC, int ITEMS, bool kWarp>
__global__ void __launch_bounds__(kWarp ? kWarpThreads : kBlockThreads)
    RowsKernel(const __grid_constant__ Arguments args) {
  __shared__ BlockStorage<1, A> first_storage;
  __shared__ BlockStorage<2, A> second_storage;
  int64_t row;
  int rank;
  int threads;
  int cols = args.cols;
  int64_t base;
  if (kWarp) {
    threads = args.threads;
    rank = threadIdx.x & (threads - 1);
    row = static_cast<int64_t>(blockIdx.x) * (kWarpThreads / threads) + threadIdx.x / threads;
    if (row >= args.rows) cols = 0;  // stays for the shuffles
    base = row * args.cols;
  } else {
    ArriveAtCluster(args.blocks);
    threads = blockDim.x * args.blocks;
    rank = BlockRankInCluster() * blockDim.x + threadIdx.x;
    row = blockIdx.x / args.blocks;
    base = row * args.cols;
  }
  const bool center = args.formula != Formula::kRms;  // the statistics, at least

  Bits<A, VEC> bits[ITEMS];
  LoadRow<A, VEC, ITEMS>(args.x, args.buffers.x, base, cols, threads, rank, bits);
  const A first = center && cols > 0 ? LoadOne<A>(args.x, args.buffers.x, base) : A(0);
  A values[ITEMS][VEC];
  ConvertRow<A, VEC, ITEMS>(args.x, bits, cols, threads, rank, first, values);

  const A count = static_cast<A>(cols);
  A shift = 0;
  if (!kWarp) WaitForCluster(args.blocks);
  if (center) {
    A sum[1] = {SumFrom(values, first)};
    if (kWarp) {
      WarpSum(sum, threads);
    } else {
      ClusterSum(sum, &first_storage, args.blocks);
    }
    shift = first + sum[0] / count;
  }
  A sums[2] = {0, 0};
  AddSquares(values, shift, cols, threads, rank, sums);
  if (kWarp) {
    WarpSum(sums, threads);
  } else {
    ClusterSum(sums, &second_storage, args.blocks);
    if (args.blocks > 1) SyncCluster();
  }
  A low = 0;
  A m2 = sums[1];
  if (center) {
    low = sums[0] / count;
    m2 -= sums[0] * low;
    m2 = m2 < 0 ? A(0) : m2;  // keeps NaN
  }
  const A rstd = InverseRoot(m2 / count + static_cast<A>(args.epsilon));
  if (rank == 0 && cols > 0) {
    if (args.buffers.mean != nullptr) {
      StoreOne<A>(args.stat, args.buffers.mean, row, shift + low);
    }
    if (args.buffers.rstd != nullptr) StoreOne<A>(args.stat, args.buffers.rstd, row, rstd);
  }
  if (args.formula != Formula::kCenter) {
    shift = 0;
    low = 0;
  }
  const int64_t own = args.repeat == 0 ? 0 : row / args.repeat * args.cols;
  A own_gamma = 1;
  A own_beta = 0;
  if (args.params.by_row && cols > 0) {
    const int64_t param = row % args.params.modulus * args.params.row_stride;
    own_gamma = ParamOr<A>(args.param, args.buffers.gamma, param, 1);
    own_beta = ParamOr<A>(args.param, args.buffers.beta, param, 0);
  }
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    const int c = ColumnOf<VEC>(i, threads, rank);
    if (c < cols) {
      A gamma[VEC];
      A beta[VEC];
      if (args.params.by_row) {
#pragma unroll
        for (int v = 0; v < VEC; ++v) {
          gamma[v] = own_gamma;
          beta[v] = own_beta;
        }
      } else {
        LoadParams<A, VEC>(args.params, args.param, args.buffers.gamma, row, own + c, 1, gamma);
        LoadParams<A, VEC>(args.params, args.param, args.buffers.beta, row, own + c, 0, beta);
      }
      A y[VEC];
#pragma unroll
      for (int v = 0; v < VEC; ++v) {
        y[v] = ((values[i][v] - shift) - low) * rstd * gamma[v] + beta[v];
      }
      StoreVector<A, VEC>(args.y, args.buffers.y, base + c, y);
    }
  }
}

// A block's 64 registers to a thread hold 16 floats or 8 doubles of x without spilling.
template <typename A>
constexpr int64_t kBlockItems = sizeof(A) == 4 ? 16 : 8;

using KernelPointer = void (*)(Arguments);

template <typename A, int VEC>
KernelPointer KernelFor(int elements, bool warp) {
  if (!warp) {
    return elements == 8 ? RowsKernel<A, VEC, 8 / VEC, false>
                         : RowsKernel<A, VEC, kBlockItems<A> / VEC, false>;
  }
  if (elements == 4) return RowsKernel<A, VEC, 4 / VEC, true>;
  if (elements == 8) return RowsKernel<A, VEC, 8 / VEC, true>;
  if (elements == 16) return RowsKernel<A, VEC, 16 / VEC, true>;
  return RowsKernel<A, VEC, 32 / VEC, true>;
}

// The ladder within, by the columns of a row; blocks is 0 for rows too long for it. Not tuned.
RowTile TileOf(const ForwardPlan& plan) {
  const int64_t cols = plan.problem.geometry.rows.cols;
  const int items =
      static_cast<int>(plan.problem.in_double() ? kBlockItems<double> : kBlockItems<float>);
  const int64_t capacity = items * kBlockThreads;
  const int most_blocks = plan.device.capability >= 90 ? kMaxCluster : 1;
  RowTile tile;
  const auto set = [&](int most_items, int64_t threads, int blocks) {
    tile.items = most_items;
    tile.threads = static_cast<int>(threads);
    tile.blocks = blocks;
  };
  if (cols <= 64) {
    set(4, PowerOfTwo(CeilDiv(cols, 4)), 1);
  } else if (cols <= 256) {
    set(8, PowerOfTwo(CeilDiv(cols, 8)), 1);
  } else if (cols <= 512) {
    set(16, 32, 1);
  } else if (cols <= 1024) {
    set(32, 32, 1);
  } else if (cols <= most_blocks * capacity) {
    const int most = cols <= 4096 ? 8 : items;
    const int64_t blocks = PowerOfTwo(CeilDiv(cols, capacity));
    set(most, CeilDiv(CeilDiv(cols, most * blocks), 32) * 32, static_cast<int>(blocks));
  } else {
    tile.blocks = 0;
  }
  return tile;
}

}  // namespace

bool ForwardAnyFits(const ForwardPlan& plan) { return TileOf(plan).blocks != 0; }

Status LaunchForwardRowsAny(const ForwardPlan& plan, const ForwardBuffers& buffers, void* stream) {
  const ForwardProblem& problem = plan.problem;
  const RowTile tile = TileOf(plan);
  Arguments args = {};
  args.x = problem.x;
  args.param = problem.param;
  args.y = problem.y;
  args.stat = problem.stat();
  args.formula = problem.formula;
  args.epsilon = problem.epsilon;
  args.rows = problem.geometry.rows.rows;
  args.cols = static_cast<int>(problem.geometry.rows.cols);
  args.threads = tile.threads;
  args.blocks = tile.blocks;
  const int64_t repeat = problem.geometry.rows.repeat;
  args.repeat = repeat > 1 ? repeat : 0;
  if (repeat == 1) args.params = RowParams::Of(problem.geometry.rows);
  args.buffers = buffers;
  const bool warp = tile.threads <= 32;
  const KernelPointer kernel =
      WithNumbers(problem.in_double(), VectorFor(problem, buffers), [&](auto zero, auto vector) {
        return KernelFor<decltype(zero), decltype(vector)::value>(tile.items, warp);
      });
  const int64_t blocks =
      warp ? CeilDiv(args.rows, kWarpThreads / tile.threads) : args.rows * tile.blocks;
  return LaunchKernel("normalization of rows", kernel, static_cast<unsigned>(blocks),
                      warp ? kWarpThreads : tile.threads, 0, tile.blocks, stream, args);
}

}  // namespace cuda
}  // namespace nv_norms
