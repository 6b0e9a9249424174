#ifndef NV_NORMS_KERNELS_CUDA_CODE_H_
#define NV_NORMS_KERNELS_CUDA_CODE_H_

#include <string>

namespace nv_norms {
namespace cuda {

// The capability (10 * major + minor) that the code was compiled for which this library runs on a
// device of that capability; 0 if it has none. It may be less than the device's: the driver
// compiles the newest code's PTX for newer devices, and what kernels do for these alone is not in
// there.
int CodeFor(int capability);

// "8.0, 9.0"
std::string CompiledFor();

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_CODE_H_
