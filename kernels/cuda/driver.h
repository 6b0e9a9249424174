#ifndef NV_NORMS_KERNELS_CUDA_DRIVER_H_
#define NV_NORMS_KERNELS_CUDA_DRIVER_H_

extern "C" {

// 1 where the CUDA kernels of this build can run on this machine, else 0. *message (if message is
// not null) says what was found, or what is missing; it is malloc'd.
int NvNormsCudaDriver(char** message);
}

#endif  // NV_NORMS_KERNELS_CUDA_DRIVER_H_
