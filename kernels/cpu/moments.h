// Mean and spread of a run of numbers, and of runs put together.
#ifndef NV_NORMS_KERNELS_CPU_MOMENTS_H_
#define NV_NORMS_KERNELS_CPU_MOMENTS_H_

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/cpu/inline.h"
#include "kernels/problem.h"

namespace nv_norms {
namespace cpu {

// For Formula::kRms the mean stays 0 and m2 is the sum of squares.
struct Moments {
  double count = 0;
  double mean = 0;
  double m2 = 0;  // sum((x - mean)^2)
};

// Moments of `count` numbers about `shift`, which is close to their mean, given their sums about
// it. Here and below a product with 1 / count, which waits for nothing, and not a quotient, which
// would wait for the sums: rows of 256 float32 in the L2 cache 239 and 215 picoseconds a number.
inline Moments FromSums(double count, double shift, double sum, double squares) {
  Moments out;
  out.count = count;
  const double low = sum * (1.0 / count);
  out.mean = shift + low;
  out.m2 = std::max(squares - sum * low, 0.0);  // keeps NaN
  return out;
}

// Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample
// variances".
inline void Merge(const Moments& other, Moments* into) {
  if (into->count == 0) {
    *into = other;
    return;
  }
  const double count = into->count + other.count;
  const double step = other.mean - into->mean;
  into->m2 += other.m2 + step * step * (into->count * other.count / count);
  into->mean += step * (other.count / count);
  into->count = count;
}

// What normalizing needs of a statistic: xhat = ((x - high) - low) * rstd. The mean is in two
// parts, because one float does not hold it closely enough where it is large.
template <typename A>
struct Scaling {
  A high = 0;
  A low = 0;
  A rstd = 0;
};

// Stores mean and rstd of statistic `index`, unless they are null; `stat` is float or double.
template <typename A>
NV_NORMS_INLINE Scaling<A> FinishStatistic(const Moments& moments, Formula formula, double epsilon,
                                           DType stat, int64_t index, void* mean, void* rstd) {
  const double r = 1.0 / std::sqrt(moments.m2 * (1.0 / moments.count) + epsilon);
  Scaling<A> out;
  if (formula == Formula::kCenter) {
    out.high = static_cast<A>(moments.mean);
    out.low = static_cast<A>(moments.mean - out.high);
  }
  out.rstd = static_cast<A>(r);
  if (stat == DType::kDouble) {
    if (mean != nullptr) static_cast<double*>(mean)[index] = moments.mean;
    if (rstd != nullptr) static_cast<double*>(rstd)[index] = r;
  } else {
    if (mean != nullptr) static_cast<float*>(mean)[index] = static_cast<float>(moments.mean);
    if (rstd != nullptr) static_cast<float*>(rstd)[index] = static_cast<float>(r);
  }
  return out;
}

}  // namespace cpu
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CPU_MOMENTS_H_
