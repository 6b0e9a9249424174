#include "kernels/tensorflow/gradient_op.h"

#include "absl/strings/str_cat.h"

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
  tensorflow::DataType type;
  OP_REQUIRES_OK(ctx, ctx->GetAttr("dx_type", &type));
  dx_type_ = ToDType(type);
  OP_REQUIRES_OK(ctx, ctx->GetAttr("param_type", &type));
  param_type_ = ToDType(type);
  OP_REQUIRES_OK(ctx, ctx->GetAttr("num_dx", &num_dx_));
  OP_REQUIRES_OK(ctx, ctx->GetAttr("num_dscale", &num_dscale_));
  OP_REQUIRES_OK(ctx, ctx->GetAttr("num_doffset", &num_doffset_));
  OP_REQUIRES(ctx, num_dx_ <= 1 && num_dscale_ <= 1 && num_doffset_ <= 1,
              absl::InvalidArgumentError(absl::StrCat("num_dx, num_dscale, num_doffset are ",
                                                      num_dx_, ", ", num_dscale_, ", ",
                                                      num_doffset_, ": expected 0 or 1 each")));
}

void GradientOp::Compute(OpKernelContext* ctx) {
  const Tensor& dy = ctx->input(0);
  const Tensor& x = ctx->input(1);
  OP_REQUIRES_OK(ctx, CheckShape("dy", dy, x.shape()));
  BackwardProblem problem;
  problem.formula = attributes_.formula;
  problem.dy = ToDType(dy.dtype());
  problem.x = ToDType(x.dtype());
  problem.param = problem.x;
  OP_REQUIRES_OK(ctx, MakeGeometry(attributes_, x.shape(), &problem.geometry));

  BackwardBuffers buffers;
  buffers.dy = dy.data();
  buffers.x = x.data();
  int input = 2;
  if (attributes_.has_scale) {
    const Tensor& scale = ctx->input(input++);
    OP_REQUIRES_OK(ctx, CheckParam("scale", scale, problem.geometry, x.shape()));
    problem.param = ToDType(scale.dtype());
    buffers.gamma = scale.data();
  }
  const TensorShape stat_shape = StatShape(attributes_, x.shape());
  if (problem.formula != Formula::kRms) {
    const Tensor& mean = ctx->input(input++);
    OP_REQUIRES_OK(ctx, CheckShape("mean", mean, stat_shape));
    buffers.mean = mean.data();
  }
  const Tensor& rstd = ctx->input(input++);
  OP_REQUIRES_OK(ctx, CheckShape("rstd", rstd, stat_shape));
  buffers.rstd = rstd.data();

  // No output takes an input's buffer: dy is read again after dx is written.
  const TensorShape param_shape = ParamShape(attributes_, x.shape());
  int output = 0;
  bool nothing = true;
  const auto allocate = [&](int wanted, const TensorShape& shape, void** data) -> absl::Status {
    if (wanted == 0) return absl::OkStatus();
    Tensor* tensor = nullptr;
    TF_RETURN_IF_ERROR(ctx->allocate_output(output++, shape, &tensor));
    *data = tensor->data();
    nothing = nothing && tensor->NumElements() == 0;
    return absl::OkStatus();
  };
  // The type of an output that is not wanted must not make the computation wider.
  if (num_dx_ != 0) problem.dx = dx_type_;
  if (num_dscale_ + num_doffset_ != 0) problem.dparam = param_type_;
  OP_REQUIRES_OK(ctx, allocate(num_dx_, x.shape(), &buffers.dx));
  OP_REQUIRES_OK(ctx, allocate(num_dscale_, param_shape, &buffers.dgamma));
  OP_REQUIRES_OK(ctx, allocate(num_doffset_, param_shape, &buffers.dbeta));
  if (nothing) return;
  OP_REQUIRES_OK(ctx, Run(ctx, problem, buffers));
}

}  // namespace nv_norms
