// Rows of float32 in registers.
#include "kernels/cuda/forward_rows_warp.cuh"

namespace nv_norms {
namespace cuda {
namespace {

template <int LANES, int ITEMS, int MANY, int FEW>
using Step = WarpRowsStep<LANES, ITEMS, MANY, FEW>;

template <int VEC>
WarpRows Choose(const RowLayout& layout, const Device& device) {
  return ClimbWarpRows<float, float, float, VEC, Step<4, 1, 4, 2>, Step<4, 2, 4, 2>,
                       Step<4, 3, 2, 2>, Step<8, 2, 4, 2>, Step<8, 3, 2, 2>, Step<8, 4, 2, 2>,
                       Step<16, 3, 2, 2>, Step<32, 2, 4, 2>, Step<32, 3, 2, 2>, Step<32, 4, 2, 1>,
                       Step<32, 5, 1, 1>, Step<32, 6, 1, 1>, Step<32, 7, 1, 1>, Step<32, 8, 1, 1>>(
      layout, device);
}

}  // namespace

WarpRows ChooseWarpRows32(const ForwardProblem& problem, int vector, const Device& device) {
  if (problem.param != DType::kFloat) return {};
  const RowLayout& layout = problem.geometry.rows;
  return vector == 4 ? Choose<4>(layout, device) : Choose<2>(layout, device);
}

}  // namespace cuda
}  // namespace nv_norms
