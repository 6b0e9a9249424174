// As kernels/tensorflow/samples.h, in XLA's ops.
#ifndef NV_NORMS_KERNELS_XLA_SAMPLES_H_
#define NV_NORMS_KERNELS_XLA_SAMPLES_H_

#include <vector>

#include "kernels/tensorflow/attributes.h"
#include "kernels/xla/operands.h"

namespace nv_norms {
namespace xla_call {

// Gives x and the parameters as many samples as y has. Not where the axis of samples is dynamic.
absl::Status RepeatSamples(const Attributes& attributes, const tensorflow::TensorShape& y,
                           Operand* x, const std::vector<Operand*>& params);

// The sum of samples [N, ...] in the shape of x, which has one.
xla::XlaOp SumOfSamples(xla::XlaOp parts, xla::PrimitiveType parts_type,
                        xla::PrimitiveType out_type);

}  // namespace xla_call
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_XLA_SAMPLES_H_
