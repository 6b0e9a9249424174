#include "kernels/tensorflow/shape_functions.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace nv_norms {
namespace {

using tensorflow::shape_inference::InferenceContext;

REGISTER_OP("FusedLayerNorm")
    .Input("x: T")
    .Input("scale: num_scale * P")
    .Input("offset: num_offset * P")
    .Output("y: out_type")
    .Output("mean: U")
    .Output("rstd: U")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("P: {half, bfloat16, float, double} = DT_FLOAT")
    .Attr("out_type: {half, bfloat16, float, double}")
    .Attr("U: {float, double} = DT_FLOAT")
    .Attr("num_scale: int >= 0")
    .Attr("num_offset: int >= 0")
    .Attr("axis: list(int) = [-1]")
    .Attr("epsilon: float = 0.001")
    .Attr("epsilon_low: float = 0.0")
    .Attr("subtract_mean: bool = true")
    .Attr("per_sample: bool = false")
    .SetShapeFn([](InferenceContext* c) { return LayerNormShape(c, /*with_mean=*/true); })
    .Doc(R"doc(
Layer normalization: y = (x - mean) * rstd * scale + offset over `axis`.

rstd = 1 / sqrt(var(x) + epsilon), var is the biased variance. Without `subtract_mean`
y = x * rstd * scale + offset. mean and rstd have x's shape without `axis`.

scale, offset: at most one each; prod(x.shape[axis]) elements in any shape, in the order of the ascending axes, N times as many if per_sample.
U: double where T is double, else float.
axis: distinct axes of x, negative ones counted from the end.
epsilon: added to the variance, as double(epsilon) + double(epsilon_low).
per_sample: each sample has a scale and an offset of its own, and `axis` are the last axes of x. What has one sample, x too, is broadcast to as many as the others have, N.
)doc");

REGISTER_OP("FusedRMSNorm")
    .Input("x: T")
    .Input("scale: num_scale * P")
    .Input("offset: num_offset * P")
    .Output("y: out_type")
    .Output("rstd: U")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("P: {half, bfloat16, float, double} = DT_FLOAT")
    .Attr("out_type: {half, bfloat16, float, double}")
    .Attr("U: {float, double} = DT_FLOAT")
    .Attr("num_scale: int >= 0")
    .Attr("num_offset: int >= 0")
    .Attr("axis: list(int) = [-1]")
    .Attr("epsilon: float = 0.001")
    .Attr("epsilon_low: float = 0.0")
    .Attr("per_sample: bool = false")
    .SetShapeFn([](InferenceContext* c) { return LayerNormShape(c, /*with_mean=*/false); })
    .Doc(R"doc(
Root mean square normalization: y = x * rstd * scale + offset over `axis`, rstd = 1 / sqrt(mean(x^2) + epsilon).

scale, offset: at most one each; prod(x.shape[axis]) elements in any shape, in the order of the ascending axes, N times as many if per_sample.
U: double where T is double, else float.
axis: distinct axes of x, negative ones counted from the end.
epsilon: added to the mean square, as double(epsilon) + double(epsilon_low).
per_sample: each sample has a scale and an offset of its own, and `axis` are the last axes of x. What has one sample, x too, is broadcast to as many as the others have, N.
)doc");

REGISTER_OP("FusedInstanceNorm")
    .Input("x: T")
    .Input("scale: num_scale * P")
    .Input("offset: num_offset * P")
    .Output("y: out_type")
    .Output("mean: U")
    .Output("rstd: U")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("P: {half, bfloat16, float, double} = DT_FLOAT")
    .Attr("out_type: {half, bfloat16, float, double}")
    .Attr("U: {float, double} = DT_FLOAT")
    .Attr("num_scale: int >= 0")
    .Attr("num_offset: int >= 0")
    .Attr("data_format: {'N...C', 'NC...'} = 'N...C'")
    .Attr("epsilon: float = 0.001")
    .Attr("epsilon_low: float = 0.0")
    .Attr("negative_slope: float = 1.0")
    .Attr("silu: bool = false")
    .Attr("per_sample: bool = false")
    .SetShapeFn([](InferenceContext* c) { return GroupNormShape(c, -1); })
    .Doc(R"doc(
Instance normalization: y = (x - mean) * rstd * scale + offset, mean and variance over the spatial axes.

rstd = 1 / sqrt(var(x) + epsilon), var is the biased variance. mean and rstd are [N, C].

scale, offset: at most one each; C elements in any shape, N * C if per_sample.
U: double where T is double, else float.
epsilon: added to the variance, as double(epsilon) + double(epsilon_low).
negative_slope: a finite number; y is multiplied by it where it is not positive. 1: it stays. 0: as relu, y is 0 there.
silu: y is multiplied by its sigmoid; not beside a negative_slope.
per_sample: each sample has a scale and an offset of its own. What has one sample, x too, is broadcast to as many as the others have, N.
)doc");

REGISTER_OP("FusedGroupNorm")
    .Input("x: T")
    .Input("scale: num_scale * P")
    .Input("offset: num_offset * P")
    .Output("y: out_type")
    .Output("mean: U")
    .Output("rstd: U")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("P: {half, bfloat16, float, double} = DT_FLOAT")
    .Attr("out_type: {half, bfloat16, float, double}")
    .Attr("U: {float, double} = DT_FLOAT")
    .Attr("num_scale: int >= 0")
    .Attr("num_offset: int >= 0")
    .Attr("groups: int >= 1")
    .Attr("data_format: {'N...C', 'NC...'} = 'N...C'")
    .Attr("epsilon: float = 0.001")
    .Attr("epsilon_low: float = 0.0")
    .Attr("negative_slope: float = 1.0")
    .Attr("silu: bool = false")
    .Attr("per_sample: bool = false")
    .SetShapeFn([](InferenceContext* c) {
      int64_t groups;
      TF_RETURN_IF_ERROR(c->GetAttr("groups", &groups));
      return GroupNormShape(c, groups);
    })
    .Doc(R"doc(
Group normalization: y = (x - mean) * rstd * scale + offset, mean and variance over the spatial axes and C / groups channels.

rstd = 1 / sqrt(var(x) + epsilon), var is the biased variance. mean and rstd are [N, groups].

scale, offset: at most one each; C elements in any shape, N * C if per_sample.
U: double where T is double, else float.
groups: divides the number of channels.
epsilon: added to the variance, as double(epsilon) + double(epsilon_low).
negative_slope: a finite number; y is multiplied by it where it is not positive. 1: it stays. 0: as relu, y is 0 there.
silu: y is multiplied by its sigmoid; not beside a negative_slope.
per_sample: each sample has a scale and an offset of its own. What has one sample, x too, is broadcast to as many as the others have, N.
)doc");

}  // namespace
}  // namespace nv_norms
