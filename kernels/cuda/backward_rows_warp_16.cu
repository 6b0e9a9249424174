// The gradient of rows of 16-bit numbers in registers.
#include "kernels/cuda/backward_rows_warp.cuh"

namespace nv_norms {
namespace cuda {
namespace {

template <int LANES, int ITEMS>
using Step = WarpGradientStep<LANES, ITEMS>;

template <typename T>
WarpGradient Choose(int64_t cols, int vector) {
  if (vector == 8) {
    return ClimbWarpGradient<T, T, 8, Step<4, 1>, Step<4, 2>, Step<8, 2>, Step<8, 3>, Step<16, 2>,
                             Step<16, 3>, Step<32, 2>, Step<32, 3>, Step<32, 4>, Step<32, 5>>(cols);
  }
  return ClimbWarpGradient<T, T, 4, Step<4, 3>, Step<8, 2>, Step<8, 3>, Step<8, 4>, Step<16, 3>,
                           Step<32, 2>, Step<32, 3>, Step<32, 4>>(cols);
}

}  // namespace

WarpGradient ChooseWarpGradient16(const BackwardProblem& problem, int vector) {
  const int64_t cols = problem.geometry.rows.cols;
  return problem.x == DType::kHalf ? Choose<__half>(cols, vector)
                                   : Choose<__nv_bfloat16>(cols, vector);
}

}  // namespace cuda
}  // namespace nv_norms
