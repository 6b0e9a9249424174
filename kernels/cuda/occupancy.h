// How many blocks of a kernel run at once. CUDA is asked once, as a plan is made for every launch.
#ifndef NV_NORMS_KERNELS_CUDA_OCCUPANCY_H_
#define NV_NORMS_KERNELS_CUDA_OCCUPANCY_H_

#include <cuda_runtime.h>

#include <cstdint>

namespace nv_norms {
namespace cuda {

// Lets blocks of this kernel have all the dynamic shared memory that the current device has for
// one. The limit is never lowered: another thread may be about to launch the kernel with more than
// this one wants.
cudaError_t AllowShared(const void* kernel);

// Of blocks with so many bytes of dynamic shared memory, on a multiprocessor of the current device;
// 0 where none fits.
int ResidentBlocks(const void* kernel, int threads, int64_t shared);

// Lets a kernel have clusters of so many blocks; never takes it back, as AllowShared does not.
cudaError_t AllowCluster(const void* kernel, int blocks);

// Clusters of so many blocks that the current device holds at once; 0 where it cannot tell.
int ResidentClusters(const void* kernel, int cluster, int threads, int64_t shared);

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_OCCUPANCY_H_
