// What the gradients of the parameters need of a statistic.
#ifndef NV_NORMS_KERNELS_CUDA_XHAT_LINE_CUH_
#define NV_NORMS_KERNELS_CUDA_XHAT_LINE_CUH_

#include "kernels/cuda/terms.cuh"

namespace nv_norms {
namespace cuda {

// xhat = e * rstd + offset, with e = x - stored mean.
template <typename A>
struct XhatLine {
  A rstd;
  A offset;
};

template <typename A>
__device__ __forceinline__ XhatLine<A> XhatLineOf(const GradientTerms<A>& terms) {
  return {terms.rstd, terms.rstd * ((terms.high - terms.xhat_high) - terms.xhat_low)};
}

inline int64_t XhatLineBytes(const BackwardProblem& problem) {
  return problem.geometry.statistics * 2 * (problem.in_double() ? 8 : 4);
}

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_XHAT_LINE_CUH_
