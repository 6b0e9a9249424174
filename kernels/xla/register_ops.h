#ifndef NV_NORMS_KERNELS_XLA_REGISTER_OPS_H_
#define NV_NORMS_KERNELS_XLA_REGISTER_OPS_H_

#include <string>

#include "kernels/tensorflow/attributes.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace nv_norms {
namespace xla_call {

using OpFactory = tensorflow::OpKernel* (*)(tensorflow::OpKernelConstruction*);

// Makes XLA take `op` on every device that has our kernels. TensorFlow collects XLA's kernels once,
// when it first needs one; where that has happened already, this adds to them.
bool RegisterOp(const std::string& op, OpFactory factory);

bool OnGpu(const tensorflow::OpKernelConstruction& ctx);

template <typename Op, Kind kind>
tensorflow::OpKernel* MakeOp(tensorflow::OpKernelConstruction* ctx) {
  return new Op(ctx, kind);
}

// The ops of all kinds; suffix: "" or "Grad".
template <typename Op>
bool RegisterOps(const std::string& suffix) {
  return RegisterOp("FusedLayerNorm" + suffix, MakeOp<Op, Kind::kLayerNorm>) &&
         RegisterOp("FusedRMSNorm" + suffix, MakeOp<Op, Kind::kRMSNorm>) &&
         RegisterOp("FusedInstanceNorm" + suffix, MakeOp<Op, Kind::kInstanceNorm>) &&
         RegisterOp("FusedGroupNorm" + suffix, MakeOp<Op, Kind::kGroupNorm>);
}

}  // namespace xla_call
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_XLA_REGISTER_OPS_H_
