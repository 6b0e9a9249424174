#ifndef NV_NORMS_KERNELS_XLA_FORWARD_OP_H_
#define NV_NORMS_KERNELS_XLA_FORWARD_OP_H_

#include <string>

#include "kernels/tensorflow/attributes.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"

namespace nv_norms {
namespace xla_call {

// Puts a forward op into an XLA computation. A device says how much workspace its kernel wants.
class ForwardOp : public tensorflow::XlaOpKernel {
 public:
  ForwardOp(tensorflow::OpKernelConstruction* ctx, Kind kind);
  void Compile(tensorflow::XlaOpKernelContext* ctx) override;

 protected:
  virtual Status Workspace(const ForwardProblem& problem, int64_t* bytes) = 0;

 private:
  absl::Status Build(tensorflow::XlaOpKernelContext* ctx);

  Attributes attributes_;
  std::string call_format_;
};

}  // namespace xla_call
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_XLA_FORWARD_OP_H_
