// Where a call has its channels. XLA chooses the layouts of convolutions and of what is beside
// them, but a call's buffers are row-major: where its neighbours have another layout, XLA puts a
// copy before and after it.
#ifndef NV_NORMS_KERNELS_XLA_PLACEMENT_H_
#define NV_NORMS_KERNELS_XLA_PLACEMENT_H_

#include <string>
#include <vector>

#include "kernels/tensorflow/attributes.h"
#include "kernels/xla/operands.h"

namespace nv_norms {
namespace xla_call {

// On the node of an instance or group norm, or of its gradient: the data format in which its
// neighbours will be, and so shall be the call. A node may lack it; it says nothing of the values.
// python/nv_norms_rewriter/_trace_layout.py sets it.
constexpr char kCallFormat[] = "_nv_norms_call_format";

std::string CallFormat(const tensorflow::OpKernelConstruction& ctx);

// A call that has another format than its op stands between two Transposes, of which nothing is
// left where the neighbours have the call's.
class Placement {
 public:
  // format: "N...C", "NC...", or empty: the op's own.
  Placement(const Attributes& attributes, int rank, const std::string& format);

  // Of the call.
  const Attributes& attributes() const { return attributes_; }
  // A tensor of x's shape, for the call.
  void Place(Operand* operand) const;
  // A result of the call of x's shape, for the op.
  xla::XlaOp Replace(xla::XlaOp result) const;

 private:
  Attributes attributes_;
  std::vector<int64_t> there_;  // empty: as it is
  std::vector<int64_t> back_;
};

}  // namespace xla_call
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_XLA_PLACEMENT_H_
