// x is [rows, cols] with so few columns, and so odd a number of them, that threads side by side
// would read scraps. A block copies a run of whole rows to shared memory in 16-byte pieces, a
// thread normalizes a row in place, and the block copies the run out.
#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/staged.cuh"

namespace nv_norms {
namespace cuda {
namespace {

constexpr int kRows = 256;  // to a block, a thread each: a run's size is a multiple of 16 bytes

struct Arguments {
  Formula formula;
  float epsilon;
  int64_t rows;
  int cols;
  ForwardBuffers buffers;
};

template <typename T>
__global__ void __launch_bounds__(kRows) TinyKernel(const __grid_constant__ Arguments args) {
  extern __shared__ uint4 stage[];
  __shared__ float gamma[kTinyColumns];
  __shared__ float beta[kTinyColumns];
  constexpr int kVector = kVectorOf<T>;
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) * kRows;
  const int rows = static_cast<int>(min(static_cast<int64_t>(kRows), args.rows - first_row));
  const int count = rows * args.cols;
  const int whole = count / kVector;
  T* values = reinterpret_cast<T*>(stage);
  const T* x = static_cast<const T*>(args.buffers.x) + first_row * args.cols;
  for (int i = threadIdx.x; i < whole; i += kRows) {
    CopyAsync(&stage[i], reinterpret_cast<const uint4*>(x) + i);
  }
  CommitCopies();
  for (int i = whole * kVector + threadIdx.x; i < count; i += kRows) values[i] = x[i];
  if (threadIdx.x < args.cols) {
    const int c = threadIdx.x;
    const auto* g = static_cast<const float*>(args.buffers.gamma);
    const auto* b = static_cast<const float*>(args.buffers.beta);
    gamma[c] = g == nullptr ? 1.0f : g[c];
    beta[c] = b == nullptr ? 0.0f : b[c];
  }
  WaitForCopies<0>();
  __syncthreads();
  if (threadIdx.x < rows) {
    T* row = values + threadIdx.x * args.cols;
    const float inverse = 1.0f / static_cast<float>(args.cols);
    const bool center = args.formula != Formula::kRms;  // the statistics, at least
    float shift = 0;
    if (center) {
      const float first = To<float>::Of(row[0]);
      float sum = 0;
#pragma unroll 5
      for (int c = 0; c < args.cols; ++c) sum += To<float>::Of(row[c]) - first;
      shift = first + sum * inverse;
    }
    float sum = 0;
    float m2 = 0;
#pragma unroll 5
    for (int c = 0; c < args.cols; ++c) {
      const float e = To<float>::Of(row[c]) - shift;
      sum += e;
      m2 += e * e;
    }
    float low = 0;
    if (center) {
      low = sum * inverse;
      m2 -= sum * low;
      m2 = m2 < 0 ? 0.0f : m2;  // keeps NaN
    }
    const float rstd = InverseRoot(m2 * inverse + args.epsilon);
    const int64_t stat = first_row + threadIdx.x;
    if (args.buffers.mean != nullptr) static_cast<float*>(args.buffers.mean)[stat] = shift + low;
    static_cast<float*>(args.buffers.rstd)[stat] = rstd;
    if (args.formula != Formula::kCenter) {
      shift = 0;
      low = 0;
    }
#pragma unroll 5
    for (int c = 0; c < args.cols; ++c) {
      row[c] = From<T>::Of(((To<float>::Of(row[c]) - shift) - low) * rstd * gamma[c] + beta[c]);
    }
  }
  __syncthreads();
  T* y = static_cast<T*>(args.buffers.y) + first_row * args.cols;
  for (int i = threadIdx.x; i < whole; i += kRows) reinterpret_cast<uint4*>(y)[i] = stage[i];
  for (int i = whole * kVector + threadIdx.x; i < count; i += kRows) y[i] = values[i];
}

}  // namespace

Status LaunchForwardRowsTiny(const ForwardPlan& plan, const ForwardBuffers& buffers, void* stream,
                             bool* launched) {
  *launched = false;
  const ForwardProblem& problem = plan.problem;
  const RowLayout& layout = problem.geometry.rows;
  // Columns by fours are read well as they are, and would meet in the same banks of shared memory.
  if (layout.cols % 4 == 0 || layout.cols > kTinyColumns || problem.x != problem.y ||
      problem.param != DType::kFloat || problem.in_double() || !RowParams::Of(layout).by_column ||
      !AlignedTo(buffers.x, 16) || !AlignedTo(buffers.y, 16)) {
    return Status();
  }
  Arguments args = {};
  args.formula = problem.formula;
  args.epsilon = static_cast<float>(problem.epsilon);
  args.rows = layout.rows;
  args.cols = static_cast<int>(layout.cols);
  args.buffers = buffers;
  const auto kernel = problem.x == DType::kFloat  ? TinyKernel<float>
                      : problem.x == DType::kHalf ? TinyKernel<__half>
                                                  : TinyKernel<__nv_bfloat16>;
  const int64_t blocks = CeilDiv(layout.rows, kRows);
  if (blocks >= int64_t{1} << 31) return Status();
  *launched = true;
  const int64_t shared = Align16(kRows * layout.cols * SizeOf(problem.x));
  if (shared > 40 * 1024) {
    NV_NORMS_RETURN_IF_ERROR(FromCuda(
        cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                             cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)),
        "shared memory of a normalization"));
  }
  return LaunchKernel("normalization of tiny rows", kernel, static_cast<unsigned>(blocks), kRows,
                      static_cast<size_t>(shared), 1, stream, args);
}

}  // namespace cuda
}  // namespace nv_norms
