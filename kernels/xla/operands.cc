#include "kernels/xla/operands.h"

#include "absl/algorithm/container.h"
#include "xla/shape_util.h"

namespace nv_norms {
namespace xla_call {
namespace {

xla::Shape RowMajor(xla::PrimitiveType type, const tensorflow::TensorShape& shape) {
  std::vector<int64_t> dims(shape.dims());
  for (int i = 0; i < shape.dims(); ++i) dims[i] = shape.dim_size(i);
  return xla::ShapeUtil::MakeShapeWithDescendingLayout(type, dims);
}

}  // namespace

absl::Status MakeOperand(xla::XlaOp value, const xla::Shape& shape, Operand* out) {
  out->value = value;
  out->shape = shape;
  for (int64_t dim : out->shape.dimensions()) {
    TF_RETURN_IF_ERROR(out->bounds.AddDimWithStatus(dim));
  }
  return absl::OkStatus();
}

bool AnyDynamic(const std::vector<Operand>& operands) {
  return absl::c_any_of(operands, [](const Operand& o) { return o.shape.is_dynamic(); });
}

std::vector<xla::XlaOp> Call(xla::XlaBuilder* builder, const std::string& target,
                             const std::vector<Operand>& operands,
                             const std::vector<Result>& results, int64_t workspace,
                             const std::string& attributes) {
  std::vector<xla::XlaOp> values;
  std::vector<xla::Shape> operand_shapes;
  for (const Operand& operand : operands) {
    values.push_back(operand.value);
    operand_shapes.push_back(RowMajor(operand.shape.element_type(), operand.bounds));
  }
  std::vector<xla::Shape> result_shapes;
  for (const Result& result : results) {
    result_shapes.push_back(RowMajor(result.type, result.shape));
  }
  if (workspace > 0) {
    result_shapes.push_back(RowMajor(xla::U8, tensorflow::TensorShape({workspace})));
  }
  // No result takes an operand's buffer: XLA would have to, and would copy an x that the gradient
  // reads again.
  const xla::XlaOp tuple = xla::CustomCallWithLayout(
      builder, target, values, xla::ShapeUtil::MakeTupleShape(result_shapes), operand_shapes,
      attributes, /*has_side_effect=*/false, /*output_operand_aliasing=*/{}, /*literal=*/nullptr,
      xla::CustomCallSchedule::SCHEDULE_NONE, xla::CustomCallApiVersion::API_VERSION_TYPED_FFI);
  std::vector<xla::XlaOp> out;
  for (size_t i = 0; i < results.size(); ++i) {
    out.push_back(xla::GetTupleElement(tuple, static_cast<int64_t>(i)));
  }
  return out;
}

}  // namespace xla_call
}  // namespace nv_norms
