#ifndef NV_NORMS_KERNELS_CUDA_LAUNCH_CUH_
#define NV_NORMS_KERNELS_CUDA_LAUNCH_CUH_

#include <cuda_runtime.h>

#include <algorithm>
#include <string>

#include "kernels/cuda/norms.h"

namespace nv_norms {
namespace cuda {

inline Status FromCuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return Status();
  return Status::Internal(std::string(what) + ": " + cudaGetErrorString(error));
}

// Launches `kernel` with `cluster` blocks to a cluster.
template <typename... P, typename... Q>
Status LaunchKernel(const char* name, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared,
                    int cluster, void* stream, const Q&... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = static_cast<cudaStream_t>(stream);
  cudaLaunchAttribute attribute[1];
  if (cluster > 1) {
    attribute[0].id = cudaLaunchAttributeClusterDimension;
    attribute[0].val.clusterDim.x = cluster;
    attribute[0].val.clusterDim.y = 1;
    attribute[0].val.clusterDim.z = 1;
    config.attrs = attribute;
    config.numAttrs = 1;
  }
  return FromCuda(cudaLaunchKernelEx(&config, kernel, P(arguments)...), name);
}

inline bool AlignedTo(const void* pointer, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % static_cast<uintptr_t>(bytes) == 0;
}

// Whether a vector of `vector` numbers of this type may be read or written there at once.
inline bool VectorAligned(const void* pointer, DType type, int vector) {
  return AlignedTo(pointer, std::min<int64_t>(16, vector * SizeOf(type)));
}

inline int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t Align16(int64_t bytes) { return CeilDiv(bytes, 16) * 16; }

#define NV_NORMS_RETURN_IF_ERROR(expression) \
  do {                                       \
    const Status status_ = (expression);     \
    if (!status_.ok()) return status_;       \
  } while (false)

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_LAUNCH_CUH_
