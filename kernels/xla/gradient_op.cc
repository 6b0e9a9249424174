#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
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
#include "tensorflow/compiler/tf2xla/type_util.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"

namespace nv_norms {
namespace xla_call {
namespace {

using tensorflow::TensorShape;
using tensorflow::XlaOpKernelContext;

// A dimension that is static in one tensor may be dynamic in the other.
absl::Status CheckShape(const char* name, const TensorShape& shape, const TensorShape& expected) {
  if (shape == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " has shape ", shape.DebugString(),
                                                 ", expected ", expected.DebugString()));
}

// Puts a gradient op into an XLA computation.
class GradientOp : public tensorflow::XlaOpKernel {
 public:
  GradientOp(tensorflow::OpKernelConstruction* ctx, Kind kind);
  void Compile(XlaOpKernelContext* ctx) override;

 private:
  absl::Status Build(XlaOpKernelContext* ctx);

  Attributes attributes_;
  const std::string call_format_;
  const bool on_gpu_;
  Wanted wanted_;
};

GradientOp::GradientOp(tensorflow::OpKernelConstruction* ctx, Kind kind)
    : XlaOpKernel(ctx), call_format_(CallFormat(*ctx)), on_gpu_(OnGpu(*ctx)) {
  OP_REQUIRES_OK(ctx, ReadAttributes(ctx, kind, /*forward=*/false, &attributes_));
  OP_REQUIRES_OK(ctx, ReadWanted(ctx, &wanted_));
}

void GradientOp::Compile(XlaOpKernelContext* ctx) { OP_REQUIRES_OK(ctx, Build(ctx)); }

absl::Status GradientOp::Build(XlaOpKernelContext* ctx) {
  std::vector<Operand> operands;
  TF_RETURN_IF_ERROR(GetOperands(ctx, &operands));
  const TensorShape one_shape = operands[1].bounds;  // of the graph's x
  int input = 2;
  Operand* scale = attributes_.has_scale ? &operands[input++] : nullptr;
  Operand* offset = attributes_.has_offset ? &operands[input++] : nullptr;
  TF_RETURN_IF_ERROR(RepeatSamples(attributes_,
                                   ShapeOfY(attributes_, one_shape, operands[0].bounds),
                                   &operands[1], {scale, offset}));
  PlainBackward plain;
  plain.dy = &operands[0];
  plain.x = &operands[1];
  plain.scale = scale;
  plain.offset = offset;
  const TensorShape& x_shape = plain.x->bounds;
  TF_RETURN_IF_ERROR(CheckShape("dy", plain.dy->bounds, x_shape));

  BackwardCall call;
  BackwardProblem& problem = call.problem;
  problem.formula = attributes_.formula;
  problem.activation = attributes_.activation;
  problem.dy = ToDType(ctx->input_type(0));
  problem.x = problem.dx = problem.param = ToDType(ctx->input_type(1));
  call.scale = attributes_.has_scale;
  call.offset = attributes_.has_offset;
  call.dx = wanted_.dx;
  call.dscale = wanted_.dscale;
  call.doffset = wanted_.doffset;
  TF_RETURN_IF_ERROR(MakeGeometry(attributes_, x_shape, &problem.geometry));
  if (call.scale) {
    problem.param = ToDType(ctx->input_type(2));
    TF_RETURN_IF_ERROR(CheckParam("scale", plain.scale->bounds, problem.geometry, x_shape));
  }
  if (call.offset) {
    problem.param = ToDType(ctx->input_type(call.scale ? 3 : 2));
    TF_RETURN_IF_ERROR(CheckParam("offset", plain.offset->bounds, problem.geometry, x_shape));
  }
  const TensorShape stat_shape = StatShape(attributes_, x_shape);
  if (call.mean()) {
    plain.mean = &operands[input++];
    TF_RETURN_IF_ERROR(CheckShape("mean", plain.mean->bounds, stat_shape));
  }
  plain.rstd = &operands[input++];
  TF_RETURN_IF_ERROR(CheckShape("rstd", plain.rstd->bounds, stat_shape));

  const TensorShape param_shape = ParamShape(attributes_, x_shape);
  std::vector<Result> results;
  const auto want = [&](bool wanted, tensorflow::DataType type, const TensorShape& shape,
                        DType* in_problem, xla::PrimitiveType* in_plain) -> absl::Status {
    if (!wanted) return absl::OkStatus();
    *in_problem = ToDType(type);
    TF_RETURN_IF_ERROR(tensorflow::DataTypeToPrimitiveType(type, in_plain));
    results.push_back({*in_plain, shape});
    return absl::OkStatus();
  };
  // Of the one sample that stands for many, dx is the sum of theirs.
  const bool summed = one_shape != x_shape;
  tensorflow::DataType dx_type = wanted_.dx_type;
  if (summed) {
    const bool wide = problem.x == DType::kDouble || dx_type == tensorflow::DT_DOUBLE;
    dx_type = wide ? tensorflow::DT_DOUBLE : tensorflow::DT_FLOAT;
  }
  TF_RETURN_IF_ERROR(want(call.dx, dx_type, x_shape, &problem.dx, &plain.dx_type));
  TF_RETURN_IF_ERROR(
      want(call.dscale, wanted_.param_type, param_shape, &problem.dparam, &plain.param_type));
  TF_RETURN_IF_ERROR(
      want(call.doffset, wanted_.param_type, param_shape, &problem.dparam, &plain.param_type));
  if (results.empty()) return absl::OkStatus();
  const auto set_dx = [&](xla::XlaOp dx) {
    ctx->SetOutput(0, summed ? SumOfSamples(dx, plain.dx_type, ctx->output_xla_type(0)) : dx);
  };

  if (problem.geometry.elements == 0 || AnyDynamic(operands)) {
    const PlainGradients out = Plain(attributes_, plain);
    if (call.dx) set_dx(out.dx);
    int output = call.dx ? 1 : 0;
    if (call.dscale) ctx->SetOutput(output++, out.dscale);
    if (call.doffset) ctx->SetOutput(output++, out.doffset);
    return absl::OkStatus();
  }

  const Placement placement(attributes_, x_shape.dims(), call_format_);
  for (Operand* operand : {&operands[0], &operands[1]}) placement.Place(operand);  // x_shape, too
  TF_RETURN_IF_ERROR(MakeGeometry(placement.attributes(), x_shape, &problem.geometry));
  if (call.dx) results[0].shape = x_shape;
  int64_t workspace = 0;
  if (on_gpu_) {
    TF_RETURN_IF_ERROR(
        ToTensorFlow(WorkspaceOnGpu(problem, call.dx, call.dscale || call.doffset, &workspace)));
    AllowSmallGraphs();
  }
  std::string attributes;
  TF_RETURN_IF_ERROR(ToTensorFlow(AttributesOf(call, &attributes)));
  const std::vector<xla::XlaOp> outputs =
      Call(ctx->builder(), kBackwardTarget, operands, results, workspace, attributes);
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (call.dx && i == 0) {
      set_dx(placement.Replace(outputs[i]));
    } else {
      ctx->SetOutput(static_cast<int>(i), outputs[i]);
    }
  }
  return absl::OkStatus();
}

[[maybe_unused]] const bool gradient_registered = RegisterOps<GradientOp>("Grad");

}  // namespace
}  // namespace xla_call
}  // namespace nv_norms
