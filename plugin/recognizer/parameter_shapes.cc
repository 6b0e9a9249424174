#include "plugin/recognizer/parameter_shapes.h"

#include <algorithm>

namespace nv_norms {
namespace {

bool AllKnown(const std::vector<int64_t>& sizes) {
  return std::all_of(sizes.begin(), sizes.end(), [](int64_t size) { return size >= 0; });
}

}  // namespace

std::optional<std::vector<int64_t>> ParameterShapes::OfSum(TensorId sum, const Dims& dims) const {
  const TensorInfo& info = shapes_.Get(sum);
  if (IsKnown(info)) return info.dims;
  std::vector<int64_t> shape;
  if (!shapes_.Get(x_).rank_known) {
    return IsReshapedNext(sum) ? std::make_optional(shape) : std::nullopt;
  }
  for (const Dim& dim : dims) {
    const Size size = axes_.size(dim);
    shape.push_back(size.known() ? size.coefficient() : -1);
  }
  return AllKnown(shape) ? std::make_optional(shape) : std::nullopt;
}

// To a known shape, perhaps behind Casts.
bool ParameterShapes::IsReshapedNext(TensorId sum) const {
  while (!keep_(sum.node) && view_.consumers(sum.node).size() == 1) {
    sum = {view_.consumers(sum.node)[0].node, 0};
    const TensorInfo& next = shapes_.Get(sum);
    if (view_.op(sum.node) == "Reshape") return next.rank_known && AllKnown(next.dims);
    if (view_.op(sum.node) != "Cast") return false;
  }
  return false;
}

std::optional<std::vector<int64_t>> ParameterShapes::ForReshape(TensorId sum, const Dims& dims,
                                                                const Dim& samples) const {
  const auto& consumers = view_.consumers(sum.node);
  const bool only_reshaped =
      !keep_(sum.node) && std::all_of(consumers.begin(), consumers.end(), [&](const Consumer& c) {
        return view_.op(c.node) == "Reshape" && c.slot == 0;
      });
  if (!only_reshaped) return std::nullopt;
  std::vector<int64_t> shape;
  const TensorInfo& info = shapes_.Get(sum);
  if (!info.rank_known) return shape;
  for (const Dim& dim : dims) {
    const Size size = axes_.size(dim);
    const bool known = size.known() && dim != samples;
    shape.push_back(known ? size.coefficient() : -1);
  }
  if (info.dims.size() != dims.size() || std::count(shape.begin(), shape.end(), -1) > 1) {
    return std::nullopt;
  }
  return shape;
}

}  // namespace nv_norms
