#include <string>
#include <vector>

#include "kernels/tensorflow/attributes.h"
#include "kernels/tensorflow/samples.h"
#include "kernels/xla/call.h"
#include "kernels/xla/operands.h"
#include "kernels/xla/placement.h"
#include "kernels/xla/plain.h"
#include "kernels/xla/register_ops.h"
#include "kernels/xla/samples.h"
#include "kernels/xla/small_graphs.h"
#include "kernels/xla/workspace_gpu.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"

namespace nv_norms {
namespace xla_call {
namespace {

using tensorflow::XlaOpKernelContext;

// Puts a forward op into an XLA computation.
class ForwardOp : public tensorflow::XlaOpKernel {
 public:
  ForwardOp(tensorflow::OpKernelConstruction* ctx, Kind kind);
  void Compile(XlaOpKernelContext* ctx) override;

 private:
  absl::Status Build(XlaOpKernelContext* ctx);

  Attributes attributes_;
  const std::string call_format_;
  const bool on_gpu_;
};

ForwardOp::ForwardOp(tensorflow::OpKernelConstruction* ctx, Kind kind)
    : XlaOpKernel(ctx), call_format_(CallFormat(*ctx)), on_gpu_(OnGpu(*ctx)) {
  OP_REQUIRES_OK(ctx, ReadAttributes(ctx, kind, /*forward=*/true, &attributes_));
}

void ForwardOp::Compile(XlaOpKernelContext* ctx) { OP_REQUIRES_OK(ctx, Build(ctx)); }

absl::Status ForwardOp::Build(XlaOpKernelContext* ctx) {
  std::vector<Operand> operands;
  TF_RETURN_IF_ERROR(GetOperands(ctx, &operands));
  Operand& x = operands[0];
  ForwardCall call;
  ForwardProblem& problem = call.problem;
  problem.formula = attributes_.formula;
  problem.epsilon = attributes_.epsilon;
  problem.activation = attributes_.activation;
  problem.x = problem.param = ToDType(ctx->input_type(0));
  problem.y = ToDType(ctx->expected_output_dtype(0));
  call.scale = attributes_.has_scale;
  call.offset = attributes_.has_offset;
  int input = 1;
  Operand* scale = call.scale ? &operands[input++] : nullptr;
  Operand* offset = call.offset ? &operands[input++] : nullptr;
  const auto bounds_of = [](const Operand* param) {
    return param == nullptr ? nullptr : &param->bounds;
  };
  TF_RETURN_IF_ERROR(RepeatSamples(
      attributes_, ShapeOfY(attributes_, x.bounds, bounds_of(scale), bounds_of(offset)), &x,
      {scale, offset}));
  TF_RETURN_IF_ERROR(MakeGeometry(attributes_, x.bounds, &problem.geometry));

  PlainForward plain;
  plain.x = &x;
  plain.scale = scale;
  plain.offset = offset;
  plain.y_type = ctx->output_xla_type(0);
  if (call.scale || call.offset) problem.param = ToDType(ctx->input_type(1));
  for (const auto& [name, param] :
       {std::pair<const char*, const Operand*>{"scale", plain.scale}, {"offset", plain.offset}}) {
    if (param == nullptr) continue;
    TF_RETURN_IF_ERROR(CheckParam(name, param->bounds, problem.geometry, x.bounds));
  }

  if (problem.geometry.elements == 0 || AnyDynamic(operands)) {
    const PlainStatistics out = Plain(attributes_, plain);
    int output = 0;
    ctx->SetOutput(output++, out.y);
    if (call.mean()) ctx->SetOutput(output++, out.mean);
    ctx->SetOutput(output++, out.rstd);
    return absl::OkStatus();
  }

  const Placement placement(attributes_, x.bounds.dims(), call_format_);
  placement.Place(&x);
  TF_RETURN_IF_ERROR(MakeGeometry(placement.attributes(), x.bounds, &problem.geometry));
  const tensorflow::TensorShape stat_shape = StatShape(placement.attributes(), x.bounds);
  std::vector<Result> results = {{ctx->output_xla_type(0), x.bounds}};
  for (int i = 1; i < ctx->num_outputs(); ++i) {
    results.push_back({ctx->output_xla_type(i), stat_shape});
  }
  int64_t workspace = 0;
  if (on_gpu_) {
    TF_RETURN_IF_ERROR(ToTensorFlow(WorkspaceOnGpu(problem, &workspace)));
    AllowSmallGraphs();
  }
  std::string attributes;
  TF_RETURN_IF_ERROR(ToTensorFlow(AttributesOf(call, &attributes)));
  const std::vector<xla::XlaOp> outputs =
      Call(ctx->builder(), kForwardTarget, operands, results, workspace, attributes);
  ctx->SetOutput(0, placement.Replace(outputs[0]));
  for (size_t i = 1; i < outputs.size(); ++i) ctx->SetOutput(static_cast<int>(i), outputs[i]);
  return absl::OkStatus();
}

[[maybe_unused]] const bool forward_registered = RegisterOps<ForwardOp>("");

}  // namespace
}  // namespace xla_call
}  // namespace nv_norms
