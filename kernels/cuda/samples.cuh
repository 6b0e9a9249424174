// What the kernels of rows share whose parameters are their sample's: which threads have a row.
#ifndef NV_NORMS_KERNELS_CUDA_SAMPLES_CUH_
#define NV_NORMS_KERNELS_CUDA_SAMPLES_CUH_

#include "kernels/cuda/backward_rows_warp.cuh"
#include "kernels/cuda/forward_rows_warp.cuh"

namespace nv_norms {
namespace cuda {

// A kernel, the threads of its blocks, and how many rows these have at once; null where rows are no
// whole vectors, too long, or of other types.
struct SampleRows {
  void (*kernel)(WarpRowsArguments) = nullptr;
  int threads = 32;
  int rows = 1;
  int64_t shared = 0;    // bytes
  bool goes_on = false;  // to further rows of the sample
};
struct SampleGradient {
  void (*kernel)(WarpGradientArguments) = nullptr;
  int threads = 32;
  int rows = 1;
  int64_t shared = 0;  // bytes
};

// x in 16 bits, and in float32.
SampleRows ChooseSampleRows16(const ForwardProblem& problem);
SampleRows ChooseSampleRows32(const ForwardProblem& problem);
SampleGradient ChooseSampleGradient16(const BackwardProblem& problem);
SampleGradient ChooseSampleGradient32(const BackwardProblem& problem);

// Threads, whole warps of them, for a row of which each has so many numbers.
inline int SampleThreads(int64_t cols, int numbers) {
  return static_cast<int>(CeilDiv(CeilDiv(cols, numbers), 32) * 32);
}

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_SAMPLES_CUH_
