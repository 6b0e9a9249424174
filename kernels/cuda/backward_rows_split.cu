// x is [rows, cols], a statistic a row. Rows too long for any team are cut into tiles and read
// twice.
#include "kernels/cuda/gradient_rows.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/split.cuh"

namespace nv_norms {
namespace cuda {
namespace {

struct Arguments : GradientRowArguments {
  void* terms;      // of each row
  void* tile_sums;  // of tiles: 3 numbers each
  int tiles;
};

// The sums of one tile of a row.
template <typename A, int VEC, typename Types = AnyTypes<A>>
__global__ void __launch_bounds__(kSplitThreads)
    TileSumsKernel(const __grid_constant__ Arguments args) {
  constexpr int kItems = kSplitItems / VEC;
  __shared__ BlockStorage<3, A> storage;
  const SplitPlace place = SplitPlaceOf(args.rows, args.tiles);
  const int64_t row = place.row;
  const int64_t from = int64_t{place.tile} * kSplitColumns;
  const int cols = static_cast<int>(min(static_cast<int64_t>(kSplitColumns), args.cols - from));
  const A mean = StoredMean<A>(args.buffers, args.stat, row);
  GradientRow<A, VEC, kItems, Types> data;
  data.Load(args, row * args.cols + from, cols, kSplitThreads, threadIdx.x, mean);
  A gamma[kItems][VEC];
  LoadGamma<A, VEC, kItems, Types>(args, from, cols, kSplitThreads, threadIdx.x, gamma);
  A sums[3] = {0, 0, 0};
  AddSums(data, gamma, sums);
  BlockSum(sums, &storage);
  if (threadIdx.x < 3) {
    static_cast<A*>(args.tile_sums)[3 * (row * args.tiles + place.tile) + threadIdx.x] =
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
  LetNextKernelStart();
  const int64_t c = (static_cast<int64_t>(blockIdx.x) * kApplyThreads + threadIdx.x) * VEC;
  if (c >= args.cols) return;
  const auto* terms = static_cast<const GradientTerms<A>*>(args.terms);
  A gamma[VEC];
  LoadParams<A, VEC, typename Types::P>({}, args.param, args.buffers.gamma, 0, c, 1, gamma);
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
        LoadVector<A, VEC, typename Types::Y>(args.dy, args.buffers.dy, at, dy[j]);
      }
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int64_t row = start + j;
      if (row >= end) break;
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
    const auto store = [&](A sum, void* partial, void* whole) {
      if (partial == nullptr) return;
      if (gridDim.y == 1) {
        StoreOne<A>(args.dparam, whole, at, sum);
      } else {
        static_cast<A*>(partial)[at] = sum;
      }
    };
    store(dgamma[v], args.dgamma, args.buffers.dgamma);
    store(dbeta[v], args.dbeta, args.buffers.dbeta);
  }
}

// The kernels for the sums of tiles and for the input gradient of split rows.
struct SplitKernels {
  void (*sums)(Arguments);
  void (*apply)(Arguments, int64_t);
};

template <typename A>
Status LaunchAs(const BackwardPlan& plan, const BackwardBuffers& buffers, void* terms,
                void* tile_sums, void* dgamma, void* dbeta, void* stream) {
  const BackwardProblem& problem = plan.problem;
  const int vector = VectorFor(problem, buffers);
  Arguments args = {};
  static_cast<GradientRowArguments&>(args) = GradientRowArguments::Of(problem, buffers);
  args.terms = terms;
  args.dgamma = dgamma;
  args.dbeta = dbeta;
  args.tile_sums = tile_sums;
  args.tiles = static_cast<int>(SplitTiles(problem.geometry.rows));
  const auto kernels = WithSplitTypes<A>(problem, vector, [](auto* types, auto numbers) {
    using Types = std::remove_pointer_t<decltype(types)>;
    constexpr int kVector = decltype(numbers)::value;
    // Vectors of float32 beside vectors of 16 bits: 10 x 10^7 takes 0.493 ms with the second kernel
    // of any types and 0.545 with one of its own. Why is not known.
    constexpr bool kMixed = !std::is_same_v<typename Types::X, typename Types::Y>;
    using Second = std::conditional_t<kMixed && kVector == 4, AnyTypes<A>, Types>;
    return SplitKernels{TileSumsKernel<A, kVector, Types>, ApplyKernel<A, kVector, Second>};
  });
  NV_NORMS_RETURN_IF_ERROR(LaunchKernel("gradient sums of tiles", kernels.sums,
                                        static_cast<unsigned>(args.rows * args.tiles),
                                        kSplitThreads, 0, 1, stream, args));
  NV_NORMS_RETURN_IF_ERROR(LaunchKernel("merging of tiles", MergeTilesKernel<A>,
                                        static_cast<unsigned>(args.rows), kMergeThreads, 0, 1,
                                        stream, args));
  if (buffers.dx == nullptr && dgamma == nullptr && dbeta == nullptr) return Status();
  const int64_t chunks = SplitPartials(plan);
  return LaunchKernel("normalization gradient of split rows", kernels.apply,
                      dim3(static_cast<unsigned>(CeilDiv(args.cols, kApplyThreads * vector)),
                           static_cast<unsigned>(chunks)),
                      kApplyThreads, 0, 1, stream, args, CeilDiv(args.rows, chunks));
}

}  // namespace

// Chunks of rows in the second pass; shape and device alone decide. The last one may be short, none
// is empty. The sums of a single one are whole: they are stored as the result.
int64_t SplitPartials(const BackwardPlan& plan) {
  const RowLayout& layout = plan.problem.geometry.rows;
  const int64_t strips = CeilDiv(layout.cols, kApplyThreads * 4);
  const int64_t chunks =
      std::min<int64_t>({layout.rows, 1024, CeilDiv(16 * plan.device.multiprocessors, strips)});
  return CeilDiv(layout.rows, CeilDiv(layout.rows, chunks));
}

int64_t BackwardSplitBytes(const BackwardProblem& problem) {
  return Align16(problem.geometry.rows.rows * SplitTiles(problem.geometry.rows) * 3 *
                 SizeOfNumber(problem.in_double()));
}

Status LaunchBackwardRowsSplit(const BackwardPlan& plan, const BackwardBuffers& buffers,
                               void* terms, void* tile_sums, void* dgamma, void* dbeta,
                               void* stream) {
  return plan.problem.in_double()
             ? LaunchAs<double>(plan, buffers, terms, tile_sums, dgamma, dbeta, stream)
             : LaunchAs<float>(plan, buffers, terms, tile_sums, dgamma, dbeta, stream);
}

}  // namespace cuda
}  // namespace nv_norms
