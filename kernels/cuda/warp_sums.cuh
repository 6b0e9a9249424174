// The sums for dgamma and dbeta of a block whose warps have each gone through rows of their own.
#ifndef NV_NORMS_KERNELS_CUDA_WARP_SUMS_CUH_
#define NV_NORMS_KERNELS_CUDA_WARP_SUMS_CUH_

#include <cstdint>

namespace nv_norms {
namespace cuda {

// sums: [warps][2][cols] in shared memory, written by all of the block's warps, which have not
// synchronized since. Adds them up in the order of the warps, to row blockIdx.x of dgamma and dbeta
// [blocks, cols] where not null.
template <int THREADS>
__device__ __forceinline__ void AddWarpSums(const float* sums, int cols, float* dgamma,
                                            float* dbeta) {
  __syncthreads();
  for (int c = static_cast<int>(threadIdx.x); c < cols; c += THREADS) {
    float dgamma_sum = 0;
    float dbeta_sum = 0;
    for (int w = 0; w < THREADS / 32; ++w) {
      dgamma_sum += sums[2 * w * cols + c];
      dbeta_sum += sums[(2 * w + 1) * cols + c];
    }
    const int64_t to = static_cast<int64_t>(blockIdx.x) * cols + c;
    if (dgamma != nullptr) dgamma[to] = dgamma_sum;
    if (dbeta != nullptr) dbeta[to] = dbeta_sum;
  }
}

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_WARP_SUMS_CUH_
