#include <cstring>

#include "kernels/cpu/norms.h"
#include "kernels/tensorflow/cpu_threads.h"
#include "kernels/tensorflow/gradient_op.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace nv_norms {
namespace {

template <Kind kind>
class GradientOpCpu : public GradientOp {
 public:
  explicit GradientOpCpu(tensorflow::OpKernelConstruction* ctx) : GradientOp(ctx, kind) {}

 protected:
  absl::Status Run(tensorflow::OpKernelContext* ctx, const BackwardProblem& problem,
                   const BackwardBuffers& buffers) override {
    return ToTensorFlow(cpu::Backward(problem, buffers, ThreadsOf(ctx)));
  }
  absl::Status Copy(tensorflow::OpKernelContext* /*ctx*/, void* to, const void* from,
                    int64_t bytes) override {
    std::memcpy(to, from, static_cast<size_t>(bytes));
    return absl::OkStatus();
  }
};

REGISTER_KERNEL_BUILDER(Name("FusedLayerNormGrad").Device(tensorflow::DEVICE_CPU),
                        GradientOpCpu<Kind::kLayerNorm>);
REGISTER_KERNEL_BUILDER(Name("FusedRMSNormGrad").Device(tensorflow::DEVICE_CPU),
                        GradientOpCpu<Kind::kRMSNorm>);
REGISTER_KERNEL_BUILDER(Name("FusedInstanceNormGrad").Device(tensorflow::DEVICE_CPU),
                        GradientOpCpu<Kind::kInstanceNorm>);
REGISTER_KERNEL_BUILDER(Name("FusedGroupNormGrad").Device(tensorflow::DEVICE_CPU),
                        GradientOpCpu<Kind::kGroupNorm>);

}  // namespace
}  // namespace nv_norms
