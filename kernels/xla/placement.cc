#include "kernels/xla/placement.h"

#include "tensorflow/core/framework/node_def_util.h"
#include "xla/shape_util.h"

namespace nv_norms {
namespace xla_call {

std::string CallFormat(const tensorflow::OpKernelConstruction& ctx) {
  std::string format;
  tensorflow::TryGetNodeAttr(ctx.def(), kCallFormat, &format);
  return format;
}

Placement::Placement(const Attributes& attributes, int rank, const std::string& format)
    : attributes_(attributes) {
  const char* const other = attributes.channels_last ? "NC..." : "N...C";
  if (attributes.over_axes() || rank < 3 || format != other) return;
  std::vector<int64_t> last_to_first = {0, rank - 1};
  std::vector<int64_t> first_to_last = {0};
  for (int i = 1; i < rank - 1; ++i) {
    last_to_first.push_back(i);
    first_to_last.push_back(i + 1);
  }
  first_to_last.push_back(1);
  there_ = attributes.channels_last ? last_to_first : first_to_last;
  back_ = attributes.channels_last ? first_to_last : last_to_first;
  attributes_.channels_last = !attributes.channels_last;
}

void Placement::Place(Operand* operand) const {
  if (there_.empty()) return;
  operand->value = xla::Transpose(operand->value, there_);
  operand->shape = xla::ShapeUtil::PermuteDimensions(there_, operand->shape);
  const tensorflow::TensorShape before = operand->bounds;
  for (int i = 0; i < before.dims(); ++i) operand->bounds.set_dim(i, before.dim_size(there_[i]));
}

xla::XlaOp Placement::Replace(xla::XlaOp result) const {
  return back_.empty() ? result : xla::Transpose(result, back_);
}

}  // namespace xla_call
}  // namespace nv_norms
