// dgamma and dbeta of a layer norm over a middle axis, whose parameters belong to rows: a thread
// keeps two sums for each of its rows in shared memory, over all units that its block goes through.
#ifndef NV_NORMS_KERNELS_CUDA_COLUMNS_ROW_SUMS_CUH_
#define NV_NORMS_KERNELS_CUDA_COLUMNS_ROW_SUMS_CUH_

#include "kernels/cuda/columns_resident.cuh"

namespace nv_norms {
namespace cuda {

struct RowSums {
  float2* sums;  // [row_items, threads]: of dy * xhat and dy

  __device__ __forceinline__ void Clear(const StripShape& shape) const {
    for (int i = 0; i < shape.row_items; ++i) {
      sums[i * kResidentThreads + threadIdx.x] = make_float2(0, 0);
    }
  }

  // Of a vector of the thread's row `item`: xhat = e * scale + offset.
  template <int VEC>
  __device__ __forceinline__ void Add(int item, const float (&e)[VEC], const float (&dy)[VEC],
                                      const float (&scale)[VEC], const float (&offset)[VEC]) const {
    float2& to = sums[item * kResidentThreads + threadIdx.x];
    float2 sum = to;
#pragma unroll
    for (int v = 0; v < VEC; ++v) {
      sum.x += dy[v] * (e[v] * scale[v] + offset[v]);
      sum.y += dy[v];
    }
    to = sum;
  }

  // After all units: the sums of the block's rows over its columns, to [groups of blocks, rows].
  __device__ __forceinline__ void Store(const StripShape& shape, const StripPlace& place,
                                        float* dgamma, float* dbeta) const {
    __syncthreads();
#pragma unroll 1
    for (int r = threadIdx.x; r < place.length; r += kResidentThreads) {
      const float2* from =
          sums + r / shape.row_step * kResidentThreads + r % shape.row_step * shape.vectors;
      float2 sum = make_float2(0, 0);
#pragma unroll 1
      for (int i = 0; i < shape.vectors; ++i) {
        sum.x += from[i].x;
        sum.y += from[i].y;
      }
      const int64_t to = static_cast<int64_t>(place.group) * shape.rows + place.begin + r;
      if (dgamma != nullptr) dgamma[to] = sum.x;
      if (dbeta != nullptr) dbeta[to] = sum.y;
    }
  }
};

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_COLUMNS_ROW_SUMS_CUH_
