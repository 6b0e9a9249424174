#include "kernels/tensorflow/forward_op.h"

#include "kernels/tensorflow/samples.h"

namespace nv_norms {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

ForwardOp::ForwardOp(OpKernelConstruction* ctx, Kind kind) : OpKernel(ctx) {
  OP_REQUIRES_OK(ctx, ReadAttributes(ctx, kind, /*forward=*/true, &attributes_));
}

void ForwardOp::Compute(OpKernelContext* ctx) {
  const Tensor& x = ctx->input(0);
  ForwardProblem problem;
  problem.formula = attributes_.formula;
  problem.epsilon = attributes_.epsilon;
  problem.activation = attributes_.activation;
  problem.x = ToDType(x.dtype());
  problem.y = ToDType(ctx->expected_output_dtype(0));
  problem.param = problem.x;
  Inputs inputs(
      ctx, attributes_, 0, /*dy=*/nullptr,
      [&](void* to, const void* from, int64_t bytes) { return Copy(ctx, to, from, bytes); });
  const TensorShape& shape = inputs.y_shape();
  OP_REQUIRES_OK(ctx, MakeGeometry(attributes_, shape, &problem.geometry));

  ForwardBuffers buffers;
  OP_REQUIRES_OK(ctx, inputs.X(&buffers.x));
  OP_REQUIRES_OK(ctx, inputs.Scale(problem.geometry, &problem.param, &buffers.gamma));
  OP_REQUIRES_OK(ctx, inputs.Offset(problem.geometry, &problem.param, &buffers.beta));

  Tensor* y = nullptr;
  OP_REQUIRES_OK(ctx, ctx->forward_input_or_allocate_output({0}, 0, shape, &y));
  buffers.y = y->data();
  // Nobody reads the statistics in inference.
  const TensorShape stat_shape = StatShape(attributes_, shape);
  const auto allocate = [&](int output, void** statistics) -> absl::Status {
    if (!ctx->output_required(output)) return absl::OkStatus();
    Tensor* tensor = nullptr;
    TF_RETURN_IF_ERROR(ctx->allocate_output(output, stat_shape, &tensor));
    *statistics = tensor->data();
    return absl::OkStatus();
  };
  int output = 1;
  if (problem.formula != Formula::kRms) OP_REQUIRES_OK(ctx, allocate(output++, &buffers.mean));
  OP_REQUIRES_OK(ctx, allocate(output, &buffers.rstd));
  if (y->NumElements() == 0 && stat_shape.num_elements() == 0) return;
  OP_REQUIRES_OK(ctx, Run(ctx, problem, buffers));
}

}  // namespace nv_norms
