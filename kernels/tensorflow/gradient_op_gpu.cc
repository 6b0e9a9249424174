#include "kernels/cuda/norms.h"
#include "kernels/tensorflow/gpu_launch.h"
#include "kernels/tensorflow/gradient_op.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace nv_norms {
namespace {

template <Kind kind>
class GradientOpGpu : public GradientOp {
 public:
  explicit GradientOpGpu(tensorflow::OpKernelConstruction* ctx) : GradientOp(ctx, kind) {}

 protected:
  absl::Status Run(tensorflow::OpKernelContext* ctx, const BackwardProblem& problem,
                   const BackwardBuffers& buffers) override {
    cuda::Device device;
    TF_RETURN_IF_ERROR(ToTensorFlow(cuda::CurrentDevice(&device)));
    cuda::BackwardPlan plan;
    TF_RETURN_IF_ERROR(ToTensorFlow(
        cuda::PlanBackward(problem, device, buffers.dx != nullptr,
                           buffers.dgamma != nullptr || buffers.dbeta != nullptr, &plan)));
    return LaunchOnGpu(ctx, plan, buffers);
  }
  absl::Status Copy(tensorflow::OpKernelContext* ctx, void* to, const void* from,
                    int64_t bytes) override {
    return CopyOnGpu(ctx, to, from, bytes);
  }
};

REGISTER_KERNEL_BUILDER(Name("FusedLayerNormGrad").Device(tensorflow::DEVICE_GPU),
                        GradientOpGpu<Kind::kLayerNorm>);
REGISTER_KERNEL_BUILDER(Name("FusedRMSNormGrad").Device(tensorflow::DEVICE_GPU),
                        GradientOpGpu<Kind::kRMSNorm>);
REGISTER_KERNEL_BUILDER(Name("FusedInstanceNormGrad").Device(tensorflow::DEVICE_GPU),
                        GradientOpGpu<Kind::kInstanceNorm>);
REGISTER_KERNEL_BUILDER(Name("FusedGroupNormGrad").Device(tensorflow::DEVICE_GPU),
                        GradientOpGpu<Kind::kGroupNorm>);

}  // namespace
}  // namespace nv_norms
