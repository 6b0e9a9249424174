// What the kernels of the segments' gradients hand to the one that adds up dgamma and dbeta.
#ifndef NV_NORMS_KERNELS_CUDA_SEGMENTS_SUMS_CUH_
#define NV_NORMS_KERNELS_CUDA_SEGMENTS_SUMS_CUH_

#include "kernels/cuda/segments.h"

namespace nv_norms {
namespace cuda {

// Of a part of a segment: of dy and of dy * e, e = x - stored mean.
template <typename A>
struct SegmentSums {
  A dy;
  A dy_e;
};

// Of a row: xhat = e * rstd + xhat_offset.
template <typename A>
struct RowScale {
  A rstd;
  A xhat_offset;
};

// Bytes for `pieces` sums of every segment, and for the scales.
template <typename A>
int64_t SumsBytes(const SegmentLayout& layout, int64_t pieces) {
  return layout.rows * layout.segments * pieces * static_cast<int64_t>(sizeof(SegmentSums<A>));
}
template <typename A>
int64_t ScalesBytes(const SegmentLayout& layout) {
  return layout.rows * static_cast<int64_t>(sizeof(RowScale<A>));
}

// dgamma and dbeta from sums [rows, segments, pieces] and the scales of all rows, in an order that
// depends on the shape alone.
template <typename A>
Status LaunchSegmentParams(const SegmentLayout& layout, int64_t pieces, DType type,
                           const SegmentSums<A>* sums, const RowScale<A>* scales,
                           const BackwardBuffers& buffers, void* stream);

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_SEGMENTS_SUMS_CUH_
