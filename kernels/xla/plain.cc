#include "kernels/xla/plain.h"

#include <algorithm>

#include "xla/hlo/builder/lib/arithmetic.h"
#include "xla/hlo/builder/lib/constants.h"

namespace nv_norms {
namespace xla_call {
namespace {

using xla::XlaOp;

// x with its axes as the formula wants them: a group norm's channels are split into two axes.
class View {
 public:
  View(const Attributes& attributes, const Operand& x, xla::PrimitiveType type)
      : type_(type), rank_(x.bounds.dims()) {
    for (int i = 0; i < rank_; ++i) dims_.push_back(x.bounds.dim_size(i));
    std::vector<bool> normalized;
    if (attributes.over_axes()) {
      (void)ResolveAxes(attributes.axis, rank_, &normalized);  // checked by MakeGeometry
      for (int i = 0; i < rank_; ++i) {
        if (normalized[i]) params_.push_back(i);
      }
      if (attributes.per_sample) params_.insert(params_.begin(), 0);
    } else {
      const int channel = attributes.channels_last ? rank_ - 1 : 1;
      const int64_t channels = dims_[channel];
      const int64_t groups = attributes.groups == -1 ? channels : attributes.groups;
      dims_[channel] = groups;
      dims_.insert(dims_.begin() + channel + 1, groups == 0 ? 1 : channels / groups);
      ++rank_;
      normalized.assign(rank_, true);
      normalized[0] = normalized[channel] = false;
      params_ = {channel, channel + 1};
      if (attributes.per_sample) params_.insert(params_.begin(), 0);
    }
    for (int i = 0; i < rank_; ++i) {
      (normalized[i] ? reduced_ : kept_).push_back(i);
    }
  }

  XlaOp Split(const Operand& x) const {
    const XlaOp wide = xla::ConvertElementType(x.value, type_);
    return rank_ == x.bounds.dims() ? wide : xla::Reshape(wide, dims_);
  }

  // Back to the axes that x has.
  XlaOp Merge(XlaOp value, const Operand& x) const {
    return rank_ == x.bounds.dims() ? value : xla::Reshape(value, x.shape.dimensions());
  }

  XlaOp Param(const Operand& param) const {
    std::vector<int64_t> dims;
    for (int64_t axis : params_) dims.push_back(dims_[axis]);
    return xla::Reshape(xla::ConvertElementType(param.value, type_), dims);
  }

  // How many elements of x share a statistic, known when it runs.
  XlaOp Count(XlaOp x) const {
    XlaOp count = xla::ConstantR0WithType(x.builder(), type_, 1.0);
    for (int64_t axis : reduced_) {
      count = count * xla::ConvertElementType(xla::GetDimensionSize(x, axis), type_);
    }
    return count;
  }

  XlaOp Sum(XlaOp x, const std::vector<int64_t>& axes) const {
    const xla::XlaComputation add = xla::CreateScalarAddComputation(type_, x.builder());
    return xla::Reduce(x, xla::Zero(x.builder(), type_), add, axes);
  }
  XlaOp Mean(XlaOp x) const { return xla::Div(Sum(x, reduced_), Count(x)); }

  // Sums for each parameter, in x's shape of them.
  XlaOp SumToParams(XlaOp x, const Attributes& attributes, const Operand& like) const {
    std::vector<int64_t> axes;
    for (int i = 0; i < rank_; ++i) {
      if (std::find(params_.begin(), params_.end(), i) == params_.end()) axes.push_back(i);
    }
    const XlaOp sum = Sum(x, axes);
    if (rank_ == like.bounds.dims()) return sum;
    std::vector<int64_t> dims;
    for (const auto& dim : ParamShape(attributes, like.bounds)) dims.push_back(dim.size);
    return xla::Reshape(sum, dims);
  }

  // For the broadcast of statistics and of parameters over x.
  std::vector<int64_t> kept() const { return For(kept_); }
  std::vector<int64_t> params() const { return For(params_); }
  xla::PrimitiveType type() const { return type_; }

 private:
  // XLA wants no mapping between equal ranks.
  std::vector<int64_t> For(const std::vector<int64_t>& axes) const {
    return static_cast<int>(axes.size()) == rank_ ? std::vector<int64_t>() : axes;
  }

  xla::PrimitiveType type_;
  int rank_;
  std::vector<int64_t> dims_;
  std::vector<int64_t> reduced_;
  std::vector<int64_t> kept_;
  std::vector<int64_t> params_;
};

xla::PrimitiveType Wider(xla::PrimitiveType type, const Operand* operand) {
  return operand != nullptr && operand->shape.element_type() == xla::F64 ? xla::F64 : type;
}

XlaOp Positive(XlaOp value) { return xla::Gt(value, xla::ZerosLike(value)); }

XlaOp Scaled(XlaOp value, double factor) { return xla::Mul(value, xla::ScalarLike(value, factor)); }

// A leaky relu that maps -inf to 0, not NaN, where the slope is 0; NaN stays.
XlaOp Activated(XlaOp value, const Activation& activation) {
  if (activation.none()) return value;
  if (activation.silu) return value * xla::Logistic(value);
  const double slope = activation.negative_slope;
  const XlaOp zeros = xla::ZerosLike(value);
  const XlaOp below =
      slope == 0 ? xla::Select(xla::Le(value, zeros), zeros, value) : Scaled(value, slope);
  return xla::Select(Positive(value), value, below);
}

// dy times the derivative at t.
XlaOp Derived(XlaOp t, XlaOp dy, const Activation& activation) {
  if (!activation.silu) return xla::Select(Positive(t), dy, Scaled(dy, activation.negative_slope));
  const XlaOp sigmoid = xla::Logistic(t);
  return dy * (sigmoid + t * sigmoid * (xla::ScalarLike(t, 1) - sigmoid));
}

xla::PrimitiveType StatType(const Operand& x) { return Wider(xla::F32, &x); }

}  // namespace

PlainStatistics Plain(const Attributes& attributes, const PlainForward& call) {
  xla::PrimitiveType type = Wider(Wider(StatType(*call.x), call.scale), call.offset);
  if (call.y_type == xla::F64) type = xla::F64;
  const View view(attributes, *call.x, type);
  const XlaOp x = view.Split(*call.x);
  const XlaOp epsilon = xla::ConstantR0WithType(x.builder(), type, attributes.epsilon);
  PlainStatistics out;
  XlaOp centered = x;
  if (attributes.formula != Formula::kRms) {
    const XlaOp mean = view.Mean(x);
    centered = xla::Sub(x, mean, view.kept());
    out.mean = xla::ConvertElementType(mean, StatType(*call.x));
  }
  const XlaOp rstd = xla::Rsqrt(view.Mean(centered * centered) + epsilon);
  out.rstd = xla::ConvertElementType(rstd, StatType(*call.x));
  XlaOp y = xla::Mul(attributes.formula == Formula::kCenter ? centered : x, rstd, view.kept());
  if (call.scale != nullptr) y = xla::Mul(y, view.Param(*call.scale), view.params());
  if (call.offset != nullptr) y = xla::Add(y, view.Param(*call.offset), view.params());
  y = Activated(y, attributes.activation);
  out.y = xla::ConvertElementType(view.Merge(y, *call.x), call.y_type);
  return out;
}

PlainGradients Plain(const Attributes& attributes, const PlainBackward& call) {
  xla::PrimitiveType type =
      Wider(Wider(Wider(StatType(*call.x), call.dy), call.scale), call.offset);
  if (call.dx_type == xla::F64 || call.param_type == xla::F64) type = xla::F64;
  const View view(attributes, *call.x, type);
  const XlaOp x = view.Split(*call.x);
  XlaOp dy = view.Split(*call.dy);
  const XlaOp rstd = xla::ConvertElementType(call.rstd->value, type);
  XlaOp centered = x;
  if (call.mean != nullptr) {
    centered = xla::Sub(x, xla::ConvertElementType(call.mean->value, type), view.kept());
  }
  const XlaOp xhat =
      xla::Mul(attributes.formula == Formula::kCenter ? centered : x, rstd, view.kept());
  if (!attributes.activation.none()) {
    XlaOp t = xhat;
    if (call.scale != nullptr) t = xla::Mul(t, view.Param(*call.scale), view.params());
    if (call.offset != nullptr) t = xla::Add(t, view.Param(*call.offset), view.params());
    dy = Derived(t, dy, attributes.activation);
  }
  XlaOp w = dy;
  if (call.scale != nullptr) w = xla::Mul(w, view.Param(*call.scale), view.params());
  const XlaOp slope = view.Mean(w * xhat) * rstd;
  XlaOp inner = w - xla::Mul(centered, slope, view.kept());
  if (attributes.formula == Formula::kCenter) inner = xla::Sub(inner, view.Mean(w), view.kept());
  PlainGradients out;
  const XlaOp dx = view.Merge(xla::Mul(inner, rstd, view.kept()), *call.x);
  out.dx = xla::ConvertElementType(dx, call.dx_type);
  out.dscale =
      xla::ConvertElementType(view.SumToParams(dy * xhat, attributes, *call.x), call.param_type);
  out.doffset = xla::ConvertElementType(view.SumToParams(dy, attributes, *call.x), call.param_type);
  return out;
}

}  // namespace xla_call
}  // namespace nv_norms
