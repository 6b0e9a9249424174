// Columns that are a statistic each (instance norm): a vector of them at once, as in moments.h and
// gradient_sums.h. Of samples of few rows they take as long as all else does.
#ifndef NV_NORMS_KERNELS_CPU_COLUMN_STATISTICS_INL_H_
#define NV_NORMS_KERNELS_CPU_COLUMN_STATISTICS_INL_H_

#include "kernels/cpu/columns-inl.h"
#include "kernels/cpu/short_lanes-inl.h"
#include "kernels/cpu/simd-inl.h"

namespace nv_norms {
namespace cpu {
namespace NV_NORMS_TARGET {
namespace {

// Doubles for a vector of A from `from` on, `part` of them (0: all), and zeros.
template <typename A>
NV_NORMS_INLINE Wide<A> LoadWide(const double* from, int64_t part) {
  constexpr int64_t lanes = kLanes<double>;
  Wide<A> out{};
#pragma GCC unroll 2
  for (int w = 0; w < Lanes<A>::kWide; ++w) {
    const int64_t left = part - w * lanes;
    if (part == 0 || left >= lanes) {
      out.part[w] = Load(from + w * lanes);
    } else if (left > 0) {
      out.part[w] = LoadPart(from + w * lanes, left, 0.0);
    }
  }
  return out;
}

template <typename A>
NV_NORMS_INLINE void StoreAt(Vec<A> v, int64_t part, A* to) {
  if (part == 0) {
    Store(v, to);
  } else {
    StorePart(v, part, to);
  }
}

template <typename A>
void FinishColumns(const ColumnStatistics<A>& task) {
  const bool center = task.formula == Formula::kCenter;
  ForColumns<A>(task.columns, [&](int64_t c, int64_t part) __attribute__((always_inline)) {
    Wide<A> mean{};
    if (task.formula != Formula::kRms) {
      for (int64_t p = 0; p < task.count; ++p) {
        const Wide<A> of = LoadWide<A>(task.mean + task.parts[p].at + c, part);
#pragma GCC unroll 2
        for (int w = 0; w < Lanes<A>::kWide; ++w) mean.part[w] += of.part[w] * task.parts[p].rows;
      }
#pragma GCC unroll 2
      for (int w = 0; w < Lanes<A>::kWide; ++w) mean.part[w] = mean.part[w] / task.elements;
    }
    Wide<A> m2{};
    for (int64_t p = 0; p < task.count; ++p) {
      const Wide<A> of = LoadWide<A>(task.mean + task.parts[p].at + c, part);
      const Wide<A> squares = LoadWide<A>(task.m2 + task.parts[p].at + c, part);
#pragma GCC unroll 2
      for (int w = 0; w < Lanes<A>::kWide; ++w) {
        const Vec<double> step = of.part[w] - mean.part[w];
        m2.part[w] += squares.part[w] + step * step * task.parts[p].rows;
      }
    }
    Wide<A> root;
    Wide<A> rest;
    const Vec<A> high = FromWide(mean);
    const Wide<A> rounded = ToWide(high);
#pragma GCC unroll 2
    for (int w = 0; w < Lanes<A>::kWide; ++w) {
      root.part[w] = ReciprocalRoot<A>(m2.part[w] / task.elements + task.epsilon);
      rest.part[w] = mean.part[w] - rounded.part[w];
    }
    const Vec<A> rstd = FromWide(root);
    if (task.stored_mean != nullptr) StoreAt(high, part, task.stored_mean + c);
    if (task.stored_rstd != nullptr) StoreAt(rstd, part, task.stored_rstd + c);
    StoreAt(center ? high : Vec<A>{}, part, task.high + c);
    StoreAt(center ? FromWide(rest) : Vec<A>{}, part, task.low + c);
    const Vec<A> gamma = task.gamma == nullptr ? Splat(A(1)) : LoadAt(task.gamma + c, part);
    StoreAt(rstd * gamma, part, task.slope + c);
  });
}

template <typename A>
void FinishColumnGradients(const ColumnGradientStatistics<A>& task) {
  const bool center = task.formula == Formula::kCenter;
  const bool scale_only = task.formula == Formula::kScaleOnly;
  ForColumns<A>(task.columns, [&](int64_t c, int64_t part) __attribute__((always_inline)) {
    const Wide<A> e = LoadWide<A>(task.e + c, part);
    const Wide<A> dy = LoadWide<A>(task.dy + c, part);
    const Wide<A> dy_e = LoadWide<A>(task.dy_e + c, part);
    const Vec<A> high = LoadAt(task.mean + c, part);
    const Vec<A> rstd = LoadAt(task.stored_rstd + c, part);
    const Wide<A> gamma =
        ToWide(task.gamma == nullptr ? Splat(A(1)) : LoadAt(task.gamma + c, part));
    const Wide<A> mean = ToWide(high);
    const Wide<A> root = ToWide(rstd);
    Wide<A> low{};
    Wide<A> w_mean{};
    Wide<A> slope;
    Wide<A> xhat_offset{};
#pragma GCC unroll 2
    for (int i = 0; i < Lanes<A>::kWide; ++i) {
      const Vec<double> w = dy.part[i] * gamma.part[i];
      Vec<double> w_xhat = dy_e.part[i] * gamma.part[i];  // sum(w * xhat) / rstd
      if (task.formula != Formula::kRms) low.part[i] = e.part[i] / task.elements;
      if (center) {
        w_xhat -= low.part[i] * w;
        w_mean.part[i] = w / task.elements;
      }
      if (scale_only) {
        w_xhat += mean.part[i] * w;
        xhat_offset.part[i] = (mean.part[i] + low.part[i]) * root.part[i];
      }
      slope.part[i] = root.part[i] * root.part[i] * (w_xhat / task.elements);
    }
    StoreAt(high, part, task.high + c);
    StoreAt(FromWide(low), part, task.low + c);
    StoreAt(rstd, part, task.rstd + c);
    StoreAt(FromWide(w_mean), part, task.w_mean + c);
    StoreAt(FromWide(slope), part, task.slope + c);
    StoreAt(FromWide(xhat_offset), part, task.xhat_offset + c);
  });
}

}  // namespace
}  // namespace NV_NORMS_TARGET
}  // namespace cpu
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CPU_COLUMN_STATISTICS_INL_H_
