#include "kernels/tensorflow/shape_functions.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace nv_norms {
namespace {

using tensorflow::shape_inference::InferenceContext;

// What all four have in common. Each output is a list that is empty where it is not wanted. How
// many it has is no default: TensorFlow strips attributes that are as the default from what it
// saves, and takes a length that is missing for 0 when it loads a function.
#define NV_NORMS_GRADIENT_OP(name)                           \
  REGISTER_OP(name)                                          \
      .Input("dy: Y")                                        \
      .Input("x: T")                                         \
      .Input("scale: num_scale * P")                         \
      .Attr("Y: {half, bfloat16, float, double}")            \
      .Attr("T: {half, bfloat16, float, double}")            \
      .Attr("P: {half, bfloat16, float, double} = DT_FLOAT") \
      .Attr("U: {float, double} = DT_FLOAT")                 \
      .Attr("dx_type: {half, bfloat16, float, double}")      \
      .Attr("param_type: {half, bfloat16, float, double}")   \
      .Attr("num_scale: int >= 0")                           \
      .Attr("num_dx: int >= 0")                              \
      .Attr("num_dscale: int >= 0")                          \
      .Attr("num_doffset: int >= 0")                         \
      .Output("dx: num_dx * dx_type")                        \
      .Output("dscale: num_dscale * param_type")             \
      .Output("doffset: num_doffset * param_type")

NV_NORMS_GRADIENT_OP("FusedLayerNormGrad")
    .Input("mean: U")
    .Input("rstd: U")
    .Attr("axis: list(int) = [-1]")
    .Attr("subtract_mean: bool = true")
    .Attr("per_sample: bool = false")
    .SetShapeFn([](InferenceContext* c) { return LayerNormGradShape(c, /*with_mean=*/true); })
    .Doc(R"doc(
Gradients of FusedLayerNorm with respect to x, scale and offset.

With w = dy * scale: dx = rstd * (w - mean(w) - xhat * mean(w * xhat)), dscale = sum(dy * xhat), doffset = sum(dy).

mean, rstd: as FusedLayerNorm gave them for x.
num_dx, num_dscale, num_doffset: 1 where that gradient is wanted, else 0.
per_sample: as the forward op had it.
dx: as x. dscale, doffset: as the axes of x in `axis`, ascending; behind N if per_sample, of as many samples as dy has.
There x may have one, of which dx is the gradient, and scale and offset, of which dscale and doffset are yet to be summed.
)doc");

NV_NORMS_GRADIENT_OP("FusedRMSNormGrad")
    .Input("rstd: U")
    .Attr("axis: list(int) = [-1]")
    .Attr("per_sample: bool = false")
    .SetShapeFn([](InferenceContext* c) { return LayerNormGradShape(c, /*with_mean=*/false); })
    .Doc(R"doc(
Gradients of FusedRMSNorm with respect to x, scale and offset.

With w = dy * scale: dx = rstd * (w - xhat * mean(w * xhat)), dscale = sum(dy * xhat), doffset = sum(dy).

rstd: as FusedRMSNorm gave it for x.
num_dx, num_dscale, num_doffset: 1 where that gradient is wanted, else 0.
per_sample: as the forward op had it.
dx: as x. dscale, doffset: as the axes of x in `axis`, ascending; behind N if per_sample, of as many samples as dy has.
There x may have one, of which dx is the gradient, and scale and offset, of which dscale and doffset are yet to be summed.
)doc");

NV_NORMS_GRADIENT_OP("FusedInstanceNormGrad")
    .Input("offset: num_offset * P")
    .Input("mean: U")
    .Input("rstd: U")
    .Attr("data_format: {'N...C', 'NC...'} = 'N...C'")
    .Attr("num_offset: int >= 0 = 0")
    .Attr("negative_slope: float = 1.0")
    .Attr("silu: bool = false")
    .Attr("per_sample: bool = false")
    .SetShapeFn([](InferenceContext* c) { return GroupNormGradShape(c, -1); })
    .Doc(R"doc(
Gradients of FusedInstanceNorm with respect to x, scale and offset.

dy is first multiplied by the derivative of the activation at t = xhat * scale + offset: by `negative_slope` where t is
not positive; where `silu` is true by s * (1 + t * (1 - s)), s = sigmoid(t).

offset: at most one; as the forward op had it where there is an activation, else not read.
mean, rstd: as FusedInstanceNorm gave them for x.
num_dx, num_dscale, num_doffset: 1 where that gradient is wanted, else 0.
negative_slope, silu, per_sample: as the forward op had them.
dx: as x. dscale, doffset: [C], or [N, C] if per_sample, of as many samples as dy has. There x may have one, of which
dx is the gradient, and scale and offset, of which dscale and doffset are yet to be summed.
)doc");

NV_NORMS_GRADIENT_OP("FusedGroupNormGrad")
    .Input("offset: num_offset * P")
    .Input("mean: U")
    .Input("rstd: U")
    .Attr("groups: int >= 1")
    .Attr("data_format: {'N...C', 'NC...'} = 'N...C'")
    .Attr("num_offset: int >= 0 = 0")
    .Attr("negative_slope: float = 1.0")
    .Attr("silu: bool = false")
    .Attr("per_sample: bool = false")
    .SetShapeFn([](InferenceContext* c) {
      int64_t groups;
      TF_RETURN_IF_ERROR(c->GetAttr("groups", &groups));
      return GroupNormGradShape(c, groups);
    })
    .Doc(R"doc(
Gradients of FusedGroupNorm with respect to x, scale and offset.

dy is first multiplied by the derivative of the activation at t = xhat * scale + offset: by `negative_slope` where t is
not positive; where `silu` is true by s * (1 + t * (1 - s)), s = sigmoid(t).

offset: at most one; as the forward op had it where there is an activation, else not read.
mean, rstd: as FusedGroupNorm gave them for x.
num_dx, num_dscale, num_doffset: 1 where that gradient is wanted, else 0.
negative_slope, silu, per_sample: as the forward op had them.
dx: as x. dscale, doffset: [C], or [N, C] if per_sample, of as many samples as dy has. There x may have one, of which
dx is the gradient, and scale and offset, of which dscale and doffset are yet to be summed.
)doc");

}  // namespace
}  // namespace nv_norms
