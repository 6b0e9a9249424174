// What is kept of a statistic between kernels.
#ifndef NV_NORMS_KERNELS_CUDA_TERMS_CUH_
#define NV_NORMS_KERNELS_CUDA_TERMS_CUH_

#include "kernels/cuda/numbers.cuh"

namespace nv_norms {
namespace cuda {

// xhat = ((x - high) - low) * rstd. The mean is in two parts, because one float does not hold it
// closely enough where it is large.
template <typename A>
struct Scaling {
  A high;
  A low;
  A rstd;
};

// dx = rstd * (w - w_mean - ((x - high) - low) * slope)
// xhat = ((x - xhat_high) - xhat_low) * rstd
template <typename A>
struct GradientTerms {
  A high;
  A low;
  A rstd;
  A w_mean;
  A slope;
  A xhat_high;
  A xhat_low;
};

// From the sums of e = x - stored mean, w and w * e over a statistic's elements.
template <typename A, typename S>
__device__ __forceinline__ GradientTerms<A> TermsOf(Formula formula, A mean, A rstd, S e, S w, S we,
                                                    S count) {
  GradientTerms<A> out;
  const S low = formula == Formula::kRms ? S(0) : e / count;
  S w_xhat = we;  // sum(w * xhat) / rstd
  if (formula == Formula::kCenter) w_xhat -= low * w;
  if (formula == Formula::kScaleOnly) w_xhat += mean * w;
  out.high = mean;
  out.low = static_cast<A>(low);
  out.rstd = rstd;
  out.slope = static_cast<A>(rstd * rstd * (w_xhat / count));
  const bool center = formula == Formula::kCenter;
  out.w_mean = center ? static_cast<A>(w / count) : A(0);
  out.xhat_high = center ? out.high : A(0);
  out.xhat_low = center ? out.low : A(0);
  return out;
}

// dx = w * rstd + (offset - e * slope), xhat = e * rstd + xhat_offset, with e = x - stored mean.
struct GradientLine {
  float offset;
  float slope;
  float xhat_offset;
};

// From the same sums; inverse = 1 / count.
__device__ __forceinline__ GradientLine LineOf(Formula formula, float mean, float rstd, float e,
                                               float w, float we, float inverse) {
  const float low = formula == Formula::kRms ? 0.0f : e * inverse;
  if (formula == Formula::kCenter) we -= low * w;
  if (formula == Formula::kScaleOnly) we += mean * w;
  const float slope = rstd * rstd * (we * inverse);
  GradientLine out;
  out.slope = rstd * slope;
  const float w_mean = formula == Formula::kCenter ? w * inverse : 0.0f;
  out.offset = rstd * (low * slope - w_mean);
  out.xhat_offset = rstd * (formula == Formula::kScaleOnly ? mean : -low);
  return out;
}

template <typename A>
__device__ __forceinline__ A StoredMean(const BackwardBuffers& buffers, DType type, int64_t stat) {
  return buffers.mean == nullptr ? A(0) : LoadOne<A>(type, buffers.mean, stat);
}

// Mean and sum of squares about it, of `count` numbers.
struct Moments {
  double count;
  double mean;
  double m2;
};

// Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample
// variances".
__device__ __forceinline__ Moments Merge(const Moments& a, const Moments& b) {
  if (a.count == 0) return b;
  if (b.count == 0) return a;
  Moments out;
  out.count = a.count + b.count;
  const double step = b.mean - a.mean;
  out.mean = a.mean + step * (b.count / out.count);
  out.m2 = a.m2 + b.m2 + step * step * (a.count * b.count / out.count);
  return out;
}

// Merges the moments of a warp's lanes, the same on all lanes.
__device__ __forceinline__ Moments WarpMerge(Moments moments) {
  for (int step = 1; step < 32; step *= 2) {
    Moments other;
    other.count = __shfl_xor_sync(0xffffffffu, moments.count, step);
    other.mean = __shfl_xor_sync(0xffffffffu, moments.mean, step);
    other.m2 = __shfl_xor_sync(0xffffffffu, moments.m2, step);
    // In the order of the lanes, so that both get the same bits.
    moments = threadIdx.x & step ? Merge(other, moments) : Merge(moments, other);
  }
  return moments;
}

// For Formula::kRms m2 is the sum of squares and mean is 0.
template <typename A>
__device__ __forceinline__ Scaling<A> ScalingOf(const ForwardProblem& problem,
                                                const ForwardBuffers& buffers, int64_t stat,
                                                const Moments& moments, bool store) {
  const double rstd = 1.0 / sqrt(moments.m2 / moments.count + problem.epsilon);
  Scaling<A> out;
  out.high = 0;
  out.low = 0;
  if (problem.formula == Formula::kCenter) {
    out.high = static_cast<A>(moments.mean);
    out.low = static_cast<A>(moments.mean - out.high);
  }
  out.rstd = static_cast<A>(rstd);
  if (store) {
    const DType type = problem.stat();
    if (buffers.mean != nullptr) StoreOne<double>(type, buffers.mean, stat, moments.mean);
    if (buffers.rstd != nullptr) StoreOne<double>(type, buffers.rstd, stat, rstd);
  }
  return out;
}

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_TERMS_CUH_
