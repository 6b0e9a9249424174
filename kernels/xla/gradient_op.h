#ifndef NV_NORMS_KERNELS_XLA_GRADIENT_OP_H_
#define NV_NORMS_KERNELS_XLA_GRADIENT_OP_H_

#include <string>

#include "kernels/tensorflow/attributes.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"

namespace nv_norms {
namespace xla_call {

// Puts a gradient op into an XLA computation. A device says how much workspace its kernel wants.
class GradientOp : public tensorflow::XlaOpKernel {
 public:
  GradientOp(tensorflow::OpKernelConstruction* ctx, Kind kind);
  void Compile(tensorflow::XlaOpKernelContext* ctx) override;

 protected:
  virtual Status Workspace(const BackwardProblem& problem, bool want_dx, bool want_params,
                           int64_t* bytes) = 0;

 private:
  absl::Status Build(tensorflow::XlaOpKernelContext* ctx);

  Attributes attributes_;
  std::string call_format_;
  Wanted wanted_;
};

}  // namespace xla_call
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_XLA_GRADIENT_OP_H_
