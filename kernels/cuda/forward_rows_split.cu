// x is [rows, cols], a statistic a row. Rows too long for any team are cut into tiles and read
// twice.
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/split.cuh"

namespace nv_norms {
namespace cuda {
namespace {

struct Arguments {
  DType x;
  DType param;
  DType y;
  Formula formula;
  int64_t rows;
  int cols;
  RowParams params;
  ForwardBuffers buffers;
  Moments* moments;  // of each tile
  int tiles;
};

// A block to a tile: its moments, in two passes over registers.
template <typename A, int VEC, typename Types = AnyTypes<A>>
__global__ void __launch_bounds__(kSplitThreads)
    TileMomentsKernel(const __grid_constant__ Arguments args) {
  LetNextKernelStart();
  constexpr int kItems = kSplitItems / VEC;
  __shared__ BlockStorage<1, A> first_storage;
  __shared__ BlockStorage<2, A> second_storage;
  const SplitPlace place = SplitPlaceOf(args.rows, args.tiles);
  const int64_t row = place.row;
  const int from = place.tile * kSplitColumns;
  const int64_t base = row * args.cols + from;
  const int cols = min(kSplitColumns, args.cols - from);
  const int rank = threadIdx.x;
  const bool center = args.formula != Formula::kRms;  // the statistics, at least
  Bits<A, VEC> bits[kItems];
  LoadRow<A, VEC, kItems, typename Types::X>(args.x, args.buffers.x, base, cols, kSplitThreads,
                                             rank, bits);
  const A first = center ? LoadOne<A, typename Types::X>(args.x, args.buffers.x, base) : A(0);
  A values[kItems][VEC];
  ConvertRow<A, VEC, kItems, typename Types::X>(args.x, bits, cols, kSplitThreads, rank, first,
                                                values);
  const A count = static_cast<A>(cols);
  A shift = 0;
  if (center) {
    A sum[1] = {SumFrom(values, first)};
    BlockSum(sum, &first_storage);
    shift = first + sum[0] / count;
  }
  A sums[2] = {0, 0};
  AddSquares(values, shift, cols, kSplitThreads, rank, sums);
  BlockSum(sums, &second_storage);
  A low = 0;
  A m2 = sums[1];
  if (center) {
    low = sums[0] / count;
    m2 -= sums[0] * low;
    m2 = m2 < 0 ? A(0) : m2;  // keeps NaN
  }
  if (rank == 0) {
    args.moments[row * args.tiles + place.tile] = {
        static_cast<double>(cols), static_cast<double>(shift) + low, static_cast<double>(m2)};
  }
}

// A block to a row: the moments of its tiles to what normalizing needs.
template <typename A>
__global__ void __launch_bounds__(kMergeThreads)
    MergeTilesKernel(const __grid_constant__ ForwardProblem problem, const ForwardBuffers buffers,
                     const Moments* tiles, int64_t count, Scaling<A>* scaling) {
  LetNextKernelStart();
  __shared__ Moments warps[kMergeThreads / 32];
  const int64_t row = blockIdx.x;
  WaitForKernelBefore();
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
    WaitForKernelBefore();
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

// The kernels for the moments of tiles and for the output of split rows.
template <typename A>
struct SplitKernels {
  void (*moments)(Arguments);
  void (*apply)(Arguments, const Scaling<A>*);
};

template <typename A>
Status LaunchAs(const ForwardPlan& plan, const ForwardBuffers& buffers, void* workspace,
                void* stream) {
  const ForwardProblem& problem = plan.problem;
  const int64_t rows = problem.geometry.rows.rows;
  const int64_t tiles = SplitTiles(problem.geometry.rows);
  const int vector = VectorFor(problem, buffers);
  const auto kernels = WithSplitTypes<A>(problem, vector, [](auto* types, auto numbers) {
    using Types = std::remove_pointer_t<decltype(types)>;
    constexpr int kVector = decltype(numbers)::value;
    return SplitKernels<A>{TileMomentsKernel<A, kVector, typename Types::OfX>,
                           ApplyKernel<A, kVector, Types>};
  });
  auto* moments = static_cast<Moments*>(workspace);
  auto* scaling = reinterpret_cast<Scaling<A>*>(static_cast<char*>(workspace) +
                                                Align16(rows * tiles * sizeof(Moments)));
  Arguments args = {};
  args.x = problem.x;
  args.param = problem.param;
  args.y = problem.y;
  args.formula = problem.formula;
  args.rows = rows;
  args.cols = static_cast<int>(problem.geometry.rows.cols);
  args.params = RowParams::Of(problem.geometry.rows);
  args.buffers = buffers;
  args.moments = moments;
  args.tiles = static_cast<int>(tiles);
  NV_NORMS_RETURN_IF_ERROR(LaunchKernel("moments of tiles", kernels.moments,
                                        static_cast<unsigned>(rows * tiles), kSplitThreads, 0, 1,
                                        stream, args));
  LaunchAttributes attributes;
  attributes.early = plan.device.capability >= 90;
  NV_NORMS_RETURN_IF_ERROR(LaunchKernel("merging of tiles", MergeTilesKernel<A>,
                                        static_cast<unsigned>(rows), kMergeThreads, 0, attributes,
                                        stream, problem, buffers, moments, tiles, scaling));
  const int64_t strips = CeilDiv(args.cols, kApplyThreads * vector);
  const int64_t chunks = std::min<int64_t>(
      {rows, 65535, std::max<int64_t>(1, CeilDiv(16 * plan.device.multiprocessors, strips))});
  return LaunchKernel("normalization of split rows", kernels.apply,
                      dim3(static_cast<unsigned>(strips), static_cast<unsigned>(chunks)),
                      kApplyThreads, 0, attributes, stream, args,
                      static_cast<const Scaling<A>*>(scaling));
}

}  // namespace

int64_t ForwardSplitBytes(const ForwardProblem& problem) {
  const int64_t rows = problem.geometry.rows.rows;
  return Align16(rows * SplitTiles(problem.geometry.rows) * static_cast<int64_t>(sizeof(Moments))) +
         Align16(rows * 3 * SizeOfNumber(problem.in_double()));
}

Status LaunchForwardRowsSplit(const ForwardPlan& plan, const ForwardBuffers& buffers,
                              void* workspace, void* stream) {
  return plan.problem.in_double() ? LaunchAs<double>(plan, buffers, workspace, stream)
                                  : LaunchAs<float>(plan, buffers, workspace, stream);
}

}  // namespace cuda
}  // namespace nv_norms
