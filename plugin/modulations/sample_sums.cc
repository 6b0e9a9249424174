#include "plugin/modulations/sample_sums.h"

#include <algorithm>

#include "plugin/graph/constants.h"

namespace nv_norms {

// The sizes that a tensor of sizes has, and the tensor whose Shape it is; empty if unknown.
std::vector<int64_t> SampleSums::SizesBehind(TensorId shape, TensorId* tensor) const {
  if (const auto sizes = IntConstant(view_, shape.node)) return sizes->values;
  if (view_.op(shape.node) != "Shape") return {};
  *tensor = view_.inputs(shape.node)[0];
  const TensorInfo& info = shapes_.Get(*tensor);
  return info.rank_known ? info.dims : std::vector<int64_t>();
}

std::optional<SampleSums::Sides> SampleSums::SidesOf(TensorId axes) const {
  if (view_.op(axes.node) != "BroadcastGradientArgs") return std::nullopt;
  const std::vector<TensorId>& shapes = view_.inputs(axes.node);
  Sides sides;
  sides.sizes = SizesBehind(shapes[axes.port], &sides.tensor);
  sides.others = SizesBehind(shapes[1 - axes.port], &sides.other);
  const size_t rank = parameters_.rank();
  if (sides.sizes.size() != rank || sides.others.size() != rank) return std::nullopt;
  return sides;
}

// Whether a Reshape is to the shape of one of these, given `dims` as far as they are known: what it
// reshapes has as many numbers.
bool SampleSums::IsToShapeOf(int reshape, const std::set<TensorId>& tensors,
                             const std::vector<int64_t>& dims) const {
  const int shape = view_.inputs(reshape)[1].node;
  if (view_.op(shape) == "Shape") return tensors.count(view_.inputs(shape)[0]) > 0;
  const auto sizes = IntConstant(view_, shape);
  return sizes && sizes->values.size() == dims.size() &&
         std::equal(dims.begin(), dims.end(), sizes->values.begin(),
                    [](int64_t dim, int64_t size) { return size == std::max<int64_t>(dim, -1); });
}

// Whether a Sum over constant axes is over all axes but the samples and the parameters'.
bool SampleSums::SumsPositions(int sum) const {
  const auto axes = IntConstant(view_, view_.inputs(sum)[1].node);
  if (!axes) return false;
  const auto reduced = AxesAmong(axes->values, parameters_.rank());
  if (!reduced) return false;
  for (int i = 0; i < parameters_.rank(); ++i) {
    const bool position = i > 0 && !parameters_.varies[i];
    const bool any = parameters_.y[i] == 1 && position;
    if (!any && (*reduced)[i] != position) return false;
  }
  return true;
}

std::vector<int64_t> SampleSums::DimsOfSum(int sum) const {
  const auto reduced =
      *AxesAmong(IntConstant(view_, view_.inputs(sum)[1].node)->values, parameters_.rank());
  const bool keeps = view_.GetBool(sum, "keep_dims", false);
  const std::vector<int64_t> all = parameters_.Dims(parameters_.y[0]);
  std::vector<int64_t> dims;
  for (int i = 0; i < parameters_.rank(); ++i) {
    if (keeps || !reduced[i]) dims.push_back(all[i]);
  }
  return dims;
}

std::vector<SampleSum> SampleSums::Behind(int sum, TensorId parameter,
                                          const std::set<TensorId>& likes) const {
  if (view_.op(sum) != "Sum" || HasOwnGradient(view_, sum)) return {};
  if (SumsPositions(sum)) return {{sum, sum, DimsOfSum(sum), {}}};
  const auto sides = SidesOf(view_.inputs(sum)[1]);
  if (!sides) return {};
  for (int i = 1; i < parameters_.rank(); ++i) {
    const int64_t size = parameters_.varies[i] ? parameters_.y[i] : 1;
    if (sides->sizes[i] != size || (parameters_.varies[i] && sides->others[i] != size)) return {};
  }
  const bool open = sides->sizes[0] < 0 || sides->sizes[0] != sides->others[0];
  if (open && (sides->tensor != parameter || likes.count(sides->other) == 0)) return {};
  const std::vector<int64_t> dims = parameters_.Dims(parameters_.y[0]);
  std::vector<SampleSum> sums;
  for (const Consumer& c : view_.consumers(sum)) {
    if (!view_.live(c.node)) continue;
    if (view_.op(c.node) != "Reshape" || c.slot != 0 || HasOwnGradient(view_, c.node)) return {};
    if (open ? !IsToShapeOf(c.node, {parameter}, dims)
             : !parameters_.Fit(shapes_.Get({c.node, 0}))) {
      return {};
    }
    sums.push_back({c.node, sum, dims, open ? parameter : TensorId()});
  }
  return sums;
}

TensorId SampleSums::BeforeUndoing(TensorId gradient, TensorId parameter,
                                   const std::set<TensorId>& likes, std::vector<int>* way) const {
  const int reshape = gradient.node;
  if (view_.op(reshape) != "Reshape" || HasOwnGradient(view_, reshape) ||
      !IsToShapeOf(reshape, likes, parameters_.y)) {
    return gradient;
  }
  const int sum = view_.inputs(reshape)[0].node;
  if (view_.op(sum) != "Sum" || HasOwnGradient(view_, sum)) return gradient;
  const auto sides = SidesOf(view_.inputs(sum)[1]);
  if (!sides || likes.count(sides->tensor) == 0 || sides->other != parameter) return gradient;
  for (int i = 1; i < parameters_.rank(); ++i) {
    const int64_t other = parameters_.varies[i] ? sides->sizes[i] : 1;
    if (sides->others[i] != other) return gradient;
  }
  way->insert(way->end(), {reshape, sum});
  return view_.inputs(sum)[0];
}

}  // namespace nv_norms
