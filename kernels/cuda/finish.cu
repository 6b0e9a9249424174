// Adds up partial sums of parameter gradients, in an order that depends on their number alone.
#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/launch.cuh"

namespace nv_norms {
namespace cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMostRows = 32;  // of threads to a column: 8 columns are a sector of 32 bytes
constexpr int kBatch = 8;      // numbers of a thread under way

template <typename A>
__global__ void __launch_bounds__(kThreads)
    FinishKernel(const A* dgamma_partials, const A* dbeta_partials, int64_t partials, int64_t cols,
                 DType type, void* dgamma, void* dbeta) {
  __shared__ double sums[kThreads];  // [rows][columns]
  const A* from = blockIdx.y == 0 ? dgamma_partials : dbeta_partials;
  void* to = blockIdx.y == 0 ? dgamma : dbeta;
  const int columns = blockDim.x;
  const int rows = blockDim.y;
  const int64_t c = static_cast<int64_t>(blockIdx.x) * columns + threadIdx.x;
  double sum = 0;
  WaitForKernelBefore();
  if (c < cols && to != nullptr) {
    for (int64_t start = threadIdx.y; start < partials; start += kBatch * rows) {
      A batch[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int64_t row = start + i * rows;
        batch[i] = row < partials ? from[row * cols + c] : A(0);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) sum += batch[i];
    }
  }
  const int at = threadIdx.y * columns + threadIdx.x;
  sums[at] = sum;
  for (int half = rows / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.y < half) sums[at] += sums[at + half * columns];
  }
  if (threadIdx.y == 0 && c < cols && to != nullptr) StoreOne<double>(type, to, c, sums[at]);
}

}  // namespace

Status LaunchFinish(const BackwardProblem& problem, int64_t cols, const BackwardBuffers& buffers,
                    const void* dgamma, const void* dbeta, int64_t partials, const Device& device,
                    void* stream) {
  // Threads enough for every multiprocessor, if there are so many numbers.
  int rows = 1;
  while (rows < kMostRows && rows < partials &&
         2 * cols * rows < int64_t{2048} * device.multiprocessors) {
    rows *= 2;
  }
  const int columns = kThreads / rows;
  const dim3 grid(static_cast<unsigned>(CeilDiv(cols, columns)), 2);
  const dim3 block(columns, rows);
  const auto launch = [&](auto* kernel, auto* tag) {
    using A = std::remove_pointer_t<decltype(tag)>;
    LaunchAttributes attributes;
    attributes.early = device.capability >= 90;
    return LaunchKernel("sums of parameter gradients", kernel, grid, block, 0, attributes, stream,
                        static_cast<const A*>(dgamma), static_cast<const A*>(dbeta), partials, cols,
                        problem.dparam, buffers.dgamma, buffers.dbeta);
  };
  return problem.in_double() ? launch(FinishKernel<double>, static_cast<double*>(nullptr))
                             : launch(FinishKernel<float>, static_cast<float*>(nullptr));
}

}  // namespace cuda
}  // namespace nv_norms
