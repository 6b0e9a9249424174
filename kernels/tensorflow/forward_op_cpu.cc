#include <cstring>

#include "kernels/cpu/norms.h"
#include "kernels/tensorflow/cpu_threads.h"
#include "kernels/tensorflow/forward_op.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace nv_norms {
namespace {

template <Kind kind>
class ForwardOpCpu : public ForwardOp {
 public:
  explicit ForwardOpCpu(tensorflow::OpKernelConstruction* ctx) : ForwardOp(ctx, kind) {}

 protected:
  absl::Status Run(tensorflow::OpKernelContext* ctx, const ForwardProblem& problem,
                   const ForwardBuffers& buffers) override {
    return ToTensorFlow(cpu::Forward(problem, buffers, ThreadsOf(ctx)));
  }
  absl::Status Copy(tensorflow::OpKernelContext* /*ctx*/, void* to, const void* from,
                    int64_t bytes) override {
    std::memcpy(to, from, static_cast<size_t>(bytes));
    return absl::OkStatus();
  }
};

REGISTER_KERNEL_BUILDER(Name("FusedLayerNorm").Device(tensorflow::DEVICE_CPU),
                        ForwardOpCpu<Kind::kLayerNorm>);
REGISTER_KERNEL_BUILDER(Name("FusedRMSNorm").Device(tensorflow::DEVICE_CPU),
                        ForwardOpCpu<Kind::kRMSNorm>);
REGISTER_KERNEL_BUILDER(Name("FusedInstanceNorm").Device(tensorflow::DEVICE_CPU),
                        ForwardOpCpu<Kind::kInstanceNorm>);
REGISTER_KERNEL_BUILDER(Name("FusedGroupNorm").Device(tensorflow::DEVICE_CPU),
                        ForwardOpCpu<Kind::kGroupNorm>);

}  // namespace
}  // namespace nv_norms
