#ifndef NV_NORMS_KERNELS_CUDA_LAUNCH_CUH_
#define NV_NORMS_KERNELS_CUDA_LAUNCH_CUH_

#include <cuda_runtime.h>

#include <algorithm>
#include <string>

#include "kernels/cuda/norms.h"
#include "kernels/cuda/occupancy.h"

namespace nv_norms {
namespace cuda {

inline Status FromCuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return Status();
  return Status::Internal(std::string(what) + ": " + cudaGetErrorString(error));
}

// A kernel that is launched `early` starts before the one before it has ended, and waits for it
// itself, so that what a start costs is not added to what the one before takes. That one says when
// it is time; both do nothing on older devices.
__device__ __forceinline__ void LetNextKernelStart() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ __forceinline__ void WaitForKernelBefore() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// In a graph that is captured, as XLA does, the kernels' edges are ordinary ones: they cost less
// than launches do (2.7 us for two kernels, 2.4 with early ones; 7.3 and 6.6 in a stream), and
// every version of CUDA and XLA knows them.
inline bool IsCapturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(stream, &status) == cudaSuccess) {
    return status != cudaStreamCaptureStatusNone;
  }
  cudaGetLastError();  // not an error of the launch to come
  return true;
}

struct LaunchAttributes {
  int cluster = 1;           // blocks to a cluster
  bool early = false;        // see LetNextKernelStart
  bool cooperative = false;  // all blocks are resident at once
};

template <typename... P, typename... Q>
cudaError_t TryToLaunch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared,
                        const LaunchAttributes& wanted, void* stream, const Q&... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = static_cast<cudaStream_t>(stream);
  cudaLaunchAttribute attributes[3];
  config.attrs = attributes;
  if (wanted.cluster > 1) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = wanted.cluster;
    attribute.val.clusterDim.y = 1;
    attribute.val.clusterDim.z = 1;
  }
  if (wanted.cooperative) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeCooperative;
    attribute.val.cooperative = 1;
  }
  if (wanted.early && !IsCapturing(config.stream)) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
  }
  return cudaLaunchKernelEx(&config, kernel, P(arguments)...);
}

template <typename... P, typename... Q>
Status LaunchKernel(const char* name, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared,
                    const LaunchAttributes& wanted, void* stream, const Q&... arguments) {
  return FromCuda(TryToLaunch(kernel, grid, block, shared, wanted, stream, arguments...), name);
}

template <typename... P, typename... Q>
Status LaunchKernel(const char* name, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared,
                    int cluster, void* stream, const Q&... arguments) {
  LaunchAttributes wanted;
  wanted.cluster = cluster;
  return LaunchKernel(name, kernel, grid, block, shared, wanted, stream, arguments...);
}

// *launched: false where the device has no room now for all blocks of a cooperative kernel at once.
template <typename... P, typename... Q>
Status LaunchIfRoom(const char* name, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared,
                    const LaunchAttributes& wanted, void* stream, bool* launched,
                    const Q&... arguments) {
  const cudaError_t error = TryToLaunch(kernel, grid, block, shared, wanted, stream, arguments...);
  *launched = error != cudaErrorCooperativeLaunchTooLarge;
  if (*launched) return FromCuda(error, name);
  cudaGetLastError();
  return Status();
}

// Lets blocks of this kernel have so many bytes of dynamic shared memory, if the device has them.
template <typename... P>
Status AllowShared(void (*kernel)(P...), int64_t bytes, const char* name) {
  if (bytes <= 40 * 1024) return Status();
  return FromCuda(AllowShared(reinterpret_cast<const void*>(kernel)), name);
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

inline int PowerOfTwo(int64_t at_least) {
  int power = 1;
  while (power < at_least) power *= 2;
  return power;
}

#define NV_NORMS_RETURN_IF_ERROR(expression) \
  do {                                       \
    const Status status_ = (expression);     \
    if (!status_.ok()) return status_;       \
  } while (false)

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_LAUNCH_CUH_
