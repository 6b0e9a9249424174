#include "kernels/xla/samples.h"

#include "absl/strings/str_cat.h"
#include "kernels/tensorflow/samples.h"
#include "xla/hlo/builder/lib/arithmetic.h"
#include "xla/hlo/builder/lib/constants.h"
#include "xla/shape_util.h"

namespace nv_norms {
namespace xla_call {

using tensorflow::TensorShape;

namespace {

// Of dynamic axes a Reshape would have to know which is which.
xla::XlaOp RepeatDynamic(xla::XlaOp one, int64_t times) {
  return xla::ConcatInDim(one.builder(), std::vector<xla::XlaOp>(times, one), 0);
}

absl::Status Repeat(const TensorShape& shape, Operand* one) {
  std::vector<int64_t> dims;
  for (const auto& dim : shape) dims.push_back(dim.size);
  xla::XlaOp all;
  if (!one->shape.is_dynamic()) {
    const std::vector<int64_t> sample(dims.begin() + 1, dims.end());
    all = xla::Broadcast(xla::Reshape(one->value, sample), {dims[0]});
  } else if (one->bounds.dims() == shape.dims() && one->bounds.dim_size(0) == 1 &&
             !one->shape.is_dynamic_dimension(0)) {
    all = RepeatDynamic(one->value, dims[0]);
  } else {
    return absl::UnimplementedError(
        absl::StrCat("one sample of dynamic shape ", one->bounds.DebugString(),
                     " beside others: expected no dynamic axis before it inside XLA"));
  }
  TF_ASSIGN_OR_RETURN(const xla::Shape repeated, all.builder()->GetShape(all));
  *one = Operand();
  return MakeOperand(all, repeated, one);
}

}  // namespace

absl::Status RepeatSamples(const Attributes& attributes, const TensorShape& y, Operand* x,
                           const std::vector<Operand*>& params) {
  if (x->bounds != y) TF_RETURN_IF_ERROR(Repeat(y, x));
  for (Operand* param : params) {
    if (param == nullptr || !IsShared(attributes, param->bounds, y)) continue;
    TF_RETURN_IF_ERROR(Repeat(ParamShape(attributes, y), param));
  }
  return absl::OkStatus();
}

xla::XlaOp SumOfSamples(xla::XlaOp parts, xla::PrimitiveType parts_type,
                        xla::PrimitiveType out_type) {
  const xla::XlaComputation add = xla::CreateScalarAddComputation(parts_type, parts.builder());
  const xla::XlaOp sum = xla::Reduce(parts, xla::Zero(parts.builder(), parts_type), add, {0});
  return xla::ConvertElementType(xla::Broadcast(sum, {1}), out_type);
}

}  // namespace xla_call
}  // namespace nv_norms
