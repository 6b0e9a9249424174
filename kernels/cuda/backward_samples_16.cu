// The gradient of rows of 16-bit numbers whose parameters are their sample's.
#include "kernels/cuda/backward_samples.cuh"

namespace nv_norms {
namespace cuda {
namespace {

template <int LANES, int ITEMS>
using Step = WarpGradientStep<LANES, ITEMS, /*kSamples=*/true>;

template <typename T>
SampleGradient Choose(int64_t cols) {
  return ChooseSampleGradient<T, T, Step<8, 1>, Step<16, 1>, Step<32, 1>, Step<32, 2>, Step<32, 3>,
                              Step<32, 4>, Step<32, 5>>(cols);
}

}  // namespace

SampleGradient ChooseSampleGradient16(const BackwardProblem& problem) {
  const int64_t cols = problem.geometry.rows.cols;
  if (problem.dy != problem.x) return {};
  return problem.x == DType::kHalf ? Choose<__half>(cols) : Choose<__nv_bfloat16>(cols);
}

}  // namespace cuda
}  // namespace nv_norms
