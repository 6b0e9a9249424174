// What the kernels of the columns' gradients hand to the one that adds up dgamma and dbeta.
#ifndef NV_NORMS_KERNELS_CUDA_COLUMNS_SUMS_CUH_
#define NV_NORMS_KERNELS_CUDA_COLUMNS_SUMS_CUH_

#include "kernels/cuda/norms.h"
#include "kernels/cuda/xhat_line.cuh"

namespace nv_norms {
namespace cuda {

// Of a channel of a slab, e = x - mean: of dy and dy * e, times gamma where it varies along s.
struct ChannelSums {
  double e;
  double dy;
  double dy_e;
};

// dgamma and dbeta where a parameter belongs to a channel, of all samples or of one, from sums [n,
// slabs, channels] and the line of every statistic.
Status LaunchColumnParams(const ColumnLayout& layout, DType type, int64_t slabs,
                          const ChannelSums* sums, const XhatLine<float>* lines,
                          const BackwardBuffers& buffers, void* stream);

// dgamma and dbeta where a parameter belongs to a row of s, from the lines of every statistic;
// reads x and dy again. The workspace has so many bytes.
int64_t RowParamsBytes(const BackwardPlan& plan);
Status LaunchRowParams(const BackwardPlan& plan, const BackwardBuffers& buffers, const void* lines,
                       void* workspace, void* stream);

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_COLUMNS_SUMS_CUH_
