#include "kernels/xla/register_ops.h"

#include "absl/algorithm/container.h"
#include "tensorflow/compiler/tf2xla/xla_op_registry.h"
#include "tensorflow/core/framework/kernel_def_builder.h"

namespace nv_norms {
namespace xla_call {
namespace {

// Whether TensorFlow has collected XLA's kernels for the device: an op that XLA has always had.
bool Collected(const char* device) {
  const tensorflow::KernelList kernels = tensorflow::GetRegisteredKernelsForOp("AddV2");
  return absl::c_any_of(kernels.kernel(), [device](const tensorflow::KernelDef& kernel) {
    return kernel.device_type() == device;
  });
}

}  // namespace

bool RegisterOp(const std::string& op, OpFactory factory) {
  // Not outside of the function, which is called while other files' globals are initialized.
  const char* const devices[] = {
      tensorflow::DEVICE_CPU_XLA_JIT,
#ifdef NV_NORMS_CUDA
      tensorflow::DEVICE_GPU_XLA_JIT,
#endif
  };
  for (const char* device : devices) {
    tensorflow::XlaOpRegistrar(
        tensorflow::XlaOpRegistrationBuilder::Name(op).Device(device).Build(factory));
    if (Collected(device)) {
      tensorflow::kernel_factory::OpKernelRegistrar(
          tensorflow::KernelDefBuilder(op.c_str()).Device(device).Build(), op, factory);
    }
  }
  return true;
}

bool OnGpu(const tensorflow::OpKernelConstruction& ctx) {
  return ctx.device_type().type_string() == tensorflow::DEVICE_GPU_XLA_JIT;
}

}  // namespace xla_call
}  // namespace nv_norms
