// Whether moments of 16-bit numbers, which come from one pass about a pivot, are to be taken again.
#ifndef NV_NORMS_KERNELS_CUDA_FAR_CUH_
#define NV_NORMS_KERNELS_CUDA_FAR_CUH_

namespace nv_norms {
namespace cuda {

// sums: of the differences from the pivot and of their squares; low: the differences' mean; m2: the
// squares about it. A mean three deviations away from the pivot costs three bits of the variance;
// and squares about the pivot may be too large where those about the mean are not.
__device__ __forceinline__ bool IsFar(const float (&sums)[2], float low, float m2) {
  constexpr float kLargest = 3.4028234663852886e38f;
  return !(sums[0] * low <= 9 * m2 && sums[1] <= kLargest);
}

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_FAR_CUH_
