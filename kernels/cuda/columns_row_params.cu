// dgamma and dbeta of a layer norm over a middle axis: x is [n, s, channels], a statistic for each
// column of a sample, a parameter for each row of s. A warp has kRows rows of a chunk of columns.
#include "kernels/cuda/columns.cuh"
#include "kernels/cuda/columns_sums.cuh"
#include "kernels/cuda/kernels.cuh"

namespace nv_norms {
namespace cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kRows = 16;  // to a warp: twice as many sums as it has lanes
constexpr int kBatch = 4;  // rows that a thread loads before it uses the first
constexpr int64_t kColumns = 32 * kColumnVector;  // of the narrowest chunk

struct Arguments {
  DType dy;
  DType x;
  DType stat;
  int64_t n;
  int64_t s;
  int64_t channels;
  int64_t runs;        // of kRows rows
  int64_t chunks;      // of columns
  int64_t chunk_size;  // columns
  const void* dy_data;
  const void* x_data;
  const void* mean_data;
};

// Of 32 numbers a lane keeps the sum over the warp of one, that of its own number.
template <int HALF, typename A>
__device__ __forceinline__ A SumOfOne(A (&values)[32]) {
  if constexpr (HALF == 0) {
    return values[0];
  } else {
    const bool upper = threadIdx.x & HALF;
#pragma unroll
    for (int i = 0; i < HALF; ++i) {
      const A keep = upper ? values[i + HALF] : values[i];
      const A send = upper ? values[i] : values[i + HALF];
      values[i] = keep + __shfl_xor_sync(0xffffffffu, send, HALF);
    }
    return SumOfOne<HALF / 2>(values);
  }
}

// dgamma, dbeta: partial sums [n, chunks, s].
template <typename A, int VEC, typename How>
__global__ void __launch_bounds__(kThreads, sizeof(A) == 4 ? 2 : 1)
    RowParamsKernel(const __grid_constant__ Arguments args, const XhatLine<A>* lines, A* dgamma,
                    A* dbeta) {
  const int lane = threadIdx.x % 32;
  const int64_t task = blockIdx.x * static_cast<int64_t>(kThreads / 32) + threadIdx.x / 32;
  const int64_t chunk = task % args.chunks;
  const int64_t run = task / args.chunks % args.runs;
  const int64_t n = task / args.chunks / args.runs;
  if (n >= args.n) return;
  const int64_t first = run * kRows;
  const int rows = static_cast<int>(min(static_cast<int64_t>(kRows), args.s - first));
  const int64_t end = min((chunk + 1) * args.chunk_size, args.channels);
  const int64_t base = (n * args.s + first) * args.channels;
  A sums[2 * kRows] = {};
  for (int64_t c = chunk * args.chunk_size + lane * VEC; c < end; c += 32 * VEC) {
    XhatLine<A> line[VEC];
    A mean[VEC];
#pragma unroll
    for (int v = 0; v < VEC; ++v) {
      const int64_t stat = n * args.channels + c + v;
      line[v] = lines[stat];
      mean[v] = args.mean_data == nullptr ? A(0) : LoadOne<A>(args.stat, args.mean_data, stat);
    }
#pragma unroll
    for (int start = 0; start < kRows; start += kBatch) {
      A x[kBatch][VEC];
      A dy[kBatch][VEC];
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        const int64_t at = base + (start + j) * args.channels + c;
        if (start + j < rows) {
          LoadVector<A, VEC, How>(args.x, args.x_data, at, x[j]);
          LoadVector<A, VEC, How>(args.dy, args.dy_data, at, dy[j]);
        }
      }
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        if (start + j >= rows) continue;
#pragma unroll
        for (int v = 0; v < VEC; ++v) {
          sums[start + j] += dy[j][v] * ((x[j][v] - mean[v]) * line[v].rstd + line[v].offset);
          sums[kRows + start + j] += dy[j][v];
        }
      }
    }
  }
  const A sum = SumOfOne<16>(sums);
  const int row = lane % kRows;
  A* to = lane < kRows ? dgamma : dbeta;
  if (row < rows) to[(n * args.chunks + chunk) * args.s + first + row] = sum;
}

struct Cut {
  int64_t runs;
  int64_t chunks;
  int64_t chunk_size;
};

// Chunks enough for eight warps to each of a multiprocessor's schedulers; shape and device alone
// decide. Not tuned yet.
Cut CutOf(const BackwardPlan& plan) {
  const ColumnLayout& layout = plan.problem.geometry.columns;
  Cut out;
  out.runs = CeilDiv(layout.s, kRows);
  const int64_t wanted = CeilDiv(int64_t{32} * plan.device.multiprocessors, layout.n * out.runs);
  const int64_t most = CeilDiv(layout.channels(), kColumns);
  out.chunk_size = CeilDiv(most, std::min(wanted, most)) * kColumns;
  out.chunks = CeilDiv(layout.channels(), out.chunk_size);
  return out;
}

int64_t PartialBytes(const BackwardPlan& plan) {
  const ColumnLayout& layout = plan.problem.geometry.columns;
  return Align16(layout.n * CutOf(plan).chunks * layout.s * SizeOfNumber(plan.problem.in_double()));
}

template <typename A, int VEC>
auto KernelFor(const BackwardProblem& problem) {
  if constexpr (sizeof(A) == 4) {
    if (problem.dy == problem.x) {
      if (problem.x == DType::kFloat) return RowParamsKernel<A, VEC, Fixed<float>>;
      if (problem.x == DType::kHalf) return RowParamsKernel<A, VEC, Fixed<__half>>;
      return RowParamsKernel<A, VEC, Fixed<__nv_bfloat16>>;
    }
  }
  return RowParamsKernel<A, VEC, Any<A>>;
}

template <typename A>
Status LaunchAs(const BackwardPlan& plan, const BackwardBuffers& buffers, const void* lines,
                void* workspace, void* stream) {
  const BackwardProblem& problem = plan.problem;
  const ColumnLayout& layout = problem.geometry.columns;
  const Cut cut = CutOf(plan);
  const Arguments args = {problem.dy,     problem.x,         problem.stat(), layout.n,
                          layout.s,       layout.channels(), cut.runs,       cut.chunks,
                          cut.chunk_size, buffers.dy,        buffers.x,      buffers.mean};
  const bool vectors = layout.channels() % kColumnVector == 0 &&
                       VectorAligned(buffers.x, problem.x, kColumnVector) &&
                       VectorAligned(buffers.dy, problem.dy, kColumnVector);
  auto* const dgamma = static_cast<A*>(workspace);
  auto* const dbeta = reinterpret_cast<A*>(static_cast<char*>(workspace) + PartialBytes(plan));
  const int64_t warps = layout.n * cut.runs * cut.chunks;
  NV_NORMS_RETURN_IF_ERROR(
      LaunchKernel("parameter gradients of rows of columns",
                   vectors ? KernelFor<A, kColumnVector>(problem) : KernelFor<A, 1>(problem),
                   static_cast<unsigned>(CeilDiv(warps, kThreads / 32)), kThreads, 0, 1, stream,
                   args, static_cast<const XhatLine<A>*>(lines), dgamma, dbeta));
  return LaunchFinish(problem, layout.s, buffers, dgamma, dbeta, layout.n * cut.chunks, plan.device,
                      stream);
}

}  // namespace

int64_t RowParamsBytes(const BackwardPlan& plan) {
  const bool wanted = plan.want_params && plan.problem.geometry.columns.s_stride != 0;
  return wanted ? 2 * PartialBytes(plan) : 0;
}

Status LaunchRowParams(const BackwardPlan& plan, const BackwardBuffers& buffers, const void* lines,
                       void* workspace, void* stream) {
  return plan.problem.in_double() ? LaunchAs<double>(plan, buffers, lines, workspace, stream)
                                  : LaunchAs<float>(plan, buffers, lines, workspace, stream);
}

}  // namespace cuda
}  // namespace nv_norms
