#include "plugin/recognizer/sample_counts.h"

#include <algorithm>

#include "plugin/graph/constants.h"
#include "plugin/recognizer/broadcast_sums.h"
#include "plugin/recognizer/ops.h"

namespace nv_norms {
namespace {

constexpr int kMaxDepth = 64;  // of a gradient's nodes between dy and what it gives

}  // namespace

SampleCounts::SampleCounts(const GraphView& view, const Shapes& shapes, TensorId x,
                           const std::vector<TensorId>& parameters,
                           const std::vector<TensorId>& dys, bool larger)
    : view_(view), shapes_(shapes), rank_(shapes.Get(x).dims.size()) {
  AddSource(x, shapes.Get(x).dims[0]);
  for (TensorId parameter : parameters) {
    if (!parameter.valid()) continue;
    // Of a parameter no other size is unknown.
    int64_t samples = 0;
    for (int64_t size : shapes.Get(parameter).dims) samples = std::min(samples, size);
    AddSource(parameter, samples);
  }
  Sources all = larger ? kMore : 0;
  for (const auto& [tensor, sources] : known_) all |= sources;
  for (TensorId dy : dys) {
    if (dy.valid()) known_[dy] = (all & kAll) != 0 ? kAll : all;
  }
}

bool SampleCounts::HasThoseOf(TensorId tensor, TensorId source) {
  const Sources sources = Of(tensor, 0);
  return sources == known_[source] && (sources & kUnknown) == 0;
}

SampleCounts::Sources SampleCounts::Own(int64_t samples) {
  if (samples >= 0) return kAll;
  Sources fresh = 0;
  Sources& own = samples == -1 ? fresh : of_size_[samples];
  if (own == 0) {
    own = next_;
    next_ <<= 1;
  }
  return own;
}

// A source, and what it is a view of, by which its gradient may read it.
void SampleCounts::AddSource(TensorId tensor, int64_t samples) {
  const Sources own = Own(samples);
  known_.emplace(tensor, own);
  while (IsPlainView(view_.op(tensor.node)) || view_.op(tensor.node) == "Cast") {
    tensor = view_.inputs(tensor.node)[0];
    known_.emplace(tensor, own);
  }
}

SampleCounts::Sources SampleCounts::Of(TensorId tensor, int depth) {
  const auto found = known_.find(tensor);
  if (found != known_.end()) return found->second;
  if (depth > kMaxDepth) return kUnknown;
  Sources sources = OfNode(tensor, depth);
  if ((sources & kAll) != 0) sources = kAll | (sources & kUnknown);
  return known_[tensor] = sources;
}

SampleCounts::Sources SampleCounts::OfNode(TensorId tensor, int depth) {
  const int node = tensor.node;
  const std::vector<TensorId>& inputs = view_.inputs(node);
  const TensorId axes = AxesOfBroadcast(view_, node);
  if (axes.valid()) return OfShape(view_.inputs(axes.node)[axes.port], depth + 1);
  if (view_.op(node) == "Prod") return Of(inputs[0], depth + 1);  // of sizes: a mean's divisor
  switch (ClassOf(view_.op(node))) {
    case OpClass::kElementwise: {
      Sources sources = 0;
      for (const TensorId& input : inputs) sources |= Of(input, depth + 1);
      return sources;
    }
    case OpClass::kReduction:
    case OpClass::kView:
      return Of(inputs[0], depth + 1);
    case OpClass::kBroadcast: {
      if (view_.op(node) == "BroadcastTo") {
        return Of(inputs[0], depth + 1) | OfShape(inputs[1], depth + 1);
      }
      const auto multiples = IntConstant(view_, inputs[1].node);
      const bool keeps = view_.op(node) == "Tile" && multiples && !multiples->values.empty() &&
                         multiples->values[0] == 1;
      return keeps ? Of(inputs[0], depth + 1) : kUnknown;
    }
    default:
      break;
  }
  const TensorInfo& info = shapes_.Get(tensor);
  if (!info.rank_known) return kUnknown;
  const auto same = info.dims.size() == rank_ ? of_size_.find(info.dims[0]) : of_size_.end();
  if (same != of_size_.end()) return same->second;
  return IsKnown(info) ? OfSizes(info.dims) : kUnknown;
}

// Of a tensor that has the shape which `shape` holds.
SampleCounts::Sources SampleCounts::OfShape(TensorId shape, int depth) {
  const std::string& op = view_.op(shape.node);
  const std::vector<TensorId>& inputs = view_.inputs(shape.node);
  if (op == "Shape") return Of(inputs[0], depth + 1);
  if (op == "ShapeN") return Of(inputs[shape.port], depth + 1);
  if (op == "Identity" || op == "DataFormatVecPermute") return OfShape(inputs[0], depth + 1);
  const auto sizes = IntConstant(view_, shape.node);
  return sizes ? OfSizes(sizes->values) : kUnknown;
}

// What lacks x's first axis, or has 1 there, is the same for all samples.
SampleCounts::Sources SampleCounts::OfSizes(const std::vector<int64_t>& sizes) const {
  if (sizes.size() < rank_ || sizes[0] == 1) return 0;
  return sizes.size() == rank_ ? kAll : kUnknown;
}

}  // namespace nv_norms
