// What a kernel is asked to do, apart from where the data lie.
#ifndef NV_NORMS_KERNELS_PROBLEM_H_
#define NV_NORMS_KERNELS_PROBLEM_H_

#include <cstdint>

#include "kernels/geometry.h"

#ifdef __CUDACC__
#define NV_NORMS_HOST_DEVICE __host__ __device__
#else
#define NV_NORMS_HOST_DEVICE
#endif

namespace nv_norms {

enum class DType { kHalf, kBfloat16, kFloat, kDouble };

NV_NORMS_HOST_DEVICE inline int64_t SizeOf(DType type) {
  return type == DType::kDouble ? 8 : type == DType::kFloat ? 4 : 2;
}

// xhat, of which y = xhat * gamma + beta:
//   kCenter     (x - mean) * rstd,  rstd = 1 / sqrt(var(x) + epsilon)
//   kScaleOnly   x         * rstd,  rstd = 1 / sqrt(var(x) + epsilon)
//   kRms         x         * rstd,  rstd = 1 / sqrt(mean(x^2) + epsilon); there is no mean
enum class Formula { kCenter, kScaleOnly, kRms };

// What may follow, y = f(t) of t = xhat * gamma + beta. A leaky relu: t where it is positive, else
// negative_slope * t, but exactly 0 where negative_slope is 0 and t is not NaN. Or
// silu(t) = t / (1 + exp(-t)); then there is no negative_slope.
struct Activation {
  double negative_slope = 1;  // 0: relu
  bool silu = false;

  NV_NORMS_HOST_DEVICE bool none() const { return negative_slope == 1 && !silu; }
};

struct ForwardProblem {
  Geometry geometry;
  Formula formula = Formula::kCenter;
  double epsilon = 1e-3;
  Activation activation;
  DType x = DType::kFloat;
  DType param = DType::kFloat;
  DType y = DType::kFloat;

  // mean and rstd are float64 for float64 x, else float32.
  NV_NORMS_HOST_DEVICE DType stat() const {
    return x == DType::kDouble ? DType::kDouble : DType::kFloat;
  }
  // y is computed in this type and rounded once.
  NV_NORMS_HOST_DEVICE bool in_double() const {
    return x == DType::kDouble || param == DType::kDouble || y == DType::kDouble;
  }
};

// gamma and beta may be null, and mean and rstd where nobody reads them; mean is null for kRms. y
// may be x itself.
struct ForwardBuffers {
  const void* x = nullptr;
  const void* gamma = nullptr;
  const void* beta = nullptr;
  void* y = nullptr;
  void* mean = nullptr;
  void* rstd = nullptr;
};

// With w = dy * gamma, and means over the elements of a statistic:
//   dx     = rstd * (w - mean(w) - (x - mean) * rstd * mean(w * xhat))       (mean(w): kCenter
//   only) dgamma = sum(dy * xhat), dbeta = sum(dy)                                 over equal
//   parameters
// With an activation dy is first multiplied by its derivative at xhat * gamma + beta.
struct BackwardProblem {
  Geometry geometry;
  Formula formula = Formula::kCenter;
  Activation activation;
  DType dy = DType::kFloat;
  DType x = DType::kFloat;
  DType param = DType::kFloat;  // gamma
  DType dx = DType::kFloat;
  DType dparam = DType::kFloat;  // dgamma, dbeta

  NV_NORMS_HOST_DEVICE DType stat() const {
    return x == DType::kDouble ? DType::kDouble : DType::kFloat;
  }
  NV_NORMS_HOST_DEVICE bool in_double() const {
    return x == DType::kDouble || dy == DType::kDouble || param == DType::kDouble ||
           dx == DType::kDouble || dparam == DType::kDouble;
  }
};

// gamma may be null, beta too, which only an activation's gradient reads; mean is null for kRms; an
// output that is null is not wanted. dx overlaps neither dy nor x.
struct BackwardBuffers {
  const void* dy = nullptr;
  const void* x = nullptr;
  const void* gamma = nullptr;
  const void* beta = nullptr;
  const void* mean = nullptr;
  const void* rstd = nullptr;
  void* dx = nullptr;
  void* dgamma = nullptr;
  void* dbeta = nullptr;
};

}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_PROBLEM_H_
