// x is [rows, cols], a statistic a row. A row of x and dy lies in the registers of a part of a
// warp, of a block or of a cluster of blocks, so that both are read once; these threads go on to
// further rows and keep their columns' sums for dgamma and dbeta. Or rows are cut into tiles and
// read twice.
#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/rows.cuh"

namespace nv_norms {
namespace cuda {
namespace {

constexpr int kWarpThreads = 256;   // block size where a row has a part of a warp
constexpr int kBlockThreads = 512;  // at most, where a row has a block
constexpr int kSplitThreads = 512;
constexpr int kSplitItems = 16;  // elements of a tile to a thread
constexpr int kApplyThreads = 256;
constexpr int kMergeThreads = 256;
constexpr int kFinishColumns = 32;
constexpr int kFinishRows = 8;

struct Arguments {
  DType dy;
  DType x;
  DType param;
  DType dx;
  DType dparam;
  DType stat;
  Formula formula;
  int64_t rows;
  int cols;
  int threads;  // to a row
  int blocks;   // to a row
  RowParams params;
  BackwardBuffers buffers;
  void* terms;   // of each row, where wanted
  void* dgamma;  // partial sums [partials, cols], where wanted
  void* dbeta;
  void* tile_sums;  // of tiles: 3 numbers each
  int tiles;
  int tile_cols;
};

// The types of a kernel's tensors: known when it was compiled, or any.
template <typename A>
struct AnyTypes {
  using X = Any<A>;
  using P = Any<A>;
};
template <typename T>
struct FixedTypes {
  using X = Fixed<T>;  // x, dy and dx
  using P = Fixed<float>;
};

// x - mean and dy of one row, in a thread's registers.
template <typename A, int VEC, int ITEMS, typename Types = AnyTypes<A>>
struct Row {
  A e[ITEMS][VEC];
  A dy[ITEMS][VEC];

  __device__ __forceinline__ void Load(const Arguments& args, int64_t base, int cols, int threads,
                                       int rank, A mean) {
    Bits<A, VEC> x_bits[ITEMS];
    Bits<A, VEC> dy_bits[ITEMS];
    LoadRow<A, VEC, ITEMS, typename Types::X>(args.x, args.buffers.x, base, cols, threads, rank,
                                              x_bits);
    LoadRow<A, VEC, ITEMS, typename Types::X>(args.dy, args.buffers.dy, base, cols, threads, rank,
                                              dy_bits);
    ConvertRow<A, VEC, ITEMS, typename Types::X>(args.x, x_bits, cols, threads, rank, mean, e);
    ConvertRow<A, VEC, ITEMS, typename Types::X>(args.dy, dy_bits, cols, threads, rank, A(0), dy);
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
#pragma unroll
      for (int v = 0; v < VEC; ++v) e[i][v] -= mean;
    }
  }
};

template <typename A, int VEC, int ITEMS, typename Types = AnyTypes<A>>
__device__ __forceinline__ void LoadGamma(const Arguments& args, int64_t row, int64_t column,
                                          int cols, int threads, int rank, A (&gamma)[ITEMS][VEC]) {
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    const int c = ColumnOf<VEC>(i, threads, rank);
    if (c < cols) {
      LoadParams<A, VEC, typename Types::P>(args.params, args.param, args.buffers.gamma, row,
                                            column + c, 1, gamma[i]);
    } else {
#pragma unroll
      for (int v = 0; v < VEC; ++v) gamma[i][v] = 0;
    }
  }
}

// Sums of e, w and w * e.
template <typename A, int VEC, int ITEMS, typename Types>
__device__ __forceinline__ void AddSums(const Row<A, VEC, ITEMS, Types>& row,
                                        const A (&gamma)[ITEMS][VEC], A (&sums)[3]) {
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
#pragma unroll
    for (int v = 0; v < VEC; ++v) {
      const A w = row.dy[i][v] * gamma[i][v];
      sums[0] += row.e[i][v];
      sums[1] += w;
      sums[2] += w * row.e[i][v];
    }
  }
}

template <typename A, int VEC, int ITEMS, bool kWarp, typename Types = AnyTypes<A>>
__global__ void __launch_bounds__(kWarp ? kWarpThreads : kBlockThreads)
    RowsKernel(const __grid_constant__ Arguments args) {
  __shared__ BlockStorage<3, A> storage[2];
  __shared__ A columns[kWarp ? kWarpThreads * VEC * ITEMS : 1];
  if (!kWarp) ArriveAtCluster(args.blocks);
  const int threads = kWarp ? args.threads : blockDim.x * args.blocks;
  const int rank =
      kWarp ? threadIdx.x & (threads - 1) : BlockRankInCluster() * blockDim.x + threadIdx.x;
  const int groups = kWarp ? kWarpThreads / threads : 1;
  const int group = kWarp ? threadIdx.x / threads : 0;
  const int64_t first_row = static_cast<int64_t>(kWarp ? blockIdx.x : blockIdx.x / args.blocks);
  const int64_t step = static_cast<int64_t>(kWarp ? gridDim.x : gridDim.x / args.blocks) * groups;

  A gamma[ITEMS][VEC];
  if (args.params.by_column) {
    LoadGamma<A, VEC, ITEMS, Types>(args, 0, 0, args.cols, threads, rank, gamma);
  }
  A dgamma[ITEMS][VEC] = {};
  A dbeta[ITEMS][VEC] = {};
  const bool want_params = args.dgamma != nullptr || args.dbeta != nullptr;
  int parity = 0;
  if (!kWarp) WaitForCluster(args.blocks);
  for (int64_t start = first_row * groups; start < args.rows; start += step) {
    const int64_t row = start + group;
    const int cols = row < args.rows ? args.cols : 0;  // without a row, stays for the shuffles
    const int64_t base = row * args.cols;
    const A mean = cols > 0 ? StoredMean<A>(args.buffers, args.stat, row) : A(0);
    const A rstd = cols > 0 ? LoadOne<A>(args.stat, args.buffers.rstd, row) : A(0);
    Row<A, VEC, ITEMS, Types> data;
    data.Load(args, base, cols, threads, rank, mean);
    if (!args.params.by_column && cols > 0) {
      LoadGamma<A, VEC, ITEMS, Types>(args, row, 0, cols, threads, rank, gamma);
    }
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
    if (args.terms != nullptr && rank == 0 && cols > 0) {
      static_cast<GradientTerms<A>*>(args.terms)[row] = t;
    }
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
          StoreVector<A, VEC, typename Types::X>(args.dx, args.buffers.dx, base + c, dx);
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
    A* partial = static_cast<A*>(to) + first_row * args.cols;
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

// Adds up the partial sums of each column, in the order of the partials.
template <typename A>
__global__ void __launch_bounds__(kFinishColumns* kFinishRows)
    FinishParamsKernel(const A* dgamma_partials, const A* dbeta_partials, int64_t partials,
                       int64_t cols, DType type, void* dgamma, void* dbeta) {
  __shared__ double sums[kFinishRows][kFinishColumns];
  const A* from = blockIdx.y == 0 ? dgamma_partials : dbeta_partials;
  void* to = blockIdx.y == 0 ? dgamma : dbeta;
  if (to == nullptr) return;
  const int64_t c = static_cast<int64_t>(blockIdx.x) * kFinishColumns + threadIdx.x;
  double sum = 0;
  if (c < cols) {
    for (int64_t i = threadIdx.y; i < partials; i += kFinishRows) sum += from[i * cols + c];
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || c >= cols) return;
  for (int i = 1; i < kFinishRows; ++i) sum += sums[i][threadIdx.x];
  StoreOne<double>(type, to, c, sum);
}

// The sums of one tile of a row.
template <typename A, int VEC, typename Types = AnyTypes<A>>
__global__ void __launch_bounds__(kSplitThreads)
    TileSumsKernel(const __grid_constant__ Arguments args) {
  constexpr int kItems = kSplitItems / VEC;
  __shared__ BlockStorage<3, A> storage;
  const int64_t row = blockIdx.x / args.tiles;
  const int64_t from = static_cast<int64_t>(blockIdx.x % args.tiles) * args.tile_cols;
  const int cols = static_cast<int>(min(static_cast<int64_t>(args.tile_cols), args.cols - from));
  const A mean = StoredMean<A>(args.buffers, args.stat, row);
  Row<A, VEC, kItems, Types> data;
  data.Load(args, row * args.cols + from, cols, kSplitThreads, threadIdx.x, mean);
  A gamma[kItems][VEC];
  LoadGamma<A, VEC, kItems, Types>(args, row, from, cols, kSplitThreads, threadIdx.x, gamma);
  A sums[3] = {0, 0, 0};
  AddSums(data, gamma, sums);
  BlockSum(sums, &storage);
  if (threadIdx.x < 3) {
    static_cast<A*>(args.tile_sums)[int64_t{3} * blockIdx.x + threadIdx.x] =
        threadIdx.x == 0   ? sums[0]
        : threadIdx.x == 1 ? sums[1]
                           : sums[2];
  }
}

// A block to a row: the sums of its tiles to the terms of the input gradient.
template <typename A>
__global__ void __launch_bounds__(kMergeThreads)
    MergeTilesKernel(const __grid_constant__ Arguments args) {
  __shared__ BlockStorage<3, double> storage;
  const int64_t row = blockIdx.x;
  const A* from = static_cast<const A*>(args.tile_sums) + row * args.tiles * 3;
  double sums[3] = {0, 0, 0};
  for (int64_t i = threadIdx.x; i < args.tiles; i += kMergeThreads) {
    for (int n = 0; n < 3; ++n) sums[n] += from[3 * i + n];
  }
  BlockSum(sums, &storage);
  if (threadIdx.x != 0) return;
  const A mean = StoredMean<A>(args.buffers, args.stat, row);
  const A rstd = LoadOne<A>(args.stat, args.buffers.rstd, row);
  static_cast<GradientTerms<A>*>(args.terms)[row] =
      TermsOf<A, double>(args.formula, mean, rstd, sums[0], sums[1], sums[2], args.cols);
}

// A thread to some columns, which goes through some of the rows: gamma is read once, and dgamma and
// dbeta are summed on the way.
template <typename A, int VEC, typename Types = AnyTypes<A>>
__global__ void __launch_bounds__(kApplyThreads)
    ApplyKernel(const __grid_constant__ Arguments args, int64_t rows_per_chunk) {
  const int64_t c = (static_cast<int64_t>(blockIdx.x) * kApplyThreads + threadIdx.x) * VEC;
  if (c >= args.cols) return;
  const auto* terms = static_cast<const GradientTerms<A>*>(args.terms);
  A gamma[VEC];
  const auto load_gamma = [&](int64_t row) {
    LoadParams<A, VEC, typename Types::P>(args.params, args.param, args.buffers.gamma, row, c, 1,
                                          gamma);
  };
  if (args.params.by_column) load_gamma(0);
  A dgamma[VEC] = {};
  A dbeta[VEC] = {};
  constexpr int kBatch = 2;  // rows loaded before the first is used
  const int64_t begin = blockIdx.y * rows_per_chunk;
  const int64_t end = min(begin + rows_per_chunk, args.rows);
  for (int64_t start = begin; start < end; start += kBatch) {
    A x[kBatch][VEC];
    A dy[kBatch][VEC];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int64_t at = (start + j) * args.cols + c;
      if (start + j < end) {
        LoadVector<A, VEC, typename Types::X>(args.x, args.buffers.x, at, x[j]);
        LoadVector<A, VEC, typename Types::X>(args.dy, args.buffers.dy, at, dy[j]);
      }
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int64_t row = start + j;
      if (row >= end) break;
      if (!args.params.by_column) load_gamma(row);
      const GradientTerms<A> t = terms[row];
      A dx[VEC];
#pragma unroll
      for (int v = 0; v < VEC; ++v) {
        dx[v] = t.rstd * (dy[j][v] * gamma[v] - t.w_mean - ((x[j][v] - t.high) - t.low) * t.slope);
        dgamma[v] += dy[j][v] * (((x[j][v] - t.xhat_high) - t.xhat_low) * t.rstd);
        dbeta[v] += dy[j][v];
      }
      if (args.buffers.dx != nullptr) {
        StoreVector<A, VEC, typename Types::X>(args.dx, args.buffers.dx, row * args.cols + c, dx);
      }
    }
  }
#pragma unroll
  for (int v = 0; v < VEC; ++v) {
    const int64_t at = static_cast<int64_t>(blockIdx.y) * args.cols + c + v;
    if (args.dgamma != nullptr) {
      if (gridDim.y == 1) {  // the sums are whole
        StoreOne<A>(args.dparam, args.buffers.dgamma, at, dgamma[v]);
      } else {
        static_cast<A*>(args.dgamma)[at] = dgamma[v];
      }
    }
    if (args.dbeta != nullptr) {
      if (gridDim.y == 1) {
        StoreOne<A>(args.dparam, args.buffers.dbeta, at, dbeta[v]);
      } else {
        static_cast<A*>(args.dbeta)[at] = dbeta[v];
      }
    }
  }
}

template <typename A>
constexpr int kMostItems = sizeof(A) == 4 ? 16 : 8;

template <typename A, int VEC, typename Types>
auto WarpKernelFor(int elements) -> void (*)(Arguments) {
  return elements == 4 ? RowsKernel<A, VEC, 4 / VEC, true, Types>
                       : RowsKernel<A, VEC, 8 / VEC, true, Types>;
}

// For parts of warps and the usual types: x, dy and dx alike, gamma float32.
template <typename T>
auto FixedKernelFor(int vector, int elements) -> void (*)(Arguments) {
  return vector == 4 ? WarpKernelFor<float, 4, FixedTypes<T>>(elements)
                     : WarpKernelFor<float, 1, FixedTypes<T>>(elements);
}

template <typename A>
auto KernelFor(int vector, int elements, bool warp) -> void (*)(Arguments) {
  if (warp) {
    return vector == 4 ? WarpKernelFor<A, 4, AnyTypes<A>>(elements)
                       : WarpKernelFor<A, 1, AnyTypes<A>>(elements);
  }
  return vector == 4 ? RowsKernel<A, 4, kMostItems<A> / 4, false>
                     : RowsKernel<A, 1, kMostItems<A>, false>;
}

// x, dy and dx of one type and float32 gamma, for which there are kernels of their own.
bool UsualTypes(const BackwardProblem& problem) {
  return problem.dy == problem.x && problem.dx == problem.x && problem.param == DType::kFloat &&
         !problem.in_double();
}

// The kernels for the sums of tiles and for the input gradient of split rows.
struct SplitKernels {
  void (*sums)(Arguments);
  void (*apply)(Arguments, int64_t);
};

template <typename A, typename Types>
SplitKernels SplitKernelsOf(int vector) {
  if (vector == 4) return {TileSumsKernel<A, 4, Types>, ApplyKernel<A, 4, Types>};
  return {TileSumsKernel<A, 1, Types>, ApplyKernel<A, 1, Types>};
}

template <typename A>
SplitKernels SplitKernelsFor(const BackwardProblem& problem, int vector) {
  if (!UsualTypes(problem)) return SplitKernelsOf<A, AnyTypes<A>>(vector);
  if (problem.x == DType::kFloat) return SplitKernelsOf<float, FixedTypes<float>>(vector);
  if (problem.x == DType::kHalf) return SplitKernelsOf<float, FixedTypes<__half>>(vector);
  return SplitKernelsOf<float, FixedTypes<__nv_bfloat16>>(vector);
}

Arguments ArgumentsOf(const BackwardPlan& plan, const BackwardBuffers& buffers) {
  const BackwardProblem& problem = plan.problem;
  Arguments args = {};
  args.dy = problem.dy;
  args.x = problem.x;
  args.param = problem.param;
  args.dx = problem.dx;
  args.dparam = problem.dparam;
  args.stat = problem.stat();
  args.formula = problem.formula;
  args.rows = problem.geometry.rows.rows;
  args.cols = static_cast<int>(problem.geometry.rows.cols);
  args.threads = plan.tile.threads;
  args.blocks = plan.tile.blocks;
  args.params = RowParams::Of(problem.geometry.rows);
  args.buffers = buffers;
  return args;
}

// Vectors of 4 where every row and gamma are aligned for them.
int VectorFor(const BackwardPlan& plan, const BackwardBuffers& buffers) {
  const BackwardProblem& problem = plan.problem;
  const bool by_column = RowParams::Of(problem.geometry.rows).by_column;
  const bool fits = problem.geometry.rows.cols % 4 == 0 && VectorAligned(buffers.x, problem.x, 4) &&
                    VectorAligned(buffers.dy, problem.dy, 4) &&
                    VectorAligned(buffers.dx, problem.dx, 4) &&
                    (!by_column || VectorAligned(buffers.gamma, problem.param, 4));
  return fits ? 4 : 1;
}

int64_t TilesOf(const BackwardPlan& plan) {
  return CeilDiv(plan.problem.geometry.rows.cols, kSplitThreads * kSplitItems);
}

// Chunks of rows in the second pass over split rows; shape and device alone decide.
int64_t ChunksOf(const BackwardPlan& plan) {
  const RowLayout& layout = plan.problem.geometry.rows;
  const int64_t strips = CeilDiv(layout.cols, kApplyThreads * 4);
  return std::min<int64_t>({layout.rows, 1024, CeilDiv(16 * plan.device.multiprocessors, strips)});
}

template <typename A>
Status LaunchFinish(const BackwardPlan& plan, const BackwardBuffers& buffers, const void* dgamma,
                    const void* dbeta, void* stream) {
  const int64_t cols = plan.problem.geometry.rows.cols;
  return LaunchKernel("sums of parameter gradients", FinishParamsKernel<A>,
                      dim3(static_cast<unsigned>(CeilDiv(cols, kFinishColumns)), 2),
                      dim3(kFinishColumns, kFinishRows), 0, 1, stream,
                      static_cast<const A*>(dgamma), static_cast<const A*>(dbeta), plan.partials,
                      cols, plan.problem.dparam, buffers.dgamma, buffers.dbeta);
}

template <typename A>
Status LaunchAs(const BackwardPlan& plan, const BackwardBuffers& buffers, void* workspace,
                void* stream) {
  const BackwardProblem& problem = plan.problem;
  Arguments args = ArgumentsOf(plan, buffers);
  const bool want_params = buffers.dgamma != nullptr || buffers.dbeta != nullptr;
  const bool fused = want_params && args.params.by_column;
  const int vector = VectorFor(plan, buffers);
  char* free = static_cast<char*>(workspace);
  const auto take = [&](int64_t bytes) {
    void* taken = free;
    free += Align16(bytes);
    return taken;
  };
  const bool split = plan.kernel == Kernel::kRowsSplit;
  if (split || !args.params.by_column) args.terms = take(TermsBytes(problem));
  if (split) args.tile_sums = take(args.rows * TilesOf(plan) * 3 * sizeof(A));
  if (args.params.by_column && plan.want_params) {
    args.dgamma = take(plan.partials * args.cols * sizeof(A));
    args.dbeta = take(plan.partials * args.cols * sizeof(A));
  }
  if (!fused || buffers.dgamma == nullptr) args.dgamma = nullptr;
  if (!fused || buffers.dbeta == nullptr) args.dbeta = nullptr;

  if (split) {
    args.tiles = static_cast<int>(TilesOf(plan));
    args.tile_cols = kSplitThreads * kSplitItems;
    const SplitKernels kernels = SplitKernelsFor<A>(problem, vector);
    NV_NORMS_RETURN_IF_ERROR(LaunchKernel("gradient sums of tiles", kernels.sums,
                                          static_cast<unsigned>(args.rows * args.tiles),
                                          kSplitThreads, 0, 1, stream, args));
    NV_NORMS_RETURN_IF_ERROR(LaunchKernel("merging of tiles", MergeTilesKernel<A>,
                                          static_cast<unsigned>(args.rows), kMergeThreads, 0, 1,
                                          stream, args));
    if (buffers.dx != nullptr || fused) {
      const int64_t chunks = plan.partials;
      NV_NORMS_RETURN_IF_ERROR(
          LaunchKernel("normalization gradient of split rows", kernels.apply,
                       dim3(static_cast<unsigned>(CeilDiv(args.cols, kApplyThreads * vector)),
                            static_cast<unsigned>(chunks)),
                       kApplyThreads, 0, 1, stream, args, CeilDiv(args.rows, chunks)));
    }
  } else {
    const bool warp = plan.tile.threads <= 32;
    int64_t staged = 0;
    if (warp) {
      bool launched;
      NV_NORMS_RETURN_IF_ERROR(
          LaunchBackwardRowsTiny(plan, buffers, static_cast<float*>(args.dgamma),
                                 static_cast<float*>(args.dbeta), stream, &launched));
      if (launched) staged = plan.partials;
    } else {
      NV_NORMS_RETURN_IF_ERROR(
          LaunchBackwardRowsStaged(plan, buffers, static_cast<float*>(args.dgamma),
                                   static_cast<float*>(args.dbeta), stream, &staged));
    }
    if (staged == 0) {
      auto kernel = KernelFor<A>(vector, plan.tile.items, warp);
      const DType x = problem.x;
      if (warp && UsualTypes(problem)) {
        kernel = x == DType::kFloat  ? FixedKernelFor<float>(vector, plan.tile.items)
                 : x == DType::kHalf ? FixedKernelFor<__half>(vector, plan.tile.items)
                                     : FixedKernelFor<__nv_bfloat16>(vector, plan.tile.items);
      }
      NV_NORMS_RETURN_IF_ERROR(LaunchKernel("normalization gradient of rows", kernel,
                                            static_cast<unsigned>(plan.partials * plan.tile.blocks),
                                            warp ? kWarpThreads : plan.tile.threads, 0,
                                            plan.tile.blocks, stream, args));
    }
  }
  if (split && fused && plan.partials == 1) return Status();
  if (fused) return LaunchFinish<A>(plan, buffers, args.dgamma, args.dbeta, stream);
  return LaunchParamGradients(plan, buffers, args.terms, stream);
}

int PowerOfTwo(int64_t at_least) {
  int power = 1;
  while (power < at_least) power *= 2;
  return power;
}

}  // namespace

// The ladder, by the columns of a row. On an H200 65536 x 512 float32 took 0.116 ms with a block to
// a row and 0.161 with a warp. The other thresholds have not been tuned yet.
void PlanBackwardRows(BackwardPlan* plan) {
  const BackwardProblem& problem = plan->problem;
  const RowLayout& layout = problem.geometry.rows;
  const int64_t cols = layout.cols;
  const int64_t multiprocessors = plan->device.multiprocessors;
  RowTile& tile = plan->tile;
  plan->kernel = Kernel::kRows;
  const int items = problem.in_double() ? kMostItems<double> : kMostItems<float>;
  const int64_t capacity = items * kBlockThreads;
  const bool clusters = plan->device.capability >= 90;
  // Rows too few to keep every multiprocessor busy are cut into tiles.
  const bool few = layout.rows < multiprocessors / 2 && cols > 16384;
  const auto set = [&](int most_items, int64_t threads, int blocks) {
    tile.items = most_items;
    tile.threads = static_cast<int>(threads);
    tile.blocks = blocks;
  };
  if (cols <= 64) {
    set(4, PowerOfTwo(CeilDiv(cols, 4)), 1);
  } else if (cols <= 256) {
    set(8, PowerOfTwo(CeilDiv(cols, 8)), 1);
  } else if (few) {
    plan->kernel = Kernel::kRowsSplit;
  } else if (cols <= capacity) {
    set(items, std::max<int64_t>(64, CeilDiv(CeilDiv(cols, items), 32) * 32), 1);
  } else if (clusters && cols <= kMaxCluster * capacity) {
    const int blocks = PowerOfTwo(CeilDiv(cols, capacity));
    set(items, CeilDiv(CeilDiv(cols, items * blocks), 32) * 32, blocks);
  } else {
    plan->kernel = Kernel::kRowsSplit;
  }
  const int64_t tiles = TilesOf(*plan);
  if (cols >= int64_t{1} << 31 || layout.rows * tiles >= int64_t{1} << 31) {
    plan->kernel = Kernel::kGeneral;
    plan->workspace = Align16(TermsBytes(problem));
    return;
  }
  const int64_t number = SizeOfNumber(problem.in_double());
  const bool by_column = RowParams::Of(layout).by_column;
  if (plan->kernel == Kernel::kRowsSplit) {
    plan->partials = ChunksOf(*plan);
    // Whole chunks: the last one may be short, none may be empty.
    plan->partials = CeilDiv(layout.rows, CeilDiv(layout.rows, plan->partials));
    plan->workspace += Align16(layout.rows * tiles * 3 * number);
  } else if (tile.threads <= 32) {
    const int64_t groups = kWarpThreads / tile.threads;
    plan->partials =
        std::min(CeilDiv(layout.rows, groups), (SuitsTinyRows(problem) ? 12 : 4) * multiprocessors);
  } else {
    const int64_t resident = std::max<int64_t>(1, 512 / tile.threads);
    int64_t clusters = std::max<int64_t>(1, resident * multiprocessors / tile.blocks);
    if (tile.blocks > 1) {
      // A cluster more than fit at once would wait for all the others' rows.
      const int64_t fit = ClustersThatFit(*plan);
      if (fit > 0) clusters = fit;
    }
    plan->partials = std::min<int64_t>(layout.rows, clusters);
  }
  if (plan->kernel == Kernel::kRowsSplit || !by_column)
    plan->workspace += Align16(TermsBytes(problem));
  if (by_column && plan->want_params) {
    plan->workspace += 2 * Align16(plan->partials * cols * number);
  }
}

Status LaunchBackwardRows(const BackwardPlan& plan, const BackwardBuffers& buffers, void* workspace,
                          void* stream) {
  return plan.problem.in_double() ? LaunchAs<double>(plan, buffers, workspace, stream)
                                  : LaunchAs<float>(plan, buffers, workspace, stream);
}

}  // namespace cuda
}  // namespace nv_norms
