// x is [rows, cols], a statistic a row. A row lies in the registers of a part of a warp, of a block
// or of a cluster of blocks, so that x is read once; or it is cut into tiles and read twice.
#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/rows.cuh"

namespace nv_norms {
namespace cuda {
namespace {

constexpr int kWarpThreads = 128;    // block size where a row has a part of a warp
constexpr int kBlockThreads = 1024;  // at most, where a row has a block
constexpr int kSplitThreads = 512;
constexpr int kSplitItems = 16;  // elements of a tile to a thread
constexpr int kApplyThreads = 256;
constexpr int kMergeThreads = 256;

struct Arguments {
  DType x;
  DType param;
  DType y;
  DType stat;
  Formula formula;
  double epsilon;
  int64_t rows;
  int cols;
  int threads;  // to a row
  int blocks;   // to a row
  RowParams params;
  ForwardBuffers buffers;
  // Where rows are cut into tiles, each is taken for a row and its moments are stored here.
  Moments* moments;
  int tiles;
  int tile_cols;
};

// The types of a kernel's tensors: known when it was compiled, or any.
template <typename A>
struct AnyTypes {
  using X = Any<A>;
  using P = Any<A>;
  using Y = Any<A>;
};
template <typename T>
struct FixedTypes {
  using X = Fixed<T>;
  using P = Fixed<float>;
  using Y = Fixed<T>;
};

template <typename A, int VEC, int ITEMS, bool kWarp, typename Types = AnyTypes<A>>
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
    if (args.moments == nullptr) {
      row = blockIdx.x / args.blocks;
      base = row * args.cols;
    } else {
      rank = threadIdx.x;
      row = blockIdx.x / args.tiles;
      const int from = static_cast<int>(blockIdx.x % args.tiles) * args.tile_cols;
      base = row * args.cols + from;
      cols = min(args.tile_cols, args.cols - from);
    }
  }
  const bool center = args.formula != Formula::kRms;  // the statistics, at least

  Bits<A, VEC> bits[ITEMS];
  LoadRow<A, VEC, ITEMS, typename Types::X>(args.x, args.buffers.x, base, cols, threads, rank,
                                            bits);
  const A first =
      center && cols > 0 ? LoadOne<A, typename Types::X>(args.x, args.buffers.x, base) : A(0);
  A values[ITEMS][VEC];
  ConvertRow<A, VEC, ITEMS, typename Types::X>(args.x, bits, cols, threads, rank, first, values);

  const A count = static_cast<A>(cols);
  A shift = 0;
  if (!kWarp) WaitForCluster(args.blocks);
  if (center) {
    A sum[1] = {0};
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
#pragma unroll
      for (int v = 0; v < VEC; ++v) sum[0] += values[i][v] - first;
    }
    if (kWarp) {
      WarpSum(sum, threads);
    } else {
      ClusterSum(sum, &first_storage, args.blocks);
    }
    shift = first + sum[0] / count;
  }
  A sums[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    if (ColumnOf<VEC>(i, threads, rank) < cols) {
#pragma unroll
      for (int v = 0; v < VEC; ++v) {
        const A e = values[i][v] - shift;
        sums[0] += e;
        sums[1] += e * e;
      }
    }
  }
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
  if (!kWarp && args.moments != nullptr) {
    if (rank == 0) {
      args.moments[blockIdx.x] = {static_cast<double>(cols), static_cast<double>(shift) + low,
                                  static_cast<double>(m2)};
    }
    return;
  }
  const A rstd = InverseRoot(m2 / count + static_cast<A>(args.epsilon));
  if (rank == 0 && cols > 0) {
    if (args.buffers.mean != nullptr) {
      StoreOne<A>(args.stat, args.buffers.mean, row, shift + low);
    }
    StoreOne<A>(args.stat, args.buffers.rstd, row, rstd);
  }
  if (args.formula != Formula::kCenter) {
    shift = 0;
    low = 0;
  }
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    const int c = ColumnOf<VEC>(i, threads, rank);
    if (c < cols) {
      A gamma[VEC];
      A beta[VEC];
      LoadParams<A, VEC, typename Types::P>(args.params, args.param, args.buffers.gamma, row, c, 1,
                                            gamma);
      LoadParams<A, VEC, typename Types::P>(args.params, args.param, args.buffers.beta, row, c, 0,
                                            beta);
      A y[VEC];
#pragma unroll
      for (int v = 0; v < VEC; ++v) {
        y[v] = ((values[i][v] - shift) - low) * rstd * gamma[v] + beta[v];
      }
      StoreVector<A, VEC, typename Types::Y>(args.y, args.buffers.y, base + c, y);
    }
  }
}

// A block to a row: the moments of its tiles to what normalizing needs.
template <typename A>
__global__ void __launch_bounds__(kMergeThreads)
    MergeTilesKernel(const __grid_constant__ ForwardProblem problem, const ForwardBuffers buffers,
                     const Moments* tiles, int64_t count, Scaling<A>* scaling) {
  __shared__ Moments warps[kMergeThreads / 32];
  const int64_t row = blockIdx.x;
  Moments moments = {0, 0, 0};
  for (int64_t i = threadIdx.x; i < count; i += kMergeThreads) {
    moments = Merge(moments, tiles[row * count + i]);
  }
  moments = WarpMerge(moments);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = moments;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  moments = {0, 0, 0};
  if (threadIdx.x < kMergeThreads / 32) moments = warps[threadIdx.x];
  moments = WarpMerge(moments);
  const Scaling<A> out = ScalingOf<A>(problem, buffers, row, moments, threadIdx.x == 0);
  if (threadIdx.x == 0) scaling[row] = out;
}

// A thread to some columns, which goes through the rows: gamma and beta are read once.
template <typename A, int VEC, typename Types = AnyTypes<A>>
__global__ void __launch_bounds__(kApplyThreads)
    ApplyKernel(const __grid_constant__ Arguments args, const Scaling<A>* scaling) {
  constexpr int kBatch = 4;  // rows loaded before the first is used
  const int64_t c = (static_cast<int64_t>(blockIdx.x) * kApplyThreads + threadIdx.x) * VEC;
  if (c >= args.cols) return;
  A gamma[VEC];
  A beta[VEC];
  const auto load_params = [&](int64_t row) {
    LoadParams<A, VEC, typename Types::P>(args.params, args.param, args.buffers.gamma, row, c, 1,
                                          gamma);
    LoadParams<A, VEC, typename Types::P>(args.params, args.param, args.buffers.beta, row, c, 0,
                                          beta);
  };
  if (args.params.by_column) load_params(0);
  const int64_t step = gridDim.y;
  for (int64_t start = blockIdx.y; start < args.rows; start += kBatch * step) {
    A x[kBatch][VEC];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int64_t row = start + j * step;
      if (row < args.rows) {
        LoadVector<A, VEC, typename Types::X>(args.x, args.buffers.x, row * args.cols + c, x[j]);
      }
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int64_t row = start + j * step;
      if (row >= args.rows) break;
      if (!args.params.by_column) load_params(row);
      const Scaling<A> s = scaling[row];
      A y[VEC];
#pragma unroll
      for (int v = 0; v < VEC; ++v) {
        y[v] = ((x[j][v] - s.high) - s.low) * s.rstd * gamma[v] + beta[v];
      }
      StoreVector<A, VEC, typename Types::Y>(args.y, args.buffers.y, row * args.cols + c, y);
    }
  }
}

// A block's 64 registers to a thread hold 16 floats or 8 doubles of x without spilling.
template <typename A>
constexpr int64_t kBlockItems = sizeof(A) == 4 ? 16 : 8;

template <typename A, int VEC>
auto BlockKernelFor(int elements) -> void (*)(Arguments) {
  if (elements == 8) return RowsKernel<A, VEC, 8 / VEC, false>;
  return RowsKernel<A, VEC, kBlockItems<A> / VEC, false>;
}

template <typename A, int VEC, typename Types>
auto WarpKernelFor(int elements) -> void (*)(Arguments) {
  if (elements <= VEC) return RowsKernel<A, VEC, 1, true, Types>;
  switch (elements) {
    case 4:
      return RowsKernel < A, VEC, VEC < 4 ? 4 / VEC : 1, true, Types > ;
    case 8:
      return RowsKernel<A, VEC, 8 / VEC, true, Types>;
    case 16:
      return RowsKernel<A, VEC, 16 / VEC, true, Types>;
    default:
      return RowsKernel<A, VEC, 32 / VEC, true, Types>;
  }
}

template <typename A>
auto KernelFor(int vector, int elements, bool warp) -> void (*)(Arguments) {
  if (vector == 4) {
    return warp ? WarpKernelFor<A, 4, AnyTypes<A>>(elements) : BlockKernelFor<A, 4>(elements);
  }
  return warp ? WarpKernelFor<A, 1, AnyTypes<A>>(elements) : BlockKernelFor<A, 1>(elements);
}

// For parts of warps and the usual types: x and y alike, parameters float32.
template <typename T>
auto FixedKernelFor(int vector, int elements) -> void (*)(Arguments) {
  if (vector == 8) return WarpKernelFor<float, 16 / sizeof(T), FixedTypes<T>>(elements);
  if (vector == 4) return WarpKernelFor<float, 4, FixedTypes<T>>(elements);
  return WarpKernelFor<float, 1, FixedTypes<T>>(elements);
}

Arguments ArgumentsOf(const ForwardPlan& plan, const ForwardBuffers& buffers) {
  const ForwardProblem& problem = plan.problem;
  Arguments args = {};
  args.x = problem.x;
  args.param = problem.param;
  args.y = problem.y;
  args.stat = problem.stat();
  args.formula = problem.formula;
  args.epsilon = problem.epsilon;
  args.rows = problem.geometry.rows.rows;
  args.cols = static_cast<int>(problem.geometry.rows.cols);
  args.threads = plan.tile.threads;
  args.blocks = plan.tile.blocks;
  args.params = RowParams::Of(problem.geometry.rows);
  args.buffers = buffers;
  return args;
}

// Whether every row and the parameters are aligned for vectors of so many numbers.
bool Fits(const ForwardPlan& plan, const ForwardBuffers& buffers, int vector) {
  const ForwardProblem& problem = plan.problem;
  const bool by_column = RowParams::Of(problem.geometry.rows).by_column;
  return problem.geometry.rows.cols % vector == 0 && VectorAligned(buffers.x, problem.x, vector) &&
         VectorAligned(buffers.y, problem.y, vector) &&
         (!by_column || (VectorAligned(buffers.gamma, problem.param, vector) &&
                         VectorAligned(buffers.beta, problem.param, vector)));
}

int VectorFor(const ForwardPlan& plan, const ForwardBuffers& buffers) {
  return Fits(plan, buffers, 4) ? 4 : 1;
}

// x and y of one type and float32 parameters, for which there are kernels of their own.
bool UsualTypes(const ForwardProblem& problem) {
  return problem.x == problem.y && problem.param == DType::kFloat && problem.x != DType::kDouble;
}

// The kernels for the moments of tiles and for the output of split rows.
template <typename A>
struct SplitKernels {
  void (*moments)(Arguments);
  void (*apply)(Arguments, const Scaling<A>*);
};

template <typename A, int VEC, typename Types>
SplitKernels<A> SplitKernelsOf() {
  return {RowsKernel<A, VEC, kSplitItems / VEC, false, Types>, ApplyKernel<A, VEC, Types>};
}

template <typename A>
SplitKernels<A> SplitKernelsFor(const ForwardProblem&, int vector) {
  return vector == 4 ? SplitKernelsOf<A, 4, AnyTypes<A>>() : SplitKernelsOf<A, 1, AnyTypes<A>>();
}
template <>
SplitKernels<float> SplitKernelsFor<float>(const ForwardProblem& problem, int vector) {
  if (UsualTypes(problem) && problem.x == DType::kFloat) {
    return vector == 4 ? SplitKernelsOf<float, 4, FixedTypes<float>>()
                       : SplitKernelsOf<float, 1, FixedTypes<float>>();
  }
  if (UsualTypes(problem) && problem.x == DType::kHalf) {
    return vector == 4 ? SplitKernelsOf<float, 4, FixedTypes<__half>>()
                       : SplitKernelsOf<float, 1, FixedTypes<__half>>();
  }
  if (UsualTypes(problem)) {
    return vector == 4 ? SplitKernelsOf<float, 4, FixedTypes<__nv_bfloat16>>()
                       : SplitKernelsOf<float, 1, FixedTypes<__nv_bfloat16>>();
  }
  return vector == 4 ? SplitKernelsOf<float, 4, AnyTypes<float>>()
                     : SplitKernelsOf<float, 1, AnyTypes<float>>();
}

int64_t TilesOf(const ForwardPlan& plan) {
  return CeilDiv(plan.problem.geometry.rows.cols, kSplitThreads * kSplitItems);
}

template <typename A>
Status LaunchSplit(const ForwardPlan& plan, const ForwardBuffers& buffers, void* workspace,
                   void* stream) {
  const int64_t rows = plan.problem.geometry.rows.rows;
  const int64_t tiles = TilesOf(plan);
  const int vector = VectorFor(plan, buffers);
  const SplitKernels<A> kernels = SplitKernelsFor<A>(plan.problem, vector);
  auto* moments = static_cast<Moments*>(workspace);
  auto* scaling = reinterpret_cast<Scaling<A>*>(static_cast<char*>(workspace) +
                                                Align16(rows * tiles * sizeof(Moments)));
  Arguments args = ArgumentsOf(plan, buffers);
  args.moments = moments;
  args.tiles = static_cast<int>(tiles);
  args.tile_cols = kSplitThreads * kSplitItems;
  args.threads = kSplitThreads;
  args.blocks = 1;
  NV_NORMS_RETURN_IF_ERROR(LaunchKernel("moments of tiles", kernels.moments,
                                        static_cast<unsigned>(rows * tiles), kSplitThreads, 0, 1,
                                        stream, args));
  NV_NORMS_RETURN_IF_ERROR(LaunchKernel("merging of tiles", MergeTilesKernel<A>,
                                        static_cast<unsigned>(rows), kMergeThreads, 0, 1, stream,
                                        plan.problem, buffers, moments, tiles, scaling));
  const int64_t strips = CeilDiv(args.cols, kApplyThreads * vector);
  const int64_t chunks = std::min<int64_t>(
      {rows, 65535, std::max<int64_t>(1, CeilDiv(16 * plan.device.multiprocessors, strips))});
  return LaunchKernel("normalization of split rows", kernels.apply,
                      dim3(static_cast<unsigned>(strips), static_cast<unsigned>(chunks)),
                      kApplyThreads, 0, 1, stream, args, static_cast<const Scaling<A>*>(scaling));
}

int PowerOfTwo(int64_t at_least) {
  int power = 1;
  while (power < at_least) power *= 2;
  return power;
}

}  // namespace

// The ladder, by the columns of a row. Of its thresholds only the ones that carry a measurement are
// tuned.
void PlanForwardRows(ForwardPlan* plan) {
  const RowLayout& layout = plan->problem.geometry.rows;
  const int64_t cols = layout.cols;
  RowTile& tile = plan->tile;
  plan->kernel = Kernel::kRows;
  const auto set = [&](int items, int64_t threads, int blocks) {
    tile.items = items;
    tile.threads = static_cast<int>(threads);
    tile.blocks = blocks;
  };
  const auto block = [&](int items) {
    set(items, std::max<int64_t>(64, CeilDiv(CeilDiv(cols, items), 32) * 32), 1);
  };
  const bool clusters = plan->device.capability >= 90;
  const int items =
      static_cast<int>(plan->problem.in_double() ? kBlockItems<double> : kBlockItems<float>);
  const int64_t capacity = items * kBlockThreads;
  // Rows too few to keep every multiprocessor busy are cut into tiles.
  const bool few = layout.rows < plan->device.multiprocessors / 2 && cols > 16384;
  if (cols <= 64) {
    set(4, PowerOfTwo(CeilDiv(cols, 4)), 1);
  } else if (cols <= 256) {
    set(8, PowerOfTwo(CeilDiv(cols, 8)), 1);
  } else if (cols <= 512) {
    set(16, 32, 1);
  } else if (cols <= 1024) {
    set(32, 32, 1);
  } else if (few) {
    plan->kernel = Kernel::kRowsSplit;
  } else if (cols <= 4096) {
    block(8);
  } else if (cols <= capacity) {
    block(items);
  } else if (clusters && cols <= kMaxCluster * capacity) {
    const int blocks = PowerOfTwo(CeilDiv(cols, capacity));
    set(items, CeilDiv(CeilDiv(cols, items * blocks), 32) * 32, blocks);
  } else {
    plan->kernel = Kernel::kRowsSplit;
  }
  const int64_t tiles = TilesOf(*plan);
  if (cols >= int64_t{1} << 31 || layout.rows * tiles >= int64_t{1} << 31) {
    plan->kernel = Kernel::kGeneral;
    return;
  }
  if (plan->kernel == Kernel::kRowsSplit) {
    plan->workspace = Align16(layout.rows * tiles * sizeof(Moments)) +
                      Align16(layout.rows * 3 * SizeOfNumber(plan->problem.in_double()));
  }
}

Status LaunchForwardRows(const ForwardPlan& plan, const ForwardBuffers& buffers, void* workspace,
                         void* stream) {
  const bool in_double = plan.problem.in_double();
  if (plan.kernel == Kernel::kRowsSplit) {
    return in_double ? LaunchSplit<double>(plan, buffers, workspace, stream)
                     : LaunchSplit<float>(plan, buffers, workspace, stream);
  }
  const Arguments args = ArgumentsOf(plan, buffers);
  const bool warp = plan.tile.threads <= 32;
  if (warp) {
    bool launched;
    const Status status = LaunchForwardRowsTiny(plan, buffers, stream, &launched);
    if (launched || !status.ok()) return status;
  }
  // 65536 x 768 bfloat16 took 0.067 ms staged, two rows to a block, and 0.079 in warps; float32
  // 0.113 and 0.105.
  if (!warp || (args.cols > 512 && SizeOf(plan.problem.x) == 2)) {
    bool launched;
    const Status status = LaunchForwardRowsStaged(plan, buffers, stream, &launched);
    if (launched || !status.ok()) return status;
  }
  int vector = VectorFor(plan, buffers);
  auto kernel = in_double ? KernelFor<double>(vector, plan.tile.items, warp)
                          : KernelFor<float>(vector, plan.tile.items, warp);
  const DType x = plan.problem.x;
  if (warp && UsualTypes(plan.problem)) {
    if (x != DType::kFloat && plan.tile.items >= 8 && Fits(plan, buffers, 8)) vector = 8;
    kernel = x == DType::kFloat  ? FixedKernelFor<float>(vector, plan.tile.items)
             : x == DType::kHalf ? FixedKernelFor<__half>(vector, plan.tile.items)
                                 : FixedKernelFor<__nv_bfloat16>(vector, plan.tile.items);
  }
  const int64_t blocks =
      warp ? CeilDiv(args.rows, kWarpThreads / plan.tile.threads) : args.rows * plan.tile.blocks;
  return LaunchKernel("normalization of rows", kernel, static_cast<unsigned>(blocks),
                      warp ? kWarpThreads : plan.tile.threads, 0, plan.tile.blocks, stream, args);
}

}  // namespace cuda
}  // namespace nv_norms
