#include "kernels/xla/forward_op.h"
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

REGISTER_XLA_OP(Name("FusedLayerNorm").Device(tensorflow::DEVICE_CPU_XLA_JIT),
                ForwardOpCpu<Kind::kLayerNorm>);
REGISTER_XLA_OP(Name("FusedRMSNorm").Device(tensorflow::DEVICE_CPU_XLA_JIT),
                ForwardOpCpu<Kind::kRMSNorm>);
REGISTER_XLA_OP(Name("FusedInstanceNorm").Device(tensorflow::DEVICE_CPU_XLA_JIT),
                ForwardOpCpu<Kind::kInstanceNorm>);
REGISTER_XLA_OP(Name("FusedGroupNorm").Device(tensorflow::DEVICE_CPU_XLA_JIT),
                ForwardOpCpu<Kind::kGroupNorm>);

}  // namespace
}  // namespace xla_call
}  // namespace nv_norms
