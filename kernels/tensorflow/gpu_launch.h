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

// On the op's stream.
inline absl::Status CopyOnGpu(tensorflow::OpKernelContext* ctx, void* to, const void* from,
                              int64_t bytes) {
  const uint64_t size = static_cast<uint64_t>(bytes);
  stream_executor::DeviceAddressBase target(to, size);
  const stream_executor::DeviceAddressBase source(const_cast<void*>(from), size);
  return ctx->op_device_context()->stream()->Memcpy(&target, source, size);
}

}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_TENSORFLOW_GPU_LAUNCH_H_
