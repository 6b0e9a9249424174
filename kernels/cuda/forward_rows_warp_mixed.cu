// Rows of float32 in registers, y in 16 bits.
#include "kernels/cuda/forward_rows_warp.cuh"

namespace nv_norms {
namespace cuda {
namespace {

template <int LANES, int ITEMS, int MANY, int FEW>
using Step = WarpRowsStep<LANES, ITEMS, MANY, FEW>;

template <typename Y, typename P, int VEC>
WarpRows Choose(const RowLayout& layout, const Device& device) {
  return ClimbWarpRows<float, Y, P, VEC, Step<4, 1, 4, 2>, Step<4, 2, 4, 2>, Step<4, 3, 2, 2>,
                       Step<8, 2, 4, 2>, Step<8, 3, 2, 2>, Step<8, 4, 2, 2>, Step<16, 3, 2, 2>,
                       Step<32, 2, 4, 2>, Step<32, 3, 2, 2>, Step<32, 4, 2, 1>, Step<32, 5, 1, 1>,
                       Step<32, 6, 1, 1>, Step<32, 7, 1, 1>, Step<32, 8, 1, 1>>(layout, device);
}

template <typename Y>
WarpRows Choose(const ForwardProblem& problem, int vector, const Device& device) {
  const RowLayout& layout = problem.geometry.rows;
  if (vector != 4) return {};
  return problem.param == DType::kFloat ? Choose<Y, float, 4>(layout, device)
                                        : Choose<Y, Y, 4>(layout, device);
}

}  // namespace

WarpRows ChooseWarpRowsMixed(const ForwardProblem& problem, int vector, const Device& device) {
  return problem.y == DType::kHalf ? Choose<__half>(problem, vector, device)
                                   : Choose<__nv_bfloat16>(problem, vector, device);
}

}  // namespace cuda
}  // namespace nv_norms
