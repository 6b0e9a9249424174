// Shapes of an op's inputs as XLA sees them, and the custom call that takes them.
#ifndef NV_NORMS_KERNELS_XLA_OPERANDS_H_
#define NV_NORMS_KERNELS_XLA_OPERANDS_H_

#include <string>
#include <vector>

#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "xla/hlo/builder/xla_builder.h"

namespace nv_norms {
namespace xla_call {

// One input of an op.
struct Operand {
  xla::XlaOp value;
  xla::Shape shape;                // as XLA knows it, with dynamic dimensions
  tensorflow::TensorShape bounds;  // a dynamic dimension has its bound
};

absl::Status GetOperand(tensorflow::XlaOpKernelContext* ctx, int index, Operand* out);
bool AnyDynamic(const std::vector<Operand>& operands);

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
