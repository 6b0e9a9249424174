// What the kernels of the segments' gradients hand to the one that adds up dgamma and dbeta.
#ifndef NV_NORMS_KERNELS_CUDA_SEGMENTS_SUMS_CUH_
#define NV_NORMS_KERNELS_CUDA_SEGMENTS_SUMS_CUH_

#include "kernels/cuda/segments.h"
#include "kernels/cuda/xhat_line.cuh"

namespace nv_norms {
namespace cuda {

// Of a part of a segment: of dy and of dy * e, e = x - stored mean; of dy and of dy * xhat where no
// lines are handed on.
template <typename A>
struct SegmentSums {
  A dy;
  A dy_e;
};

// Bytes for `pieces` sums of every segment.
template <typename A>
int64_t SumsBytes(const SegmentLayout& layout, int64_t pieces) {
  return layout.rows * layout.segments * pieces * static_cast<int64_t>(sizeof(SegmentSums<A>));
}

// dgamma and dbeta from sums [rows, segments, pieces] and the lines of all rows, or null, in an
// order that depends on the shape alone.
template <typename A>
Status LaunchSegmentParams(const SegmentLayout& layout, int64_t pieces, DType type,
                           const SegmentSums<A>* sums, const XhatLine<A>* lines,
                           const BackwardBuffers& buffers, const Device& device, void* stream);

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_SEGMENTS_SUMS_CUH_
