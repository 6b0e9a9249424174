#include "kernels/cpu/vector_ops.h"

#include <algorithm>

#include "kernels/cpu/targets.h"

namespace nv_norms {
namespace cpu {
namespace {

constexpr int kLanes = 32;        // two AVX-512 or four AVX registers of floats
constexpr int64_t kBlock = 4096;  // a lane adds at most 128 numbers before its sum goes to double

template <typename A>
NV_NORMS_INLINE double SumLanes(const A* lanes) {
  double sum = 0;
  for (int lane = 0; lane < kLanes; ++lane) sum += lanes[lane];
  return sum;
}

// Calls add(lane, index) for each index below count, consecutive indices in consecutive lanes.
template <typename F>
NV_NORMS_INLINE void ForLanes(int64_t begin, int64_t end, const F& add) {
  int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) add(lane, i + lane);
  }
  for (int lane = 0; i + lane < end; ++lane) add(lane, i + lane);
}

template <typename A>
NV_NORMS_INLINE double SumShiftedOf(const A* x, int64_t count, A shift) {
  double sum = 0;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    A lanes[kLanes] = {};
    ForLanes(begin, std::min(count, begin + kBlock),
             [&](int lane, int64_t i)
                 __attribute__((always_inline)) { lanes[lane] += x[i] - shift; });
    sum += SumLanes(lanes);
  }
  return sum;
}

template <typename A>
NV_NORMS_INLINE void AddMomentsOf(const A* x, int64_t count, A shift, double* sum,
                                  double* squares) {
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    A first[kLanes] = {};
    A second[kLanes] = {};
    ForLanes(begin, std::min(count, begin + kBlock),
             [&](int lane, int64_t i) __attribute__((always_inline)) {
               const A e = x[i] - shift;
               first[lane] += e;
               second[lane] += e * e;
             });
    *sum += SumLanes(first);
    *squares += SumLanes(second);
  }
}

template <typename A>
NV_NORMS_INLINE void NormalizeOf(const A* x, int64_t count, A high, A low, A rstd, const A* gamma,
                                 const A* beta, A* y) {
  // x may be y: each element is read before it is written.
  if (gamma != nullptr && beta != nullptr) {
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) y[i] = ((x[i] - high) - low) * rstd * gamma[i] + beta[i];
  } else if (gamma != nullptr) {
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) y[i] = ((x[i] - high) - low) * rstd * gamma[i];
  } else if (beta != nullptr) {
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) y[i] = ((x[i] - high) - low) * rstd + beta[i];
  } else {
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) y[i] = ((x[i] - high) - low) * rstd;
  }
}

template <typename A>
NV_NORMS_INLINE void NormalizeScalarOf(const A* x, int64_t count, A high, A low, A rstd, A gamma,
                                       A beta, A* y) {
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) y[i] = ((x[i] - high) - low) * rstd * gamma + beta;
}

template <typename A>
NV_NORMS_INLINE void AddGradientSumsOf(const A* x, const A* dy, const A* gamma, int64_t count,
                                       A shift, double* sums) {
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t end = std::min(count, begin + kBlock);
    A e_sum[kLanes] = {};
    A w_sum[kLanes] = {};
    A we_sum[kLanes] = {};
    if (gamma != nullptr) {
      ForLanes(begin, end, [&](int lane, int64_t i) __attribute__((always_inline)) {
        const A e = x[i] - shift;
        const A w = dy[i] * gamma[i];
        e_sum[lane] += e;
        w_sum[lane] += w;
        we_sum[lane] += w * e;
      });
    } else {
      ForLanes(begin, end, [&](int lane, int64_t i) __attribute__((always_inline)) {
        const A e = x[i] - shift;
        e_sum[lane] += e;
        w_sum[lane] += dy[i];
        we_sum[lane] += dy[i] * e;
      });
    }
    sums[0] += SumLanes(e_sum);
    sums[1] += SumLanes(w_sum);
    sums[2] += SumLanes(we_sum);
  }
}

template <typename A>
NV_NORMS_INLINE void InputGradientOf(const A* x, const A* dy, const A* gamma, A gamma_scalar,
                                     int64_t count, A high, A low, A rstd, A w_mean, A slope,
                                     A* dx) {
  if (gamma != nullptr) {
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) {
      dx[i] = rstd * (dy[i] * gamma[i] - w_mean - ((x[i] - high) - low) * slope);
    }
  } else {
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) {
      dx[i] = rstd * (dy[i] * gamma_scalar - w_mean - ((x[i] - high) - low) * slope);
    }
  }
}

template <typename A>
NV_NORMS_INLINE void AddParamGradientsOf(const A* x, const A* dy, int64_t count, A high, A low,
                                         A rstd, double* dgamma, double* dbeta) {
  if (dgamma != nullptr) {
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) dgamma[i] += dy[i] * (((x[i] - high) - low) * rstd);
  }
  if (dbeta != nullptr) {
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) dbeta[i] += dy[i];
  }
}

}  // namespace

#define NV_NORMS_VECTOR_OPS(A)                                                                     \
  NV_NORMS_CLONES double SumShifted(const A* x, int64_t count, A shift) {                          \
    return SumShiftedOf(x, count, shift);                                                          \
  }                                                                                                \
  NV_NORMS_CLONES void AddMoments(const A* x, int64_t count, A shift, double* sum,                 \
                                  double* squares) {                                               \
    AddMomentsOf(x, count, shift, sum, squares);                                                   \
  }                                                                                                \
  NV_NORMS_CLONES void Normalize(const A* x, int64_t count, A high, A low, A rstd, const A* gamma, \
                                 const A* beta, A* y) {                                            \
    NormalizeOf(x, count, high, low, rstd, gamma, beta, y);                                        \
  }                                                                                                \
  NV_NORMS_CLONES void NormalizeScalar(const A* x, int64_t count, A high, A low, A rstd, A gamma,  \
                                       A beta, A* y) {                                             \
    NormalizeScalarOf(x, count, high, low, rstd, gamma, beta, y);                                  \
  }                                                                                                \
  NV_NORMS_CLONES void AddGradientSums(const A* x, const A* dy, const A* gamma, int64_t count,     \
                                       A shift, double* sums) {                                    \
    AddGradientSumsOf(x, dy, gamma, count, shift, sums);                                           \
  }                                                                                                \
  NV_NORMS_CLONES void InputGradient(const A* x, const A* dy, const A* gamma, A gamma_scalar,      \
                                     int64_t count, A high, A low, A rstd, A w_mean, A slope,      \
                                     A* dx) {                                                      \
    InputGradientOf(x, dy, gamma, gamma_scalar, count, high, low, rstd, w_mean, slope, dx);        \
  }                                                                                                \
  NV_NORMS_CLONES void AddParamGradients(const A* x, const A* dy, int64_t count, A high, A low,    \
                                         A rstd, double* dgamma, double* dbeta) {                  \
    AddParamGradientsOf(x, dy, count, high, low, rstd, dgamma, dbeta);                             \
  }

NV_NORMS_VECTOR_OPS(float)
NV_NORMS_VECTOR_OPS(double)
#undef NV_NORMS_VECTOR_OPS

}  // namespace cpu
}  // namespace nv_norms
