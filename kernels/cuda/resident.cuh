// What the resident kernels need beside the walk: stores, and their launch.
#ifndef NV_NORMS_KERNELS_CUDA_RESIDENT_CUH_
#define NV_NORMS_KERNELS_CUDA_RESIDENT_CUH_

#include <type_traits>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/resident.h"

namespace nv_norms {
namespace cuda {

// 16 bytes' worth of X, as any type; SAME: as X.
template <typename X, bool SAME, int VEC>
__device__ __forceinline__ void StoreStrip(DType type, void* to, int64_t index,
                                           const float (&values)[VEC], bool keep) {
  if constexpr (SAME) {
    uint32_t words[4];
#pragma unroll
    for (int v = 0; v < VEC; ++v) Word<X>::Put(From<X>::Of(values[v]), words, v);
    uint4* at = reinterpret_cast<uint4*>(static_cast<X*>(to) + index);
    if (keep) {
      *at = Chunk<16>::Join(words);
    } else {
      __stcs(at, Chunk<16>::Join(words));
    }
  } else {
    StoreVector<float, VEC>(type, to, index, values);
  }
}

// The kernel for x's type, which is not double: pick(null pointer of the type, same) is it, where
// `same` is a constant that says whether the output has this type, too.
template <typename Pick>
auto KernelOfTypes(DType x, bool same, const Pick& pick) {
  const auto of = [&](auto* tag) {
    return same ? pick(tag, std::true_type()) : pick(tag, std::false_type());
  };
  if (x == DType::kFloat) return of(static_cast<float*>(nullptr));
  if (x == DType::kHalf) return of(static_cast<__half*>(nullptr));
  return of(static_cast<__nv_bfloat16*>(nullptr));
}

// together: blocks wait for each other. *launched: false where the device has no room now for so
// many at once.
template <typename... P, typename... Q>
Status LaunchResident(const char* name, void (*kernel)(P...), int blocks, bool together,
                      int64_t shared, void* stream, bool* launched, const Q&... arguments) {
  *launched = false;
  NV_NORMS_RETURN_IF_ERROR(
      FromCuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(shared)),
               name));
  cudaLaunchConfig_t config = {};
  config.gridDim = static_cast<unsigned>(blocks);
  config.blockDim = kResidentThreads;
  config.dynamicSmemBytes = static_cast<size_t>(shared);
  config.stream = static_cast<cudaStream_t>(stream);
  cudaLaunchAttribute attribute[1];
  config.attrs = attribute;
  config.numAttrs = together ? 1 : 0;
  attribute[0].id = cudaLaunchAttributeCooperative;
  attribute[0].val.cooperative = 1;
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, P(arguments)...);
  if (error == cudaErrorCooperativeLaunchTooLarge) {
    cudaGetLastError();
    return Status();
  }
  *launched = true;
  return FromCuda(error, name);
}

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_RESIDENT_CUH_
