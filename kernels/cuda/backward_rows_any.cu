// x is [rows, cols], a statistic a row, of any types and any alignment. A row of x and dy lies in
// the registers of a part of a warp, of a block or of a cluster of blocks, so that both are read
// once; these threads go on to further rows and keep their columns' sums for dgamma and dbeta.
// Samples may have parameters of their own: then these are rows of one sample.
#include "kernels/cuda/gradient_rows.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/sample_rows.h"

namespace nv_norms {
namespace cuda {
namespace {

constexpr int kWarpThreads = 256;   // block size where a row has a part of a warp
constexpr int kBlockThreads = 320;  // at most, where a row has a block

struct Arguments : GradientRowArguments {
  int threads;  // to a row
  int blocks;   // to a row
  int64_t samples;
  int64_t partials;  // of a sample
};

template <typename A, int VEC, int ITEMS, bool kWarp>
__global__ void __launch_bounds__(kWarp ? kWarpThreads : kBlockThreads)
    RowsKernel(const __grid_constant__ Arguments args) {
  LetNextKernelStart();
  __shared__ BlockStorage<3, A> storage[2];
  __shared__ A columns[kWarp ? kWarpThreads * VEC * ITEMS : 1];
  if (!kWarp) ArriveAtCluster(args.blocks);
  const int threads = kWarp ? args.threads : blockDim.x * args.blocks;
  const int rank =
      kWarp ? threadIdx.x & (threads - 1) : BlockRankInCluster() * blockDim.x + threadIdx.x;
  const int groups = kWarp ? kWarpThreads / threads : 1;
  const int group = kWarp ? threadIdx.x / threads : 0;
  const int64_t lot = static_cast<int64_t>(kWarp ? blockIdx.x : blockIdx.x / args.blocks);
  const int64_t sample = args.samples == 1 ? 0 : lot / args.partials;
  const int64_t partial_sum = lot - sample * args.partials;
  const int64_t end = (sample + 1) * args.rows;  // args.rows: of a sample

  A gamma[ITEMS][VEC];
  LoadGamma<A, VEC, ITEMS>(args, sample * args.cols, args.cols, threads, rank, gamma);
  A dgamma[ITEMS][VEC] = {};
  A dbeta[ITEMS][VEC] = {};
  const bool want_params = args.dgamma != nullptr || args.dbeta != nullptr;
  int parity = 0;
  if (!kWarp) WaitForCluster(args.blocks);
  const int64_t step = args.partials * groups;
  for (int64_t start = end - args.rows + partial_sum * groups; start < end; start += step) {
    const int64_t row = start + group;
    const int cols = row < end ? args.cols : 0;  // without a row, stays for the shuffles
    const int64_t base = row * args.cols;
    const A mean = cols > 0 ? StoredMean<A>(args.buffers, args.stat, row) : A(0);
    const A rstd = cols > 0 ? LoadOne<A>(args.stat, args.buffers.rstd, row) : A(0);
    GradientRow<A, VEC, ITEMS> data;
    data.Load(args, base, cols, threads, rank, mean);
    A sums[3] = {0, 0, 0};
    AddSums(data, gamma, sums);
    if (kWarp) {
      WarpSum(sums, threads);
    } else {
      // Two storages by turns: a thread may still read one when another is a row ahead.
      ClusterSum(sums, &storage[parity], args.blocks);
      parity ^= 1;
    }
    const GradientTerms<A> t = TermsOf<A, A>(args.formula, mean, rstd, sums[0], sums[1], sums[2],
                                             static_cast<A>(args.cols));
    if (args.buffers.dx != nullptr) {
#pragma unroll
      for (int i = 0; i < ITEMS; ++i) {
        const int c = ColumnOf<VEC>(i, threads, rank);
        if (c < cols) {
          A dx[VEC];
#pragma unroll
          for (int v = 0; v < VEC; ++v) {
            dx[v] = t.rstd *
                    (data.dy[i][v] * gamma[i][v] - t.w_mean - (data.e[i][v] - t.low) * t.slope);
          }
          StoreVector<A, VEC>(args.dx, args.buffers.dx, base + c, dx);
        }
      }
    }
    if (want_params) {
      const A shift = args.formula == Formula::kScaleOnly ? -mean : t.low;
#pragma unroll
      for (int i = 0; i < ITEMS; ++i) {
#pragma unroll
        for (int v = 0; v < VEC; ++v) {
          // Beyond the row's end dy is 0, and rstd is 0 without a row.
          dgamma[i][v] += data.dy[i][v] * ((data.e[i][v] - shift) * t.rstd);
          dbeta[i][v] += data.dy[i][v];
        }
      }
    }
  }
  if (!kWarp && args.blocks > 1) SyncCluster();
  if (!want_params) return;

  const auto store = [&](const A(&values)[ITEMS][VEC], void* to) {
    if (to == nullptr) return;
    A* partial = static_cast<A*>(to) + (partial_sum * args.samples + sample) * args.cols;
    if (!kWarp) {
#pragma unroll
      for (int i = 0; i < ITEMS; ++i) {
#pragma unroll
        for (int v = 0; v < VEC; ++v) {
          const int c = ColumnOf<VEC>(i, threads, rank) + v;
          if (c < args.cols) partial[c] = values[i][v];
        }
      }
      return;
    }
    // The block's groups hold the same columns: they are added in order.
    const int width = threads * VEC * ITEMS;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
#pragma unroll
      for (int v = 0; v < VEC; ++v) {
        columns[group * width + ColumnOf<VEC>(i, threads, rank) + v] = values[i][v];
      }
    }
    __syncthreads();
    for (int c = threadIdx.x; c < args.cols; c += kWarpThreads) {
      A sum = 0;
      for (int g = 0; g < groups; ++g) sum += columns[g * width + c];
      partial[c] = sum;
    }
  };
  store(dgamma, args.dgamma);
  store(dbeta, args.dbeta);
}

template <typename A>
constexpr int kMostItems = sizeof(A) == 4 ? 16 : 8;

using KernelPointer = void (*)(Arguments);

template <typename A, int VEC>
KernelPointer KernelFor(int elements, bool warp) {
  if (!warp) return RowsKernel<A, VEC, kMostItems<A> / VEC, false>;
  return elements == 4 ? RowsKernel<A, VEC, 4 / VEC, true> : RowsKernel<A, VEC, 8 / VEC, true>;
}

// The ladder within, by the columns of a row; blocks is 0 for rows too long for it. Not tuned.
RowTile TileOf(const BackwardPlan& plan) {
  const int64_t cols = plan.problem.geometry.rows.cols;
  const int items = plan.problem.in_double() ? kMostItems<double> : kMostItems<float>;
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
  } else if (cols <= most_blocks * capacity) {
    const int blocks = PowerOfTwo(CeilDiv(cols, capacity));
    set(items, std::max<int64_t>(64, CeilDiv(CeilDiv(cols, items * blocks), 32) * 32), blocks);
  } else {
    tile.blocks = 0;
  }
  return tile;
}

// How many have gammas and betas of their own.
int64_t SamplesWithParams(const RowLayout& layout) {
  return layout.repeat == 1 ? 1 : SamplesOf(layout);
}

}  // namespace

bool BackwardAnyFits(const BackwardPlan& plan) { return TileOf(plan).blocks != 0; }

int64_t AnyPartials(const BackwardPlan& plan) {
  const RowTile tile = TileOf(plan);
  const RowLayout& layout = plan.problem.geometry.rows;
  const int64_t samples = SamplesWithParams(layout);
  const int64_t rows = layout.rows / samples;
  const int64_t multiprocessors = plan.device.multiprocessors;
  if (tile.threads <= 32) {
    return std::min<int64_t>(CeilDiv(rows, kWarpThreads / tile.threads),
                             CeilDiv(4 * multiprocessors, samples));
  }
  const int64_t resident = std::max(1, kBlockThreads / tile.threads);
  return std::min(rows, std::max<int64_t>(1, resident * multiprocessors / tile.blocks / samples));
}

Status LaunchBackwardRowsAny(const BackwardPlan& plan, const BackwardBuffers& buffers, void* dgamma,
                             void* dbeta, void* stream) {
  const BackwardProblem& problem = plan.problem;
  const RowTile tile = TileOf(plan);
  Arguments args = {};
  static_cast<GradientRowArguments&>(args) = GradientRowArguments::Of(problem, buffers);
  args.threads = tile.threads;
  args.blocks = tile.blocks;
  const RowLayout& layout = problem.geometry.rows;
  args.samples = SamplesWithParams(layout);
  args.rows = layout.rows / args.samples;
  args.partials = AnyPartials(plan);
  args.dgamma = dgamma;
  args.dbeta = dbeta;
  const bool warp = tile.threads <= 32;
  const KernelPointer kernel =
      WithNumbers(problem.in_double(), VectorFor(problem, buffers), [&](auto zero, auto vector) {
        return KernelFor<decltype(zero), decltype(vector)::value>(tile.items, warp);
      });
  return LaunchKernel("normalization gradient of rows", kernel,
                      static_cast<unsigned>(args.samples * args.partials * tile.blocks),
                      warp ? kWarpThreads : tile.threads, 0, tile.blocks, stream, args);
}

}  // namespace cuda
}  // namespace nv_norms
