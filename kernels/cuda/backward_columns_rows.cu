// Gradients of layer norms over a middle axis, with dgamma and dbeta summed up on the way to dx.
// See backward_columns_resident.cuh.
#include "kernels/cuda/backward_columns_resident.cuh"
#include "kernels/cuda/resident.cuh"

namespace nv_norms {
namespace cuda {

BackwardKernel RowSumsKernelFor(const BackwardProblem& problem, bool streaming) {
  return BackwardKernelOf(problem, [&](auto* x, auto* dy, auto* dx) -> BackwardKernel {
    using X = std::remove_pointer_t<decltype(x)>;
    using D = std::remove_pointer_t<decltype(dy)>;
    using Y = std::remove_pointer_t<decltype(dx)>;
    if constexpr (std::is_void_v<Y>) {
      return nullptr;
    } else if (streaming) {
      return BackwardResidentKernel<X, D, Y, true, true, false>;
    } else {
      return BackwardResidentKernel<X, D, Y, false, true, false>;
    }
  });
}

}  // namespace cuda
}  // namespace nv_norms
