#include "kernels/tensorflow/gradient_op.h"

#include "absl/strings/str_cat.h"
#include "kernels/tensorflow/samples.h"

namespace nv_norms {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

namespace {

absl::Status CheckShape(const char* name, const Tensor& tensor, const TensorShape& expected) {
  if (tensor.shape() == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " has shape ", tensor.shape().DebugString(),
                                                 ", expected ", expected.DebugString()));
}

}  // namespace

GradientOp::GradientOp(OpKernelConstruction* ctx, Kind kind) : OpKernel(ctx) {
  OP_REQUIRES_OK(ctx, ReadAttributes(ctx, kind, /*forward=*/false, &attributes_));
  OP_REQUIRES_OK(ctx, ReadWanted(ctx, &wanted_));
}

void GradientOp::Compute(OpKernelContext* ctx) {
  const Tensor& dy = ctx->input(0);
  const Tensor& x = ctx->input(1);
  Inputs inputs(ctx, attributes_, 1, &dy, [&](void* to, const void* from, int64_t bytes) {
    return Copy(ctx, to, from, bytes);
  });
  const TensorShape& shape = inputs.y_shape();
  OP_REQUIRES_OK(ctx, CheckShape("dy", dy, shape));
  BackwardProblem problem;
  problem.formula = attributes_.formula;
  problem.activation = attributes_.activation;
  problem.dy = ToDType(dy.dtype());
  problem.x = ToDType(x.dtype());
  problem.dx = problem.param = problem.x;
  OP_REQUIRES_OK(ctx, MakeGeometry(attributes_, shape, &problem.geometry));

  BackwardBuffers buffers;
  buffers.dy = dy.data();
  OP_REQUIRES_OK(ctx, inputs.X(&buffers.x));
  OP_REQUIRES_OK(ctx, inputs.Scale(problem.geometry, &problem.param, &buffers.gamma));
  OP_REQUIRES_OK(ctx, inputs.Offset(problem.geometry, &problem.param, &buffers.beta));
  const TensorShape stat_shape = StatShape(attributes_, shape);
  int input = 2 + attributes_.has_scale + attributes_.has_offset;
  if (problem.formula != Formula::kRms) {
    const Tensor& mean = ctx->input(input++);
    OP_REQUIRES_OK(ctx, CheckShape("mean", mean, stat_shape));
    buffers.mean = mean.data();
  }
  const Tensor& rstd = ctx->input(input++);
  OP_REQUIRES_OK(ctx, CheckShape("rstd", rstd, stat_shape));
  buffers.rstd = rstd.data();

  // No output takes an input's buffer: dy is read again after dx is written.
  const TensorShape param_shape = ParamShape(attributes_, shape);
  int output = 0;
  bool nothing = true;
  const auto allocate = [&](bool wanted, const TensorShape& shape, void** data) -> absl::Status {
    if (!wanted) return absl::OkStatus();
    Tensor* tensor = nullptr;
    TF_RETURN_IF_ERROR(ctx->allocate_output(output++, shape, &tensor));
    *data = tensor->data();
    nothing = nothing && tensor->NumElements() == 0;
    return absl::OkStatus();
  };
  // The type of an output that is not wanted makes the computation no wider, and asks for no other
  // kernel.
  if (wanted_.dx) problem.dx = ToDType(wanted_.dx_type);
  if (wanted_.dscale || wanted_.doffset) problem.dparam = ToDType(wanted_.param_type);
  OP_REQUIRES_OK(ctx, allocate(wanted_.dx, x.shape(), &buffers.dx));
  OP_REQUIRES_OK(ctx, allocate(wanted_.dscale, param_shape, &buffers.dgamma));
  OP_REQUIRES_OK(ctx, allocate(wanted_.doffset, param_shape, &buffers.dbeta));
  if (nothing) return;
  // Of the one sample that stands for many, dx is the sum of theirs.
  Tensor parts;
  void* const dx = buffers.dx;
  const bool summed = wanted_.dx && x.shape() != shape;
  if (summed) {
    const bool wide = problem.x == DType::kDouble || problem.dx == DType::kDouble;
    const tensorflow::DataType type = wide ? tensorflow::DT_DOUBLE : tensorflow::DT_FLOAT;
    OP_REQUIRES_OK(ctx, ctx->allocate_temp(type, shape, &parts));
    problem.dx = ToDType(type);
    buffers.dx = parts.data();
  }
  OP_REQUIRES_OK(ctx, Run(ctx, problem, buffers));
  if (!summed) return;
  BackwardProblem sum;
  BackwardBuffers of_sum;
  OP_REQUIRES_OK(ctx, SumOfSamples(parts, x.NumElements(), problem.stat(), buffers.rstd,
                                   wanted_.dx_type, dx, &sum, &of_sum));
  OP_REQUIRES_OK(ctx, Run(ctx, sum, of_sum));
}

}  // namespace nv_norms
