// Rows of float32 whose parameters are their sample's, y in float32 or 16 bits.
#include "kernels/cuda/forward_samples.cuh"

namespace nv_norms {
namespace cuda {
namespace {

template <int LANES, int ITEMS, int ROWS>
using Step = WarpRowsStep<LANES, ITEMS, ROWS, ROWS, /*kSamples=*/true>;

template <typename Y, typename P>
SampleRows Choose(const RowLayout& layout) {
  return ChooseSampleRows<float, Y, P, Step<4, 1, 4>, Step<8, 1, 4>, Step<16, 1, 4>, Step<32, 1, 4>,
                          Step<32, 2, 4>, Step<32, 3, 2>, Step<32, 4, 2>, Step<32, 5, 1>,
                          Step<32, 6, 1>, Step<32, 7, 1>, Step<32, 8, 1>>(layout);
}

template <typename Y>
SampleRows Choose(const ForwardProblem& problem) {
  const RowLayout& layout = problem.geometry.rows;
  if (problem.param == DType::kFloat) return Choose<Y, float>(layout);
  return problem.param == problem.y ? Choose<Y, Y>(layout) : SampleRows();
}

}  // namespace

SampleRows ChooseSampleRows32(const ForwardProblem& problem) {
  return problem.y == DType::kFloat  ? Choose<float>(problem)
         : problem.y == DType::kHalf ? Choose<__half>(problem)
                                     : Choose<__nv_bfloat16>(problem);
}

}  // namespace cuda
}  // namespace nv_norms
