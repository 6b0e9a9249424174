#include "kernels/cuda/norms.h"
#include "kernels/tensorflow/forward_op.h"
#include "kernels/tensorflow/gpu_launch.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace nv_norms {
namespace {

template <Kind kind>
class ForwardOpGpu : public ForwardOp {
 public:
  explicit ForwardOpGpu(tensorflow::OpKernelConstruction* ctx) : ForwardOp(ctx, kind) {}

 protected:
  absl::Status Run(tensorflow::OpKernelContext* ctx, const ForwardProblem& problem,
                   const ForwardBuffers& buffers) override {
    cuda::Device device;
    TF_RETURN_IF_ERROR(ToTensorFlow(cuda::CurrentDevice(&device)));
    cuda::ForwardPlan plan;
    TF_RETURN_IF_ERROR(ToTensorFlow(cuda::PlanForward(problem, device, &plan)));
    return LaunchOnGpu(ctx, plan, buffers);
  }
  absl::Status Copy(tensorflow::OpKernelContext* ctx, void* to, const void* from,
                    int64_t bytes) override {
    return CopyOnGpu(ctx, to, from, bytes);
  }
};

REGISTER_KERNEL_BUILDER(Name("FusedLayerNorm").Device(tensorflow::DEVICE_GPU),
                        ForwardOpGpu<Kind::kLayerNorm>);
REGISTER_KERNEL_BUILDER(Name("FusedRMSNorm").Device(tensorflow::DEVICE_GPU),
                        ForwardOpGpu<Kind::kRMSNorm>);
REGISTER_KERNEL_BUILDER(Name("FusedInstanceNorm").Device(tensorflow::DEVICE_GPU),
                        ForwardOpGpu<Kind::kInstanceNorm>);
REGISTER_KERNEL_BUILDER(Name("FusedGroupNorm").Device(tensorflow::DEVICE_GPU),
                        ForwardOpGpu<Kind::kGroupNorm>);

}  // namespace
}  // namespace nv_norms
