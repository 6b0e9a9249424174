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
  OP_REQUIRES_OK(ctx, ReadWanted(ctx, &wanted_));
}

void GradientOp::Compute(OpKernelContext* ctx) {
  const Tensor& dy = ctx->input(0);
  const Tensor& x = ctx->input(1);
  OP_REQUIRES_OK(ctx, CheckShape("dy", dy, x.shape()));
  BackwardProblem problem;
  problem.formula = attributes_.formula;
  problem.activation = attributes_.activation;
  problem.dy = ToDType(dy.dtype());
  problem.x = ToDType(x.dtype());
  problem.dx = problem.param = problem.x;
  OP_REQUIRES_OK(ctx, MakeGeometry(attributes_, x.shape(), &problem.geometry));

  BackwardBuffers buffers;
  buffers.dy = dy.data();
  buffers.x = x.data();
  int input = 2;
  if (attributes_.has_scale) {
    const Tensor& scale = ctx->input(input++);
    OP_REQUIRES_OK(ctx, CheckParam("scale", scale.shape(), problem.geometry, x.shape()));
    problem.param = ToDType(scale.dtype());
    buffers.gamma = scale.data();
  }
  if (attributes_.has_offset) {
    const Tensor& offset = ctx->input(input++);
    OP_REQUIRES_OK(ctx, CheckParam("offset", offset.shape(), problem.geometry, x.shape()));
    problem.param = ToDType(offset.dtype());
    buffers.beta = offset.data();
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
  OP_REQUIRES_OK(ctx, Run(ctx, problem, buffers));
}

}  // namespace nv_norms
