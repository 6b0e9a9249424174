#ifndef NV_NORMS_KERNELS_TENSORFLOW_GPU_LAUNCH_H_
#define NV_NORMS_KERNELS_TENSORFLOW_GPU_LAUNCH_H_

#include "kernels/cuda/norms.h"
#include "kernels/tensorflow/attributes.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "xla/stream_executor/stream.h"

namespace nv_norms {

// Allocates the plan's workspace and launches it on the op's stream.
template <typename Plan, typename Buffers>
absl::Status LaunchOnGpu(tensorflow::OpKernelContext* ctx, const Plan& plan,
                         const Buffers& buffers) {
  tensorflow::Tensor workspace;
  void* memory = nullptr;
  if (plan.workspace > 0) {
    TF_RETURN_IF_ERROR(ctx->allocate_temp(tensorflow::DT_UINT8,
                                          tensorflow::TensorShape({plan.workspace}), &workspace));
    memory = workspace.data();
  }
  void* stream = ctx->op_device_context()->stream()->platform_specific_handle().stream;
  return ToTensorFlow(cuda::Launch(plan, buffers, memory, stream));
}

}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_TENSORFLOW_GPU_LAUNCH_H_
