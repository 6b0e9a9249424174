// Mean and spread of a run of numbers, and of runs put together.
#ifndef NV_NORMS_KERNELS_CPU_MOMENTS_H_
#define NV_NORMS_KERNELS_CPU_MOMENTS_H_

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/cpu/convert.h"
#include "kernels/cpu/vector_ops.h"
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
// it.
inline Moments FromSums(double count, double shift, double sum, double squares) {
  Moments out;
  out.count = count;
  const double low = sum / count;
  out.mean = shift + low;
  out.m2 = std::max(squares - sum * low, 0.0);  // keeps NaN
  return out;
}

// Two passes over x. The first one is shifted by the first number, so that it loses nothing where
// the mean is large, and the second one by the mean, so that it loses nothing where that number is
// far off.
template <typename A>
Moments MomentsOf(Formula formula, const A* x, int64_t count) {
  double sum = 0;
  double squares = 0;
  A shift = 0;
  if (formula != Formula::kRms) {
    shift = static_cast<A>(x[0] + SumShifted(x, count, x[0]) / static_cast<double>(count));
  }
  AddMoments(x, count, shift, &sum, &squares);
  if (formula == Formula::kRms) {
    Moments out;
    out.count = static_cast<double>(count);
    out.m2 = squares;
    return out;
  }
  return FromSums(static_cast<double>(count), shift, sum, squares);
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

template <typename A>
Scaling<A> ScalingOf(const Moments& moments, Formula formula, double epsilon, double* mean,
                     double* rstd) {
  *mean = moments.mean;
  *rstd = 1.0 / std::sqrt(moments.m2 / moments.count + epsilon);
  Scaling<A> out;
  if (formula == Formula::kCenter) {
    out.high = static_cast<A>(moments.mean);
    out.low = static_cast<A>(moments.mean - out.high);
  }
  out.rstd = static_cast<A>(*rstd);
  return out;
}

// The same, and stores mean and rstd.
template <typename A>
Scaling<A> FinishStatistic(const ForwardProblem& problem, const ForwardBuffers& buffers,
                           const Moments& moments, int64_t index) {
  double mean;
  double rstd;
  const Scaling<A> out = ScalingOf<A>(moments, problem.formula, problem.epsilon, &mean, &rstd);
  StoreOne(problem.stat(), mean, buffers.mean, index);
  StoreOne(problem.stat(), rstd, buffers.rstd, index);
  return out;
}

}  // namespace cpu
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CPU_MOMENTS_H_
