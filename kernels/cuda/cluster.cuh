// A cluster of blocks, of Hopper and later. CUDA's cooperative_groups.h has the same, and takes
// three seconds in each file that includes it.
#ifndef NV_NORMS_KERNELS_CUDA_CLUSTER_CUH_
#define NV_NORMS_KERNELS_CUDA_CLUSTER_CUH_

#include <cuda_runtime.h>

namespace nv_norms {
namespace cuda {

__device__ __forceinline__ int BlockRankInCluster() {
#if __CUDA_ARCH__ >= 900
  return static_cast<int>(__clusterRelativeBlockRank());
#else
  return 0;
#endif
}

// Where a thing in this block's shared memory is in that of the cluster's block `rank`.
template <typename T>
__device__ __forceinline__ T* InBlockOfCluster(T* shared, int rank) {
#if __CUDA_ARCH__ >= 900
  return static_cast<T*>(__cluster_map_shared_rank(shared, rank));
#else
  return shared;
#endif
}

// A block's shared memory may be written from another one only once it runs: every block arrives at
// its start, and waits before its first ClusterSum. By whole warps.
__device__ __forceinline__ void ArriveAtCluster(int blocks) {
#if __CUDA_ARCH__ >= 900
  if (blocks > 1) __cluster_barrier_arrive();
#endif
}

__device__ __forceinline__ void WaitForCluster(int blocks) {
#if __CUDA_ARCH__ >= 900
  if (blocks > 1) __cluster_barrier_wait();
#endif
}

__device__ __forceinline__ void SyncCluster() {
#if __CUDA_ARCH__ >= 900
  __cluster_barrier_arrive();
  __cluster_barrier_wait();
#endif
}

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_CLUSTER_CUH_
