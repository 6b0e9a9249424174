// Blocks that go through rows by themselves, but add up their sums of columns as a cluster, through
// each other's shared memory: fewer partial sums are written and left to add up.
#ifndef NV_NORMS_KERNELS_CUDA_ALLIES_CUH_
#define NV_NORMS_KERNELS_CUDA_ALLIES_CUH_

#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/ring_shape.h"

namespace nv_norms {
namespace cuda {

// Four numbers that lie together in another block's shared memory, or one.
template <int VEC>
__device__ __forceinline__ void LoadFrom(const float* from, float (&to)[VEC]) {
  using C = Chunk<VEC * sizeof(float)>;
  uint32_t words[VEC];
  C::Split(*reinterpret_cast<const typename C::Type*>(from), words);
#pragma unroll
  for (int v = 0; v < VEC; ++v) to[v] = __uint_as_float(words[v]);
}

template <int VEC>
__device__ __forceinline__ void AddAlliedVectors(float* sums, int cols, float* dgamma,
                                                 float* dbeta) {
#if __CUDA_ARCH__ >= 900
  const int threads = static_cast<int>(blockDim.x);
  const int first = BlockRankInCluster() * threads + threadIdx.x;
  for (int i = first * VEC; i < 2 * cols; i += kAllies * threads * VEC) {
    float parts[kAllies][VEC];  // all asked for before the first is used
#pragma unroll
    for (int ally = 0; ally < kAllies; ++ally) {
      LoadFrom(InBlockOfCluster(sums + i, ally), parts[ally]);
    }
#pragma unroll
    for (int ally = 1; ally < kAllies; ++ally) {
#pragma unroll
      for (int v = 0; v < VEC; ++v) parts[0][v] += parts[ally][v];
    }
    float* const to = i < cols ? dgamma : dbeta;
    if (to != nullptr) StoreAs(to + (i < cols ? i : i - cols), parts[0]);
  }
#endif
}

// sums: [2][cols] for dgamma and dbeta, in the shared memory of each of kAllies blocks, a cluster.
// Each adds up a part of the columns, in the order of the blocks, to dgamma and dbeta [cols] where
// not null. By all threads, which have not synchronized since they wrote.
__device__ __forceinline__ void AddAllies(float* sums, int cols, float* dgamma, float* dbeta) {
  __syncwarp();  // a cluster's barrier wants whole warps
  SyncCluster();
  if (cols % 4 == 0) {
    AddAlliedVectors<4>(sums, cols, dgamma, dbeta);
  } else {
    AddAlliedVectors<1>(sums, cols, dgamma, dbeta);
  }
  __syncwarp();
  SyncCluster();  // others read this block's sums
}

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_ALLIES_CUH_
