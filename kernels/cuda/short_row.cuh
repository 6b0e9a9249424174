// The statistics of a row that some lanes of a warp have in registers.
#ifndef NV_NORMS_KERNELS_CUDA_SHORT_ROW_CUH_
#define NV_NORMS_KERNELS_CUDA_SHORT_ROW_CUH_

#include "kernels/cuda/rows.cuh"

namespace nv_norms {
namespace cuda {

// The first sum is taken of x - pivot, so that equal numbers have just this mean. Sums of up to a
// thousand equal numbers of 16 bits are exact without.
template <typename T>
constexpr bool kShortPivot = sizeof(T) == 4;

struct ShortRow {
  float shift;  // what was subtracted from the row's numbers
  float low;    // the mean of what is left
  float mean;
  float rstd;

  // To be added to what is left, times rstd.
  __device__ __forceinline__ float Offset(Formula formula) const {
    return formula == Formula::kScaleOnly ? shift * rstd : -low * rstd;
  }
};

// Two passes: the second one about the first one's mean, which is subtracted from the values.
// within(i): whether item i is one of the row's. The row's lanes begin with lane `first`. All lanes
// of the warp call it.
template <bool kPivot, int ITEMS, int VEC, typename Within>
__device__ __forceinline__ ShortRow CenterShortRow(float (&values)[ITEMS][VEC],
                                                   const Within& within, int lanes, int first,
                                                   bool center, int cols, float epsilon) {
  const float inverse = 1.0f / static_cast<float>(cols);
  ShortRow out;
  out.shift = 0;
  if (center) {
    const float pivot = kPivot ? __shfl_sync(0xffffffffu, values[0][0], first) : 0.0f;
    float parts[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      if (within(i)) {
#pragma unroll
        for (int v = 0; v < VEC; ++v) {
          parts[(i * VEC + v) % 4] += kPivot ? values[i][v] - pivot : values[i][v];
        }
      }
    }
    float sum[1] = {(parts[0] + parts[1]) + (parts[2] + parts[3])};
    WarpSum(sum, lanes);
    out.shift = kPivot ? pivot + sum[0] * inverse : sum[0] / static_cast<float>(cols);
  }
  float parts[4] = {0, 0, 0, 0};
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    if (within(i)) {
#pragma unroll
      for (int v = 0; v < VEC; ++v) {
        values[i][v] -= out.shift;
        parts[v % 2] += values[i][v];
        parts[2 + v % 2] += values[i][v] * values[i][v];
      }
    }
  }
  float sums[2] = {parts[0] + parts[1], parts[2] + parts[3]};
  WarpSum(sums, lanes);
  out.low = 0;
  float m2 = sums[1];
  if (center) {
    out.low = sums[0] * inverse;
    m2 -= sums[0] * out.low;
    m2 = m2 < 0 ? 0.0f : m2;  // keeps NaN
  }
  out.mean = out.shift + out.low;
  out.rstd = ShortInverseRoot(m2 * inverse + epsilon);
  return out;
}

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_SHORT_ROW_CUH_
