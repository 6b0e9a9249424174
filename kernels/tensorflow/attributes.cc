#include "kernels/tensorflow/attributes.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/util/overflow.h"

namespace nv_norms {

using tensorflow::DataType;
using tensorflow::OpKernelConstruction;
using tensorflow::TensorShape;

namespace {

absl::Status ReadActivation(OpKernelConstruction* ctx, Activation* out) {
  float slope;
  TF_RETURN_IF_ERROR(ctx->GetAttr("negative_slope", &slope));
  TF_RETURN_IF_ERROR(ctx->GetAttr("silu", &out->silu));
  if (!std::isfinite(slope)) {
    return absl::InvalidArgumentError(
        absl::StrCat("negative_slope is ", slope, ", expected a finite number"));
  }
  if (out->silu && slope != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("negative_slope is ", slope, ", expected 1 beside silu"));
  }
  out->negative_slope = slope;
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadAttributes(OpKernelConstruction* ctx, Kind kind, bool forward, Attributes* out) {
  out->kind = kind;
  const bool of_channels = !out->over_axes();
  if (!of_channels) {
    TF_RETURN_IF_ERROR(ctx->GetAttr("axis", &out->axis));
  } else {
    TF_RETURN_IF_ERROR(ReadActivation(ctx, &out->activation));
    std::string data_format;
    TF_RETURN_IF_ERROR(ctx->GetAttr("data_format", &data_format));
    out->channels_last = data_format == "N...C";
  }
  TF_RETURN_IF_ERROR(ctx->GetAttr("per_sample", &out->per_sample));
  if (kind == Kind::kGroupNorm) TF_RETURN_IF_ERROR(ctx->GetAttr("groups", &out->groups));
  if (kind == Kind::kRMSNorm) out->formula = Formula::kRms;
  if (kind == Kind::kLayerNorm) {
    bool subtract_mean;
    TF_RETURN_IF_ERROR(ctx->GetAttr("subtract_mean", &subtract_mean));
    if (!subtract_mean) out->formula = Formula::kScaleOnly;
  }
  int num_scale;
  TF_RETURN_IF_ERROR(ctx->GetAttr("num_scale", &num_scale));
  int num_offset = 0;
  if (forward || of_channels) TF_RETURN_IF_ERROR(ctx->GetAttr("num_offset", &num_offset));
  if (forward) {
    float epsilon;
    float epsilon_low;
    TF_RETURN_IF_ERROR(ctx->GetAttr("epsilon", &epsilon));
    TF_RETURN_IF_ERROR(ctx->GetAttr("epsilon_low", &epsilon_low));
    out->epsilon = static_cast<double>(epsilon) + static_cast<double>(epsilon_low);
    if (!(out->epsilon >= 0) || !std::isfinite(out->epsilon)) {
      return absl::InvalidArgumentError(
          absl::StrCat("epsilon is ", out->epsilon, ", expected a finite number of at least 0"));
    }
  }
  if (num_scale > 1 || num_offset > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("at most one scale and one offset, got ", num_scale, " and ", num_offset));
  }
  out->has_scale = num_scale == 1;
  out->has_offset = num_offset == 1;
  return CheckStatType(ctx);
}

absl::Status ReadWanted(OpKernelConstruction* ctx, Wanted* out) {
  TF_RETURN_IF_ERROR(ctx->GetAttr("dx_type", &out->dx_type));
  TF_RETURN_IF_ERROR(ctx->GetAttr("param_type", &out->param_type));
  int dx;
  int dscale;
  int doffset;
  TF_RETURN_IF_ERROR(ctx->GetAttr("num_dx", &dx));
  TF_RETURN_IF_ERROR(ctx->GetAttr("num_dscale", &dscale));
  TF_RETURN_IF_ERROR(ctx->GetAttr("num_doffset", &doffset));
  if (dx > 1 || dscale > 1 || doffset > 1) {
    return absl::InvalidArgumentError(absl::StrCat("num_dx, num_dscale, num_doffset are ", dx, ", ",
                                                   dscale, ", ", doffset,
                                                   ": expected 0 or 1 each"));
  }
  out->dx = dx == 1;
  out->dscale = dscale == 1;
  out->doffset = doffset == 1;
  return absl::OkStatus();
}

absl::Status CheckStatType(OpKernelConstruction* ctx) {
  DataType x;
  DataType stat;
  TF_RETURN_IF_ERROR(ctx->GetAttr("T", &x));
  TF_RETURN_IF_ERROR(ctx->GetAttr("U", &stat));
  const DataType expected =
      x == tensorflow::DT_DOUBLE ? tensorflow::DT_DOUBLE : tensorflow::DT_FLOAT;
  if (stat == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "U is ", tensorflow::DataTypeString(stat), ", expected ",
      tensorflow::DataTypeString(expected), " for x of ", tensorflow::DataTypeString(x)));
}

absl::Status MakeGeometry(const Attributes& attributes, const TensorShape& x, Geometry* out) {
  std::vector<int64_t> dims;
  int64_t others = 1;  // of an empty x, elements without the axes that are empty
  for (int i = 0; i < x.dims(); ++i) {
    dims.push_back(x.dim_size(i));
    others = tensorflow::MultiplyWithoutOverflow(others, std::max<int64_t>(dims.back(), 1));
  }
  if (others < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("x has shape ", x.DebugString(),
                     ", expected axes whose sizes but for 0 multiply to less than 2^63"));
  }
  if (attributes.over_axes()) {
    return ToTensorFlow(LayerNormGeometry(dims, attributes.axis, attributes.per_sample, out));
  }
  TF_RETURN_IF_ERROR(ToTensorFlow(GroupNormGeometry(
      dims, attributes.channels_last, attributes.groups, attributes.per_sample, out)));
  // Of no channels there may be any number of groups, but not more statistics than can be counted.
  if (tensorflow::MultiplyWithoutOverflow(dims[0], std::max<int64_t>(attributes.groups, 1)) < 0) {
    return absl::InvalidArgumentError(absl::StrCat("x has ", dims[0], " samples, of ",
                                                   attributes.groups,
                                                   " groups each: expected less than 2^63 in all"));
  }
  return absl::OkStatus();
}

namespace {

// x's axes that are normalized, or the others.
std::vector<int64_t> Axes(const Attributes& attributes, const TensorShape& x, bool normalized) {
  std::vector<bool> reduced;
  std::vector<int64_t> sizes;
  if (!ResolveAxes(attributes.axis, x.dims(), &reduced).ok()) return sizes;
  for (int i = 0; i < x.dims(); ++i) {
    if (reduced[i] == normalized) sizes.push_back(x.dim_size(i));
  }
  return sizes;
}

int64_t Channels(const Attributes& attributes, const TensorShape& x) {
  return x.dim_size(attributes.channels_last ? x.dims() - 1 : 1);
}

}  // namespace

int64_t ParamsOfSample(const Attributes& attributes, const TensorShape& x) {
  if (!attributes.over_axes()) return Channels(attributes, x);
  int64_t count = 1;  // negative if there are too many to be counted
  for (int64_t size : Axes(attributes, x, /*normalized=*/true)) {
    count = tensorflow::MultiplyWithoutOverflow(count, size);
  }
  return count;
}

TensorShape StatShape(const Attributes& attributes, const TensorShape& x) {
  if (attributes.over_axes()) return TensorShape(Axes(attributes, x, /*normalized=*/false));
  const int64_t groups = attributes.groups == -1 ? Channels(attributes, x) : attributes.groups;
  return TensorShape({x.dim_size(0), groups});
}

TensorShape ParamShape(const Attributes& attributes, const TensorShape& x) {
  TensorShape shape(attributes.over_axes() ? Axes(attributes, x, /*normalized=*/true)
                                           : std::vector<int64_t>{Channels(attributes, x)});
  if (attributes.per_sample) shape.InsertDim(0, x.dim_size(0));
  return shape;
}

absl::Status CheckParam(const char* name, const TensorShape& param, const Geometry& geometry,
                        const TensorShape& x) {
  if (param.num_elements() == geometry.params) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " has shape ", param.DebugString(),
                                                 ", expected ", geometry.params,
                                                 " elements for x of shape ", x.DebugString()));
}

DType ToDType(DataType type) {
  switch (type) {
    case tensorflow::DT_HALF:
      return DType::kHalf;
    case tensorflow::DT_BFLOAT16:
      return DType::kBfloat16;
    case tensorflow::DT_DOUBLE:
      return DType::kDouble;
    default:
      return DType::kFloat;
  }
}

absl::Status ToTensorFlow(const Status& status) {
  switch (status.code()) {
    case Status::Code::kOk:
      return absl::OkStatus();
    case Status::Code::kInvalidArgument:
      return absl::InvalidArgumentError(status.message());
    case Status::Code::kUnimplemented:
      return absl::UnimplementedError(status.message());
    case Status::Code::kInternal:
      break;
  }
  return absl::InternalError(status.message());
}

}  // namespace nv_norms
