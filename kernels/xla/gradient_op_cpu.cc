#include "kernels/xla/gradient_op.h"
#include "tensorflow/compiler/tf2xla/xla_op_registry.h"

namespace nv_norms {
namespace xla_call {
namespace {

template <Kind kind>
class GradientOpCpu : public GradientOp {
 public:
  explicit GradientOpCpu(tensorflow::OpKernelConstruction* ctx) : GradientOp(ctx, kind) {}

 protected:
  Status Workspace(const BackwardProblem& problem, bool want_dx, bool want_params,
                   int64_t* bytes) override {
    *bytes = 0;
    return Status();
  }
};

REGISTER_XLA_OP(Name("FusedLayerNormGrad").Device(tensorflow::DEVICE_CPU_XLA_JIT),
                GradientOpCpu<Kind::kLayerNorm>);
REGISTER_XLA_OP(Name("FusedRMSNormGrad").Device(tensorflow::DEVICE_CPU_XLA_JIT),
                GradientOpCpu<Kind::kRMSNorm>);
REGISTER_XLA_OP(Name("FusedInstanceNormGrad").Device(tensorflow::DEVICE_CPU_XLA_JIT),
                GradientOpCpu<Kind::kInstanceNorm>);
REGISTER_XLA_OP(Name("FusedGroupNormGrad").Device(tensorflow::DEVICE_CPU_XLA_JIT),
                GradientOpCpu<Kind::kGroupNorm>);

}  // namespace
}  // namespace xla_call
}  // namespace nv_norms
