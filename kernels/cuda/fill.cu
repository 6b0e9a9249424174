#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/launch.cuh"

namespace nv_norms {
namespace cuda {
namespace {

constexpr int kThreads = 256;

__global__ void FillKernel(DType type, void* to, int64_t count, double value) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < count;
       i += step) {
    StoreOne(type, to, i, value);
  }
}

}  // namespace

Status LaunchFill(DType type, void* to, int64_t count, double value, void* stream) {
  if (to == nullptr || count == 0) return Status();
  const int64_t blocks = std::min<int64_t>(1024, CeilDiv(count, kThreads));
  return LaunchKernel("fill", FillKernel, static_cast<unsigned>(blocks), kThreads, 0, 1, stream,
                      type, to, count, value);
}

}  // namespace cuda
}  // namespace nv_norms
