// Shapes of an op's inputs as XLA sees them, and the custom call that takes them.
#ifndef NV_NORMS_KERNELS_XLA_OPERANDS_H_
#define NV_NORMS_KERNELS_XLA_OPERANDS_H_

#include <string>
#include <vector>

#include "tensorflow/core/framework/tensor_shape.h"
#include "xla/hlo/builder/xla_builder.h"

namespace nv_norms {
namespace xla_call {

// One input of an op.
struct Operand {
  xla::XlaOp value;
  xla::Shape shape;                // as XLA knows it, with dynamic dimensions
  tensorflow::TensorShape bounds;  // a dynamic dimension has its bound
};

absl::Status MakeOperand(xla::XlaOp value, const xla::Shape& shape, Operand* out);
bool AnyDynamic(const std::vector<Operand>& operands);

// All inputs of a tensorflow::XlaOpKernelContext, whose header takes a minute to compile.
template <typename Context>
absl::Status GetOperands(Context* ctx, std::vector<Operand>* out) {
  out->resize(ctx->num_inputs());
  for (int i = 0; i < ctx->num_inputs(); ++i) {
    const absl::StatusOr<xla::Shape> shape = ctx->InputXlaShape(i);
    if (!shape.ok()) return shape.status();
    const absl::Status status = MakeOperand(ctx->Input(i), *shape, &(*out)[i]);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

// A result of a custom call.
struct Result {
  xla::PrimitiveType type;
  tensorflow::TensorShape shape;
};

// Calls `target`, all buffers row-major; a last result of so many bytes is scratch memory.
std::vector<xla::XlaOp> Call(xla::XlaBuilder* builder, const std::string& target,
                             const std::vector<Operand>& operands,
                             const std::vector<Result>& results, int64_t workspace,
                             const std::string& attributes);

}  // namespace xla_call
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_XLA_OPERANDS_H_
