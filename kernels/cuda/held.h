// Rows whose parameters are their own (instance norm of NC...) or those of runs of columns (group
// norm of NC...), held in the registers of a block that ends with its row: blocks start in turn and
// go through memory side by side, and while one waits for its sums the others of its multiprocessor
// read and write. Rows that are no whole vectors, or runs that end within them, which no other
// kernels take well, have a cluster of blocks where they are too long for one. Rows whose
// parameters belong to columns gain nothing: each block would load all.
#ifndef NV_NORMS_KERNELS_CUDA_HELD_H_
#define NV_NORMS_KERNELS_CUDA_HELD_H_

#include "kernels/cuda/norms.h"

namespace nv_norms {
namespace cuda {

// *launched: whether types, alignment and sizes allowed it, and it was measured to pay.
Status LaunchForwardHeld(const ForwardPlan& plan, const ForwardBuffers& buffers, void* stream,
                         bool* launched);
void PlanBackwardHeld(BackwardPlan* plan);
Status LaunchBackwardHeld(const BackwardPlan& plan, const BackwardBuffers& buffers, void* workspace,
                          void* stream, bool* launched);

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_HELD_H_
