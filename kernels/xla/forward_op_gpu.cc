#include "kernels/xla/forward_op.h"
#include "kernels/xla/register_op.h"
#include "kernels/xla/workspace_gpu.h"
#include "tensorflow/compiler/tf2xla/xla_op_registry.h"

namespace nv_norms {
namespace xla_call {
namespace {

template <Kind kind>
class ForwardOpGpu : public ForwardOp {
 public:
  explicit ForwardOpGpu(tensorflow::OpKernelConstruction* ctx) : ForwardOp(ctx, kind) {}

 protected:
  Status Workspace(const ForwardProblem& problem, int64_t* bytes) override {
    return WorkspaceOnGpu(problem, bytes);
  }
};

[[maybe_unused]] const bool registered =
    RegisterOps<ForwardOpGpu>("", tensorflow::DEVICE_GPU_XLA_JIT);

}  // namespace
}  // namespace xla_call
}  // namespace nv_norms
