// Rows of 16-bit numbers whose parameters are their sample's, y in 16 bits.
#include "kernels/cuda/forward_samples.cuh"

namespace nv_norms {
namespace cuda {
namespace {

template <int LANES, int ITEMS, int ROWS>
using Step = WarpRowsStep<LANES, ITEMS, ROWS, ROWS, /*kSamples=*/true>;

template <typename T, typename P>
SampleRows Choose(const RowLayout& layout) {
  return ChooseSampleRows<T, T, P, Step<4, 1, 4>, Step<4, 2, 4>, Step<4, 3, 4>, Step<8, 2, 4>,
                          Step<8, 3, 4>, Step<16, 2, 4>, Step<16, 3, 4>, Step<32, 2, 3>,
                          Step<32, 3, 4>>(layout);
}

}  // namespace

SampleRows ChooseSampleRows16(const ForwardProblem& problem) {
  const RowLayout& layout = problem.geometry.rows;
  const bool wide = problem.param == DType::kFloat;
  if (problem.y != problem.x || !(wide || problem.param == problem.x)) return {};
  if (problem.x == DType::kHalf) {
    return wide ? Choose<__half, float>(layout) : Choose<__half, __half>(layout);
  }
  return wide ? Choose<__nv_bfloat16, float>(layout) : Choose<__nv_bfloat16, __nv_bfloat16>(layout);
}

}  // namespace cuda
}  // namespace nv_norms
