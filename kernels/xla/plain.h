// The formulas in XLA's own ops, for what a custom call cannot take: dynamic dimensions, of which
// only a bound is known when compiled, and empty tensors.
#ifndef NV_NORMS_KERNELS_XLA_PLAIN_H_
#define NV_NORMS_KERNELS_XLA_PLAIN_H_

#include "kernels/tensorflow/attributes.h"
#include "kernels/xla/operands.h"

namespace nv_norms {
namespace xla_call {

// A null pointer: the operand is not there.
struct PlainForward {
  const Operand* x = nullptr;
  const Operand* scale = nullptr;
  const Operand* offset = nullptr;
  xla::PrimitiveType y_type = xla::F32;
};

struct PlainBackward {
  const Operand* dy = nullptr;
  const Operand* x = nullptr;
  const Operand* scale = nullptr;
  const Operand* offset = nullptr;
  const Operand* mean = nullptr;
  const Operand* rstd = nullptr;
  xla::PrimitiveType dx_type = xla::F32;
  xla::PrimitiveType param_type = xla::F32;
};

struct PlainStatistics {
  xla::XlaOp y;
  xla::XlaOp mean;  // not for kRms
  xla::XlaOp rstd;
};

struct PlainGradients {
  xla::XlaOp dx;
  xla::XlaOp dscale;
  xla::XlaOp doffset;
};

PlainStatistics Plain(const Attributes& attributes, const PlainForward& call);
PlainGradients Plain(const Attributes& attributes, const PlainBackward& call);

}  // namespace xla_call
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_XLA_PLAIN_H_
