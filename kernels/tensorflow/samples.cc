#include "kernels/tensorflow/samples.h"

#include <algorithm>
#include <utility>

namespace nv_norms {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

TensorShape ShapeOfY(const Attributes& attributes, const TensorShape& x, const TensorShape* scale,
                     const TensorShape* offset) {
  TensorShape y = x;
  if (!attributes.per_sample || x.dims() < 2) return y;
  const int64_t count = ParamsOfSample(attributes, x);
  for (const TensorShape* param : {scale, offset}) {
    if (param == nullptr || count <= 0 || y.dim_size(0) != 1) continue;
    if (param->num_elements() % count == 0) y.set_dim(0, param->num_elements() / count);
  }
  return y;
}

TensorShape ShapeOfY(const Attributes& attributes, const TensorShape& x, const TensorShape& dy) {
  TensorShape y = x;
  const bool broadcast = attributes.per_sample && x.dims() >= 2 && x.dim_size(0) == 1;
  if (broadcast && dy.dims() == x.dims()) y.set_dim(0, dy.dim_size(0));
  return y;
}

bool IsShared(const Attributes& attributes, const TensorShape& param, const TensorShape& y) {
  return attributes.per_sample && y.dims() >= 2 && y.dim_size(0) != 1 &&
         param.num_elements() == ParamsOfSample(attributes, y);
}

Inputs::Inputs(OpKernelContext* ctx, const Attributes& attributes, int x, const Tensor* dy,
               CopyBytes copy)
    : ctx_(ctx), attributes_(attributes), copy_(std::move(copy)), x_(&ctx->input(x)) {
  if (attributes.has_scale) scale_ = &ctx->input(++x);
  if (attributes.has_offset) offset_ = &ctx->input(++x);
  const auto shape_of = [](const Tensor* param) {
    return param == nullptr ? nullptr : &param->shape();
  };
  y_shape_ = dy != nullptr ? ShapeOfY(attributes, x_->shape(), dy->shape())
                           : ShapeOfY(attributes, x_->shape(), shape_of(scale_), shape_of(offset_));
}

absl::Status Inputs::X(const void** data) {
  *data = x_->data();
  return x_->shape() == y_shape_ ? absl::OkStatus() : Repeat(*x_, y_shape_, data);
}

absl::Status Inputs::Scale(const Geometry& geometry, DType* type, const void** data) {
  return Param("scale", scale_, geometry, type, data);
}

absl::Status Inputs::Offset(const Geometry& geometry, DType* type, const void** data) {
  return Param("offset", offset_, geometry, type, data);
}

absl::Status Inputs::Param(const char* name, const Tensor* param, const Geometry& geometry,
                           DType* type, const void** data) {
  if (param == nullptr) return absl::OkStatus();
  *type = ToDType(param->dtype());
  *data = param->data();
  if (IsShared(attributes_, param->shape(), y_shape_)) {
    return Repeat(*param, ParamShape(attributes_, y_shape_), data);
  }
  return CheckParam(name, param->shape(), geometry, x_->shape());
}

absl::Status Inputs::Repeat(const Tensor& one, const TensorShape& shape, const void** data) {
  repeated_.emplace_back();
  Tensor& all = repeated_.back();
  TF_RETURN_IF_ERROR(ctx_->allocate_temp(one.dtype(), shape, &all));
  char* const to = static_cast<char*>(all.data());
  *data = to;
  const int64_t bytes = static_cast<int64_t>(all.TotalBytes());
  if (bytes == 0) return absl::OkStatus();
  int64_t done = static_cast<int64_t>(one.TotalBytes());
  TF_RETURN_IF_ERROR(copy_(to, one.data(), done));
  while (done < bytes) {
    const int64_t more = std::min(done, bytes - done);
    TF_RETURN_IF_ERROR(copy_(to + done, to, more));
    done += more;
  }
  return absl::OkStatus();
}

absl::Status SumOfSamples(const Tensor& parts, int64_t size, DType stat, const void* rstd,
                          tensorflow::DataType out_type, void* out, BackwardProblem* problem,
                          BackwardBuffers* buffers) {
  TF_RETURN_IF_ERROR(ToTensorFlow(
      LayerNormGeometry({parts.dim_size(0), size}, {1}, /*per_sample=*/false, &problem->geometry)));
  problem->dy = ToDType(parts.dtype());
  problem->x = problem->dx = problem->param = stat;
  problem->dparam = ToDType(out_type);
  buffers->dy = buffers->x = parts.data();
  problem->formula = Formula::kRms;  // RMS norms have no mean
  buffers->rstd = rstd;
  buffers->dbeta = out;
  return absl::OkStatus();
}

}  // namespace nv_norms
