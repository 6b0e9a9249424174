// Loops over runs of contiguous numbers, for float and double. Sums are kept in many lanes and the
// lanes' sums in double, in an order that depends on the count alone.
#ifndef NV_NORMS_KERNELS_CPU_VECTOR_OPS_H_
#define NV_NORMS_KERNELS_CPU_VECTOR_OPS_H_

#include <cstdint>

namespace nv_norms {
namespace cpu {

#define NV_NORMS_VECTOR_OPS(A)                                                                    \
  /* sum(x - shift) */                                                                            \
  double SumShifted(const A* x, int64_t count, A shift);                                          \
  /* *sum += sum(x - shift), *squares += sum((x - shift)^2) */                                    \
  void AddMoments(const A* x, int64_t count, A shift, double* sum, double* squares);              \
  /* y = ((x - high) - low) * rstd * gamma + beta; gamma, beta may be null */                     \
  void Normalize(const A* x, int64_t count, A high, A low, A rstd, const A* gamma, const A* beta, \
                 A* y);                                                                           \
  /* the same with one gamma and one beta */                                                      \
  void NormalizeScalar(const A* x, int64_t count, A high, A low, A rstd, A gamma, A beta, A* y);  \
  /* e = x - shift, w = dy * gamma: sums[0] += sum(e), [1] += sum(w), [2] += sum(w * e) */        \
  void AddGradientSums(const A* x, const A* dy, const A* gamma, int64_t count, A shift,           \
                       double* sums);                                                             \
  /* dx = rstd * (dy * gamma - w_mean - ((x - high) - low) * slope); gamma null: gamma_scalar */  \
  void InputGradient(const A* x, const A* dy, const A* gamma, A gamma_scalar, int64_t count,      \
                     A high, A low, A rstd, A w_mean, A slope, A* dx);                            \
  /* dgamma += dy * ((x - high) - low) * rstd, dbeta += dy */                                     \
  void AddParamGradients(const A* x, const A* dy, int64_t count, A high, A low, A rstd,           \
                         double* dgamma, double* dbeta);

NV_NORMS_VECTOR_OPS(float)
NV_NORMS_VECTOR_OPS(double)
#undef NV_NORMS_VECTOR_OPS

}  // namespace cpu
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CPU_VECTOR_OPS_H_
