// The statistics of a row that some lanes of a warp have in registers.
#ifndef NV_NORMS_KERNELS_CUDA_SHORT_ROW_CUH_
#define NV_NORMS_KERNELS_CUDA_SHORT_ROW_CUH_

#include "kernels/cuda/far.cuh"
#include "kernels/cuda/rows.cuh"

namespace nv_norms {
namespace cuda {

// Rows of 16 bits have the sum and that of squares in one pass about the mean of their first
// numbers, and again where that is far from their mean.
template <typename T>
constexpr bool kInOnePass = sizeof(T) == 2;

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

// Sums are of x - pivot, so that equal numbers have just this mean; of float32 (kOnce: not) squares
// are about the mean that the first pass found. What is subtracted is so from the values, too.
// within(i): whether item i is one of the row's; reload(i, item) loads it again. The row's lanes
// begin with lane `first`. All lanes of the warp call it.
template <bool kOnce, int ITEMS, int VEC, typename Within, typename Reload>
__device__ __forceinline__ ShortRow CenterShortRow(float (&values)[ITEMS][VEC],
                                                   const Within& within, const Reload& reload,
                                                   int lanes, int first, bool center, int cols,
                                                   float epsilon) {
  constexpr int kSample = kOnce ? (VEC < 4 ? VEC : 4) : 1;
  const float inverse = 1.0f / static_cast<float>(cols);
  ShortRow out;
  out.shift = 0;
  if (center) {
    float sample = 0;
#pragma unroll
    for (int v = 0; v < kSample; ++v) sample += values[0][v];
    out.shift = __shfl_sync(0xffffffffu, sample * (1.0f / kSample), first);
  }
  if (!kOnce && center) {
    float parts[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      if (within(i)) {
#pragma unroll
        for (int v = 0; v < VEC; ++v) parts[(i * VEC + v) % 4] += values[i][v] - out.shift;
      }
    }
    float sum[1] = {(parts[0] + parts[1]) + (parts[2] + parts[3])};
    WarpSum(sum, lanes);
    out.shift += sum[0] * inverse;
  }
  const auto sum_up = [&](float by, float (&sums)[2]) {
    float parts[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      if (within(i)) {
#pragma unroll
        for (int v = 0; v < VEC; ++v) {
          values[i][v] -= by;
          parts[v % 2] += values[i][v];
          parts[2 + v % 2] += values[i][v] * values[i][v];
        }
      }
    }
    sums[0] = parts[0] + parts[1];
    sums[1] = parts[2] + parts[3];
    WarpSum(sums, lanes);
  };
  float sums[2];
  sum_up(out.shift, sums);
  out.low = 0;
  float m2 = sums[1];
  if (center) {
    const auto correct = [&] {
      out.low = sums[0] * inverse;
      m2 = sums[1] - sums[0] * out.low;
      m2 = m2 < 0 ? 0.0f : m2;  // keeps NaN
    };
    correct();
    const bool far = kOnce && IsFar(sums, out.low, m2);
    if (kOnce && __any_sync(0xffffffffu, far)) {
      if (far) {
        out.shift += out.low;
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
          if (within(i)) reload(i, values[i]);
        }
      }
      // All lanes of the warp add up together. The others' rows keep what they have: even of the
      // same sums the compiler may make other bits here.
      float again[2];
      sum_up(far ? out.shift : 0.0f, again);
      if (far) {
        sums[0] = again[0];
        sums[1] = again[1];
        correct();
      }
    }
  }
  out.mean = out.shift + out.low;
  out.rstd = ShortInverseRoot(m2 * inverse + epsilon);
  return out;
}

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_SHORT_ROW_CUH_
