// Rows of 16-bit numbers in registers, y in 16 bits.
#include "kernels/cuda/forward_rows_warp.cuh"

namespace nv_norms {
namespace cuda {
namespace {

template <int LANES, int ITEMS, int MANY, int FEW>
using Step = WarpRowsStep<LANES, ITEMS, MANY, FEW>;

template <typename T, typename P>
WarpRows Choose(const RowLayout& layout, int vector, const Device& device) {
  if (vector == 8) {
    return ClimbWarpRows<T, T, P, 8, Step<4, 1, 4, 2>, Step<4, 2, 4, 2>, Step<4, 3, 4, 2>,
                         Step<8, 2, 4, 2>, Step<8, 3, 4, 2>, Step<16, 2, 4, 2>, Step<16, 3, 4, 2>,
                         Step<32, 2, 3, 2>, Step<32, 3, 4, 2>, Step<32, 4, 3, 0>, Step<32, 5, 2, 2>,
                         Step<32, 6, 2, 2>, Step<32, 7, 2, 2>, Step<32, 8, 2, 2>>(layout, device);
  }
  return ClimbWarpRows<T, T, P, 4, Step<4, 3, 4, 2>, Step<8, 2, 4, 2>, Step<8, 3, 4, 2>,
                       Step<8, 4, 4, 2>, Step<16, 3, 4, 2>, Step<32, 2, 4, 2>, Step<32, 3, 4, 2>,
                       Step<32, 4, 4, 2>, Step<32, 5, 2, 1>, Step<32, 6, 2, 1>, Step<32, 7, 2, 1>,
                       Step<32, 8, 2, 1>>(layout, device);
}

}  // namespace

WarpRows ChooseWarpRows16(const ForwardProblem& problem, int vector, const Device& device) {
  const RowLayout& layout = problem.geometry.rows;
  if (problem.x == DType::kHalf) {
    return problem.param == DType::kFloat ? Choose<__half, float>(layout, vector, device)
                                          : Choose<__half, __half>(layout, vector, device);
  }
  return problem.param == DType::kFloat
             ? Choose<__nv_bfloat16, float>(layout, vector, device)
             : Choose<__nv_bfloat16, __nv_bfloat16>(layout, vector, device);
}

}  // namespace cuda
}  // namespace nv_norms
