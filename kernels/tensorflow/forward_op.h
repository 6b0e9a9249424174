#ifndef NV_NORMS_KERNELS_TENSORFLOW_FORWARD_OP_H_
#define NV_NORMS_KERNELS_TENSORFLOW_FORWARD_OP_H_

#include "kernels/tensorflow/attributes.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace nv_norms {

// Checks the inputs and allocates the outputs of a forward op; a device does the rest.
class ForwardOp : public tensorflow::OpKernel {
 public:
  ForwardOp(tensorflow::OpKernelConstruction* ctx, Kind kind);
  void Compute(tensorflow::OpKernelContext* ctx) override;

 protected:
  virtual absl::Status Run(tensorflow::OpKernelContext* ctx, const ForwardProblem& problem,
                           const ForwardBuffers& buffers) = 0;
  virtual absl::Status Copy(tensorflow::OpKernelContext* ctx, void* to, const void* from,
                            int64_t bytes) = 0;

 private:
  Attributes attributes_;
};

}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_TENSORFLOW_FORWARD_OP_H_
