// Adds up partial sums of parameter gradients, in an order that depends on their number alone.
#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/launch.cuh"

namespace nv_norms {
namespace cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMostRows = 32;  // of threads to a column: 8 columns are a sector of 32 bytes
// Columns from which on a thread has four neighbouring ones. What is left to do after the kernel
// before, microseconds, with one and four: bfloat16 1024 x 12288 6.0, 3.9; 10000 x 10000 7.9, 4.9;
// but 32768 x 2048 5.6, 5.9; 65536 x 768 3.2, 4.1; 65536 x 512 3.4, 4.6.
constexpr int64_t kLeastColumnsInVectors = 4096;

template <int VEC, typename A>
__device__ __forceinline__ void LoadPartials(const A* from, A (&to)[VEC]) {
  if constexpr (VEC == 1) {
    to[0] = *from;
  } else {
    const float4 at = *reinterpret_cast<const float4*>(from);
    to[0] = at.x;
    to[1] = at.y;
    to[2] = at.z;
    to[3] = at.w;
  }
}

// A thread has VEC neighbouring columns; dgamma and dbeta are a block's each.
template <typename A, int VEC>
__global__ void __launch_bounds__(kThreads)
    FinishKernel(const A* dgamma_partials, const A* dbeta_partials, int64_t partials, int64_t cols,
                 DType type, void* dgamma, void* dbeta) {
  constexpr int kBatch = VEC == 1 ? 8 : 4;  // loads of a thread under way
  __shared__ double sums[VEC][kThreads];    // [rows][columns]
  const A* from = blockIdx.y == 0 ? dgamma_partials : dbeta_partials;
  void* to = blockIdx.y == 0 ? dgamma : dbeta;
  const int columns = blockDim.x;
  const int rows = blockDim.y;
  const int64_t c = VEC * (static_cast<int64_t>(blockIdx.x) * columns + threadIdx.x);
  double sum[VEC] = {};
  WaitForKernelBefore();
  if (c < cols && to != nullptr) {
    for (int64_t start = threadIdx.y; start < partials; start += kBatch * rows) {
      A batch[kBatch][VEC] = {};
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int64_t row = start + i * rows;
        if (row < partials) LoadPartials(from + row * cols + c, batch[i]);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
#pragma unroll
        for (int v = 0; v < VEC; ++v) sum[v] += batch[i][v];
      }
    }
  }
  const int at = threadIdx.y * columns + threadIdx.x;
#pragma unroll
  for (int v = 0; v < VEC; ++v) sums[v][at] = sum[v];
  for (int half = rows / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.y < half) {
#pragma unroll
      for (int v = 0; v < VEC; ++v) sums[v][at] += sums[v][at + half * columns];
    }
  }
  if (threadIdx.y != 0 || c >= cols || to == nullptr) return;
#pragma unroll 1  // less code to fetch
  for (int v = 0; v < VEC; ++v) StoreOne<double>(type, to, c + v, sums[v][at]);
}

}  // namespace

Status LaunchFinish(const BackwardProblem& problem, int64_t cols, const BackwardBuffers& buffers,
                    const void* dgamma, const void* dbeta, int64_t partials, const Device& device,
                    void* stream) {
  const bool vectors = !problem.in_double() && cols >= kLeastColumnsInVectors && cols % 4 == 0 &&
                       AlignedTo(dgamma, 16) && AlignedTo(dbeta, 16);
  const int64_t across = vectors ? cols / 4 : cols;
  // Threads enough for every multiprocessor, if there are so many numbers.
  int rows = 1;
  while (rows < kMostRows && rows < partials &&
         2 * across * rows < int64_t{2048} * device.multiprocessors) {
    rows *= 2;
  }
  const int columns = kThreads / rows;
  const dim3 grid(static_cast<unsigned>(CeilDiv(across, columns)), 2);
  const dim3 block(columns, rows);
  const auto launch = [&](auto* kernel, auto* tag) {
    using A = std::remove_pointer_t<decltype(tag)>;
    LaunchAttributes attributes;
    attributes.early = device.capability >= 90;
    return LaunchKernel("sums of parameter gradients", kernel, grid, block, 0, attributes, stream,
                        static_cast<const A*>(dgamma), static_cast<const A*>(dbeta), partials, cols,
                        problem.dparam, buffers.dgamma, buffers.dbeta);
  };
  if (problem.in_double()) return launch(FinishKernel<double, 1>, static_cast<double*>(nullptr));
  return vectors ? launch(FinishKernel<float, 4>, static_cast<float*>(nullptr))
                 : launch(FinishKernel<float, 1>, static_cast<float*>(nullptr));
}

}  // namespace cuda
}  // namespace nv_norms
