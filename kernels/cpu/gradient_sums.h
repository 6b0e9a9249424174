// What the input gradient needs of a statistic, from sums over its elements.
#ifndef NV_NORMS_KERNELS_CPU_GRADIENT_SUMS_H_
#define NV_NORMS_KERNELS_CPU_GRADIENT_SUMS_H_

#include <cmath>
#include <cstdint>

#include "kernels/cpu/inline.h"
#include "kernels/problem.h"

namespace nv_norms {
namespace cpu {

// e = x - mean as stored, w = dy * gamma. The sum of e corrects the mean, which one float does not
// hold closely enough where it is large.
struct GradientSums {
  double e = 0;
  double w = 0;
  double we = 0;
  void Add(const GradientSums& other) {
    e += other.e;
    w += other.w;
    we += other.we;
  }
};

// dx = rstd * (w - w_mean - ((x - high) - low) * slope)
// xhat = ((x - high) - low) * rstd + xhat_offset
template <typename A>
struct GradientTerms {
  A high = 0;
  A low = 0;
  A rstd = 0;
  A w_mean = 0;
  A slope = 0;
  A xhat_offset = 0;
};

// sum(dy * xhat) of elements with the same terms, from sum(dy) and sum(dy * (x - high)).
template <typename A>
NV_NORMS_INLINE double SumOfXhat(Formula formula, A rstd, A low, A xhat_offset, double dy,
                                 double dy_e) {
  if (formula == Formula::kScaleOnly) return rstd * (dy_e - low * dy) + xhat_offset * dy;
  // `low` times an infinite dy, taken off, would make NaN of the sum.
  return rstd * (dy_e - low * (std::isinf(dy) ? 0.0 : dy));
}

// `stat` is float or double.
NV_NORMS_INLINE double StatisticAt(DType stat, const void* from, int64_t index) {
  return stat == DType::kDouble ? static_cast<const double*>(from)[index]
                                : static_cast<double>(static_cast<const float*>(from)[index]);
}

// The statistic's stored mean; 0 for Formula::kRms.
NV_NORMS_INLINE double StoredMean(Formula formula, DType stat, const void* mean, int64_t index) {
  return formula == Formula::kRms ? 0.0 : StatisticAt(stat, mean, index);
}

// count: elements of a statistic.
template <typename A>
NV_NORMS_INLINE GradientTerms<A> TermsOf(Formula formula, double count, DType stat,
                                         const void* mean_data, const void* rstd_data,
                                         int64_t index, const GradientSums& sums) {
  const double mean = StoredMean(formula, stat, mean_data, index);
  const double rstd = StatisticAt(stat, rstd_data, index);
  const double low = formula == Formula::kRms ? 0.0 : sums.e / count;
  // sum(w * xhat) / rstd
  double w_xhat = sums.we;
  if (formula == Formula::kCenter) w_xhat -= low * sums.w;
  if (formula == Formula::kScaleOnly) w_xhat += mean * sums.w;
  GradientTerms<A> out;
  out.high = static_cast<A>(mean);
  out.low = static_cast<A>(low);
  out.rstd = static_cast<A>(rstd);
  out.slope = static_cast<A>(rstd * rstd * (w_xhat / count));
  if (formula == Formula::kCenter) out.w_mean = static_cast<A>(sums.w / count);
  if (formula == Formula::kScaleOnly) out.xhat_offset = static_cast<A>((mean + low) * rstd);
  return out;
}

}  // namespace cpu
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CPU_GRADIENT_SUMS_H_
