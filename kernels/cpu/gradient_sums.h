// What the input gradient needs of a statistic, from sums over its elements.
#ifndef NV_NORMS_KERNELS_CPU_GRADIENT_SUMS_H_
#define NV_NORMS_KERNELS_CPU_GRADIENT_SUMS_H_

#include <cstdint>

#include "kernels/cpu/convert.h"
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
// xhat = ((x - xhat_high) - xhat_low) * rstd
template <typename A>
struct GradientTerms {
  A high = 0;
  A low = 0;
  A rstd = 0;
  A w_mean = 0;
  A slope = 0;
  A xhat_high = 0;
  A xhat_low = 0;
};

// The statistic's stored mean; 0 for Formula::kRms.
inline double StoredMean(const BackwardProblem& problem, const BackwardBuffers& buffers,
                         int64_t stat) {
  double mean = 0;
  if (problem.formula != Formula::kRms) Load(problem.stat(), buffers.mean, stat, 1, &mean);
  return mean;
}

template <typename A>
GradientTerms<A> TermsOf(const BackwardProblem& problem, const BackwardBuffers& buffers,
                         int64_t stat, const GradientSums& sums) {
  const double count = static_cast<double>(problem.geometry.reduced);
  const double mean = StoredMean(problem, buffers, stat);
  double rstd;
  Load(problem.stat(), buffers.rstd, stat, 1, &rstd);
  const double low = problem.formula == Formula::kRms ? 0.0 : sums.e / count;
  // sum(w * xhat) / rstd
  double w_xhat = sums.we;
  if (problem.formula == Formula::kCenter) w_xhat -= low * sums.w;
  if (problem.formula == Formula::kScaleOnly) w_xhat += mean * sums.w;
  GradientTerms<A> out;
  out.high = static_cast<A>(mean);
  out.low = static_cast<A>(low);
  out.rstd = static_cast<A>(rstd);
  out.slope = static_cast<A>(rstd * rstd * (w_xhat / count));
  if (problem.formula == Formula::kCenter) {
    out.w_mean = static_cast<A>(sums.w / count);
    out.xhat_high = out.high;
    out.xhat_low = out.low;
  }
  return out;
}

}  // namespace cpu
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CPU_GRADIENT_SUMS_H_
