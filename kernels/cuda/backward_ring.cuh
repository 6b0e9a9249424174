// What the gradient's kernels of long rows share: a block's, the grid's and the cluster's.
#ifndef NV_NORMS_KERNELS_CUDA_BACKWARD_RING_CUH_
#define NV_NORMS_KERNELS_CUDA_BACKWARD_RING_CUH_

#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/ring.cuh"

namespace nv_norms {
namespace cuda {

// Of a row, to a thread.
constexpr int kBackwardNumbers = 16;
constexpr int kBackwardClusterNumbers = 24;  // at most, where it copies 16 bytes at once

struct BackwardRingArguments {
  DType param;
  Formula formula;
  int64_t rows;
  int cols;
  RingShape shape;
  BackwardBuffers buffers;
  float* dgamma;  // partial sums [teams, cols], where wanted
  float* dbeta;
  Post* mail;  // [rows][blocks], for teams of the grid
};

using BackwardRingPointer = void (*)(BackwardRingArguments);

// The kernel of teams that are clusters.
BackwardRingPointer BackwardClusterKernel(DType x, const RingShape& shape);

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_BACKWARD_RING_CUH_
