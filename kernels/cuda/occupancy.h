// How many blocks of a kernel run at once. CUDA is asked once, as a plan is made for every launch.
#ifndef NV_NORMS_KERNELS_CUDA_OCCUPANCY_H_
#define NV_NORMS_KERNELS_CUDA_OCCUPANCY_H_

#include <cstdint>

namespace nv_norms {
namespace cuda {

// Of blocks with so many bytes of dynamic shared memory, on a multiprocessor of the current device;
// 0 where none fits.
int ResidentBlocks(const void* kernel, int threads, int64_t shared);

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_OCCUPANCY_H_
