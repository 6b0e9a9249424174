#include "plugin/modulations/sample_parameters.h"

#include <algorithm>

#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/node_def.pb.h"

namespace nv_norms {
namespace {

bool MayBeEqual(int64_t a, int64_t b) { return a == b || (a < 0 && b < 0); }

// Which axes a norm's parameters vary along; empty if these are not the last of at least three, or
// the channels of as many.
std::vector<bool> ParameterAxes(const GraphView& view, int norm, int rank) {
  constexpr int kLeastRank = 3;  // samples, positions, channels
  if (rank < kLeastRank) return {};
  std::vector<bool> varies(rank, false);
  const auto& attr = view.def(norm).attr();
  const auto axes = attr.find("axis");
  if (axes == attr.end()) {
    varies[view.GetString(norm, "data_format", "N...C") == "NC..." ? 1 : rank - 1] = true;
    return varies;
  }
  const auto& list = axes->second.list().i();
  varies = AxesAmong({list.begin(), list.end()}, rank).value_or(std::vector<bool>());
  if (varies.empty()) return varies;
  const bool last = varies.back() && !varies[1] && std::is_sorted(varies.begin(), varies.end());
  return last ? varies : std::vector<bool>();
}

}  // namespace

std::optional<std::vector<bool>> AxesAmong(const std::vector<int64_t>& axes, int rank) {
  std::vector<bool> among(rank, false);
  for (const int64_t axis : axes) {
    const int64_t at = axis < 0 ? axis + rank : axis;
    if (at < 0 || at >= rank) return std::nullopt;
    among[at] = true;
  }
  return among;
}

std::vector<int64_t> SampleParameters::Dims(int64_t samples) const {
  std::vector<int64_t> dims(rank(), 1);
  dims[0] = samples;
  for (int i = 1; i < rank(); ++i) {
    if (varies[i]) dims[i] = y[i];
  }
  return dims;
}

bool SampleParameters::Fit(const TensorInfo& info) const {
  if (!info.rank_known || static_cast<int>(info.dims.size()) != rank()) return false;
  const std::vector<int64_t> dims = Dims(info.dims[0]);
  return MayBeEqual(info.dims[0], y[0]) && info.dims == dims;
}

bool SampleParameters::FitY(const TensorInfo& info) const {
  return info.rank_known && static_cast<int>(info.dims.size()) == rank() &&
         std::equal(y.begin(), y.end(), info.dims.begin(), MayBeEqual);
}

std::optional<SampleParameters> SampleParametersOf(const GraphView& view, const Shapes& shapes,
                                                   int norm) {
  const TensorInfo& info = shapes.Get({norm, 0});
  if (!info.rank_known) return std::nullopt;
  SampleParameters parameters;
  parameters.y = info.dims;
  parameters.varies = ParameterAxes(view, norm, static_cast<int>(info.dims.size()));
  bool alone = true;  // one position: a parameter for each element
  for (int i = 0; i < parameters.rank(); ++i) {
    if (parameters.varies[i]) {
      if (info.dims[i] <= 0) return std::nullopt;
      parameters.sizes.push_back(info.dims[i]);
    } else if (i > 0) {
      alone = alone && info.dims[i] == 1;
    }
  }
  if (parameters.sizes.empty() || alone) return std::nullopt;
  return parameters;
}

}  // namespace nv_norms
