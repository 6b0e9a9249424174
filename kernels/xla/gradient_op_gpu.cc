#include "kernels/xla/gradient_op.h"
#include "kernels/xla/register_op.h"
#include "kernels/xla/workspace_gpu.h"
#include "tensorflow/compiler/tf2xla/xla_op_registry.h"

namespace nv_norms {
namespace xla_call {
namespace {

template <Kind kind>
class GradientOpGpu : public GradientOp {
 public:
  explicit GradientOpGpu(tensorflow::OpKernelConstruction* ctx) : GradientOp(ctx, kind) {}

 protected:
  Status Workspace(const BackwardProblem& problem, bool want_dx, bool want_params,
                   int64_t* bytes) override {
    return WorkspaceOnGpu(problem, want_dx, want_params, bytes);
  }
};

[[maybe_unused]] const bool registered =
    RegisterOps<GradientOpGpu>("Grad", tensorflow::DEVICE_GPU_XLA_JIT);

}  // namespace
}  // namespace xla_call
}  // namespace nv_norms
