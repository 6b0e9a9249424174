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

absl::Status Repeat(const TensorShape& shape, Operand* one) {
  if (one->shape.is_dynamic()) {
    return absl::UnimplementedError(
        absl::StrCat("one sample of dynamic shape ", one->bounds.DebugString(),
                     " beside others: expected a static shape inside XLA"));
  }
  std::vector<int64_t> dims;
  for (const auto& dim : shape) dims.push_back(dim.size);
  const std::vector<int64_t> sample(dims.begin() + 1, dims.end());
  const xla::XlaOp all = xla::Broadcast(xla::Reshape(one->value, sample), {dims[0]});
  Operand repeated;
  TF_RETURN_IF_ERROR(
      MakeOperand(all, xla::ShapeUtil::MakeShape(one->shape.element_type(), dims), &repeated));
  *one = repeated;
  return absl::OkStatus();
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

xla::XlaOp SumOfSamples(xla::XlaOp parts, const TensorShape& x, xla::PrimitiveType parts_type,
                        xla::PrimitiveType out_type) {
  const xla::XlaComputation add = xla::CreateScalarAddComputation(parts_type, parts.builder());
  const xla::XlaOp sum = xla::Reduce(parts, xla::Zero(parts.builder(), parts_type), add, {0});
  std::vector<int64_t> dims;
  for (const auto& dim : x) dims.push_back(dim.size);
  return xla::ConvertElementType(xla::Reshape(sum, dims), out_type);
}

}  // namespace xla_call
}  // namespace nv_norms
