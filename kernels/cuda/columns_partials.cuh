// Where a gradient over a middle axis leaves its blocks' sums of dgamma and dbeta, [blocks, rows]
// each, for LaunchFinish.
#ifndef NV_NORMS_KERNELS_CUDA_COLUMNS_PARTIALS_CUH_
#define NV_NORMS_KERNELS_CUDA_COLUMNS_PARTIALS_CUH_

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/norms.h"

namespace nv_norms {
namespace cuda {

struct RowPartials {
  float* dgamma = nullptr;  // null where neither is wanted
  float* dbeta = nullptr;

  // Of both, for so many blocks.
  static int64_t Bytes(const BackwardPlan& plan, int64_t blocks) {
    return 2 * BytesOfOne(plan, blocks);
  }
  static RowPartials In(void* workspace, const BackwardPlan& plan, const BackwardBuffers& buffers,
                        int64_t blocks) {
    RowPartials out;
    if (buffers.dgamma == nullptr && buffers.dbeta == nullptr) return out;
    out.dgamma = static_cast<float*>(workspace);
    out.dbeta = reinterpret_cast<float*>(static_cast<char*>(workspace) + BytesOfOne(plan, blocks));
    return out;
  }
  bool wanted() const { return dgamma != nullptr; }

 private:
  static int64_t BytesOfOne(const BackwardPlan& plan, int64_t blocks) {
    return Align16(4 * blocks * plan.problem.geometry.columns.s);
  }
};

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_COLUMNS_PARTIALS_CUH_
