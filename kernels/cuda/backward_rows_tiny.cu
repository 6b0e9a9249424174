// x is [rows, cols] with so few columns, and so odd a number of them, that threads side by side
// would read scraps. A block copies runs of whole rows of x and dy to shared memory in 16-byte
// pieces; a thread has a row for the sums and for dx, and a column of some rows for dgamma and
// dbeta.
#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/staged.cuh"

namespace nv_norms {
namespace cuda {
namespace {

constexpr int kRows = 128;  // of a run, a thread each: a run's size is a multiple of 16 bytes

struct Arguments {
  Formula formula;
  int64_t rows;
  int cols;
  BackwardBuffers buffers;
  float* dgamma;  // partial sums [blocks, cols], where wanted
  float* dbeta;
};

template <typename T>
__global__ void __launch_bounds__(kRows) TinyKernel(const __grid_constant__ Arguments args) {
  extern __shared__ uint4 stage[];
  __shared__ float gamma[kTinyColumns];
  __shared__ float means[kRows];
  __shared__ float shifts[kRows];  // xhat = ((x - mean) - shift) * rstd
  __shared__ float rstds[kRows];
  __shared__ float sums[2][kRows];
  constexpr int kVector = kVectorOf<T>;
  const int cols = args.cols;
  const int thread = threadIdx.x;
  T* xs = reinterpret_cast<T*>(stage);
  T* dys = xs + kRows * cols;
  if (thread < cols) {
    const auto* g = static_cast<const float*>(args.buffers.gamma);
    gamma[thread] = g == nullptr ? 1.0f : g[thread];
  }
  const int chunks = kRows / cols;  // of rows, to the threads of a column
  const int column = thread % cols;
  const int chunk = thread / cols;
  float dgamma = 0;
  float dbeta = 0;
  const int64_t runs = (args.rows + kRows - 1) / kRows;
  for (int64_t run = blockIdx.x; run < runs; run += gridDim.x) {
    const int64_t first_row = run * kRows;
    const int rows = static_cast<int>(min(static_cast<int64_t>(kRows), args.rows - first_row));
    const int count = rows * cols;
    const int whole = count / kVector;
    const T* x = static_cast<const T*>(args.buffers.x) + first_row * cols;
    const T* dy = static_cast<const T*>(args.buffers.dy) + first_row * cols;
    for (int i = thread; i < whole; i += kRows) {
      CopyAsync(reinterpret_cast<uint4*>(xs) + i, reinterpret_cast<const uint4*>(x) + i);
      CopyAsync(reinterpret_cast<uint4*>(dys) + i, reinterpret_cast<const uint4*>(dy) + i);
    }
    CommitCopies();
    for (int i = whole * kVector + thread; i < count; i += kRows) {
      xs[i] = x[i];
      dys[i] = dy[i];
    }
    float mean = 0;
    float rstd = 0;
    if (thread < rows) {
      if (args.buffers.mean != nullptr) {
        mean = static_cast<const float*>(args.buffers.mean)[first_row + thread];
      }
      rstd = static_cast<const float*>(args.buffers.rstd)[first_row + thread];
    }
    WaitForCopies<0>();
    __syncthreads();
    float e_sum = 0;
    float w_sum = 0;
    float we_sum = 0;
    if (thread < rows) {
#pragma unroll 5
      for (int c = 0; c < cols; ++c) {
        const float e = To<float>::Of(xs[thread * cols + c]) - mean;
        const float w = To<float>::Of(dys[thread * cols + c]) * gamma[c];
        e_sum += e;
        w_sum += w;
        we_sum += w * e;
      }
    }
    const GradientTerms<float> t = TermsOf<float, float>(args.formula, mean, rstd, e_sum, w_sum,
                                                         we_sum, static_cast<float>(cols));
    means[thread] = mean;
    shifts[thread] = args.formula == Formula::kScaleOnly ? -mean : t.low;
    rstds[thread] = rstd;
    __syncthreads();
    if (chunk < chunks) {
      for (int r = chunk; r < rows; r += chunks) {
        const float d = To<float>::Of(dys[r * cols + column]);
        const float e = To<float>::Of(xs[r * cols + column]) - means[r];
        dgamma += d * ((e - shifts[r]) * rstds[r]);
        dbeta += d;
      }
    }
    __syncthreads();
    if (args.buffers.dx != nullptr) {
      if (thread < rows) {
#pragma unroll 5
        for (int c = 0; c < cols; ++c) {
          const float e = To<float>::Of(xs[thread * cols + c]) - mean;
          const float w = To<float>::Of(dys[thread * cols + c]) * gamma[c];
          xs[thread * cols + c] = From<T>::Of(t.rstd * (w - t.w_mean - (e - t.low) * t.slope));
        }
      }
      __syncthreads();
      T* dx = static_cast<T*>(args.buffers.dx) + first_row * cols;
      for (int i = thread; i < whole; i += kRows) {
        reinterpret_cast<uint4*>(dx)[i] = stage[i];
      }
      for (int i = whole * kVector + thread; i < count; i += kRows) dx[i] = xs[i];
      __syncthreads();  // before the next run is copied there
    }
  }
  sums[0][thread] = dgamma;
  sums[1][thread] = dbeta;
  __syncthreads();
  if (thread >= cols) return;
  dgamma = 0;
  dbeta = 0;
  for (int i = 0; i < chunks; ++i) {
    dgamma += sums[0][i * cols + thread];
    dbeta += sums[1][i * cols + thread];
  }
  const int64_t to = static_cast<int64_t>(blockIdx.x) * cols + thread;
  if (args.dgamma != nullptr) args.dgamma[to] = dgamma;
  if (args.dbeta != nullptr) args.dbeta[to] = dbeta;
}

}  // namespace

bool SuitsTinyRows(const BackwardProblem& problem) {
  const RowLayout& layout = problem.geometry.rows;
  // Columns by fours are read well as they are, and would meet in the same banks of shared memory.
  return layout.cols % 4 != 0 && layout.cols <= kTinyColumns && problem.dy == problem.x &&
         problem.dx == problem.x && problem.param == DType::kFloat && !problem.in_double() &&
         RowParams::Of(layout).by_column;
}

Status LaunchBackwardRowsTiny(const BackwardPlan& plan, const BackwardBuffers& buffers,
                              float* dgamma, float* dbeta, void* stream, bool* launched) {
  const BackwardProblem& problem = plan.problem;
  const RowLayout& layout = problem.geometry.rows;
  *launched = SuitsTinyRows(problem) && AlignedTo(buffers.x, 16) && AlignedTo(buffers.dy, 16) &&
              AlignedTo(buffers.dx, 16);
  if (!*launched) return Status();
  Arguments args = {};
  args.formula = problem.formula;
  args.rows = layout.rows;
  args.cols = static_cast<int>(layout.cols);
  args.buffers = buffers;
  args.dgamma = dgamma;
  args.dbeta = dbeta;
  const auto kernel = problem.x == DType::kFloat  ? TinyKernel<float>
                      : problem.x == DType::kHalf ? TinyKernel<__half>
                                                  : TinyKernel<__nv_bfloat16>;
  const int64_t shared = Align16(2 * kRows * layout.cols * SizeOf(problem.x));
  if (shared > 40 * 1024) {
    NV_NORMS_RETURN_IF_ERROR(FromCuda(
        cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                             cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)),
        "shared memory of a normalization gradient"));
  }
  return LaunchKernel("normalization gradient of tiny rows", kernel,
                      static_cast<unsigned>(plan.partials), kRows, static_cast<size_t>(shared), 1,
                      stream, args);
}

}  // namespace cuda
}  // namespace nv_norms
