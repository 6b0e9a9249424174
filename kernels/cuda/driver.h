#ifndef NV_NORMS_KERNELS_CUDA_DRIVER_H_
#define NV_NORMS_KERNELS_CUDA_DRIVER_H_

extern "C" {

// Both: 1 where the CUDA kernels of this build can run, else 0. *message (if message is not null)
// says what was found, or what is missing; it is malloc'd.

// Asks for the driver's version only, so that the process may still fork, or hide its devices.
int NvNormsCudaDriver(char** message);

// Asks for the devices, too, once for all; this starts CUDA.
int NvNormsCudaDevices(char** message);
}

#endif  // NV_NORMS_KERNELS_CUDA_DRIVER_H_
