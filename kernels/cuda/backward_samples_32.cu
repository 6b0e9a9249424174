// The gradient of rows of float32 whose parameters are their sample's, dy in float32 or 16 bits.
#include "kernels/cuda/backward_samples.cuh"

namespace nv_norms {
namespace cuda {
namespace {

template <int LANES, int ITEMS>
using Step = WarpGradientStep<LANES, ITEMS, /*kSamples=*/true>;

template <typename D>
SampleGradient Choose(int64_t cols) {
  return ChooseSampleGradient<float, D, Step<8, 1>, Step<16, 1>, Step<32, 1>, Step<32, 2>,
                              Step<32, 3>, Step<32, 4>, Step<32, 5>, Step<32, 6>, Step<32, 7>,
                              Step<32, 8>>(cols);
}

}  // namespace

SampleGradient ChooseSampleGradient32(const BackwardProblem& problem) {
  const int64_t cols = problem.geometry.rows.cols;
  return problem.dy == DType::kFloat  ? Choose<float>(cols)
         : problem.dy == DType::kHalf ? Choose<__half>(cols)
                                      : Choose<__nv_bfloat16>(cols);
}

}  // namespace cuda
}  // namespace nv_norms
