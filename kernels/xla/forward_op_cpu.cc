#include "kernels/xla/forward_op.h"
#include "kernels/xla/register_op.h"
#include "tensorflow/compiler/tf2xla/xla_op_registry.h"

namespace nv_norms {
namespace xla_call {
namespace {

template <Kind kind>
class ForwardOpCpu : public ForwardOp {
 public:
  explicit ForwardOpCpu(tensorflow::OpKernelConstruction* ctx) : ForwardOp(ctx, kind) {}

 protected:
  Status Workspace(const ForwardProblem& problem, int64_t* bytes) override {
    *bytes = 0;
    return Status();
  }
};

[[maybe_unused]] const bool registered =
    RegisterOps<ForwardOpCpu>("", tensorflow::DEVICE_CPU_XLA_JIT);

}  // namespace
}  // namespace xla_call
}  // namespace nv_norms
