#include "plugin/recognizer/problem.h"

#include <algorithm>

namespace nv_norms {
namespace {

bool Contains(const Dim& set, Atom atom) {
  return std::find(set.begin(), set.end(), atom) != set.end();
}

enum class Share { kNone, kAll, kSome, kNothingThere };

Share ShareOf(const Dim& dim, const Dim& set) {
  if (dim.empty()) return Share::kNothingThere;
  const auto in = std::count_if(dim.begin(), dim.end(), [&](Atom a) { return Contains(set, a); });
  if (in == 0) return Share::kNone;
  return in == static_cast<int64_t>(dim.size()) ? Share::kAll : Share::kSome;
}

bool Within(Share share, Share wanted) { return share == wanted || share == Share::kNothingThere; }

// The atoms of the dimensions from..to (exclusive) in order.
Dim Flat(const Dims& dims) {
  Dim flat;
  for (const Dim& dim : dims) flat.insert(flat.end(), dim.begin(), dim.end());
  return flat;
}

// Whether a parameter belongs to `within`, channels, say, of each sample. Where there is nothing
// else that it could vary along, anything of x's shape would be such a parameter, dy, say.
bool IsOfEachSample(const Dims& x, const Dim& parameter, const Dim& within) {
  Dim wanted = x[0];
  wanted.insert(wanted.end(), within.begin(), within.end());
  return !x[0].empty() && parameter == wanted && parameter.size() < Flat(x).size();
}

// The last axes, without the first.
bool AreLast(const std::vector<int>& axes, size_t rank) {
  return axes.size() < rank && axes.front() == -static_cast<int>(axes.size());
}

// Layer and RMS norm: whole dimensions; parameters cover exactly these, in their order; where these
// are the last, perhaps of each sample.
std::optional<Problem> OverAxes(const Dims& x, const Dim& reduced, const Dim* parameter,
                                Moment moment) {
  Problem problem;
  problem.kind = moment == Moment::kMeanSquare ? Kind::kRmsNorm : Kind::kLayerNorm;
  Dim covered;
  for (size_t i = 0; i < x.size(); ++i) {
    switch (ShareOf(x[i], reduced)) {
      case Share::kAll:
        problem.axes.push_back(static_cast<int>(i) - static_cast<int>(x.size()));
        covered.insert(covered.end(), x[i].begin(), x[i].end());
        break;
      case Share::kSome:
        return std::nullopt;
      default:
        break;
    }
  }
  if (parameter != nullptr && *parameter != covered) {
    if (!AreLast(problem.axes, x.size()) || !IsOfEachSample(x, *parameter, covered)) {
      return std::nullopt;
    }
    problem.per_sample = true;
  }
  return problem;
}

// Instance and group norm with channels at `channel`: dimension 0 is the batch, the others are
// space; the trailing part of the channels may be reduced too.
std::optional<Problem> OverSpace(const Axes& axes, const Dims& x, const Dim& reduced,
                                 const Dim* parameter, int channel) {
  const int rank = static_cast<int>(x.size());
  if (rank < 2 || !Within(ShareOf(x[0], reduced), Share::kNone)) return std::nullopt;
  Problem problem;
  for (int i = 1; i < rank; ++i) {
    if (i != channel) {
      if (!Within(ShareOf(x[i], reduced), Share::kAll)) return std::nullopt;
      problem.axes.push_back(i - rank);
    }
  }
  if (parameter != nullptr && *parameter != x[channel]) {
    if (!IsOfEachSample(x, *parameter, x[channel])) return std::nullopt;
    problem.per_sample = true;
  }
  Dim outer;
  bool inside = false;
  for (Atom atom : x[channel]) {
    if (Contains(reduced, atom)) {
      inside = true;
    } else if (inside) {
      return std::nullopt;  // the outer part of the channels is reduced, not the inner
    } else {
      outer.push_back(atom);
    }
  }
  problem.data_format = channel == 1 && rank > 2 ? "NC..." : "N...C";
  if (!inside) {
    problem.kind = Kind::kInstanceNorm;
    return problem;
  }
  problem.kind = Kind::kGroupNorm;
  problem.axes.push_back(channel - rank);
  std::sort(problem.axes.begin(), problem.axes.end());
  const Size groups = axes.size(outer);
  if (!groups.known() || groups.coefficient() < 1) return std::nullopt;
  problem.groups = groups.coefficient();
  return problem;
}

bool IsOneBlock(const std::vector<int>& axes) {
  return axes.empty() || axes.back() - axes.front() + 1 == static_cast<int>(axes.size());
}

// False if more than one size is unknown.
bool ShapeOf(const Axes& axes, const Dims& dims, std::vector<int64_t>* shape) {
  bool open = false;
  for (const Dim& dim : dims) {
    const Size size = axes.size(dim);
    if (!size.known() && open) return false;
    open = open || !size.known();
    shape->push_back(size.known() ? size.coefficient() : -1);
  }
  return true;
}

// Channels as two axes, groups and what is within them.
std::optional<Problem> OverSpaceMerged(const Axes& axes, const Dims& x, const Dim& reduced,
                                       const Dim* parameter, int group_axis) {
  Dims merged = x;
  Dim& channels = merged[group_axis];
  channels.insert(channels.end(), x[group_axis + 1].begin(), x[group_axis + 1].end());
  merged.erase(merged.begin() + group_axis + 1);
  auto problem = OverSpace(axes, merged, reduced, parameter, group_axis);
  if (!problem || !ShapeOf(axes, merged, &problem->merged_shape) ||
      !ShapeOf(axes, x, &problem->split_shape)) {
    return std::nullopt;
  }
  return problem;
}

// Groups in the last axes that have parameters of their own, of x with several axes before them:
// heads, or channels of rows that a Reshape took for a batch. (Without parameters it is a layer
// norm, if of another view of x.)
std::optional<Problem> OverBatchMerged(const Axes& axes, const Dims& x, const Dim& reduced,
                                       const Dim& parameter) {
  for (int channel = static_cast<int>(x.size()) - 1; channel > 0; --channel) {
    const auto split = x.begin() + channel;
    const Dims merged = {Flat(Dims(x.begin(), split)), Flat(Dims(split, x.end()))};
    // Of a single sample anything that has its shape, dy, say, would be a parameter.
    if (merged[0].empty()) return std::nullopt;
    auto problem = OverSpace(axes, merged, reduced, &parameter, 1);
    if (!problem || problem->kind != Kind::kGroupNorm) continue;
    if (!ShapeOf(axes, merged, &problem->merged_shape)) return std::nullopt;
    if (!ShapeOf(axes, x, &problem->split_shape)) problem->split_shape.clear();
    problem->merges_batch = true;
    return problem;
  }
  return std::nullopt;
}

}  // namespace

const char* KindName(Kind kind) {
  switch (kind) {
    case Kind::kLayerNorm:
      return "layer_norm";
    case Kind::kInstanceNorm:
      return "instance_norm";
    case Kind::kGroupNorm:
      return "group_norm";
    case Kind::kRmsNorm:
      return "rms_norm";
  }
  return "unknown";
}

std::optional<Problem> FindProblem(const Axes& axes, const Dims& x, const Dim& reduced,
                                   const Dim* parameter, Moment moment) {
  if (reduced.empty()) return std::nullopt;
  const Dim all = Flat(x);
  for (Atom atom : reduced) {
    if (!Contains(all, atom)) return std::nullopt;
  }
  const auto over_axes = OverAxes(x, reduced, parameter, moment);
  if (moment == Moment::kMeanSquare || (over_axes && IsOneBlock(over_axes->axes))) {
    return over_axes;
  }
  const int rank = static_cast<int>(x.size());
  if (auto problem = OverSpace(axes, x, reduced, parameter, rank - 1)) return problem;
  if (rank > 2) {
    if (auto problem = OverSpace(axes, x, reduced, parameter, 1)) return problem;
  }
  for (int group_axis : {rank - 2, 1}) {
    if (rank < 4) break;
    if (auto problem = OverSpaceMerged(axes, x, reduced, parameter, group_axis)) return problem;
  }
  if (!over_axes && parameter != nullptr && rank > 2) {
    return OverBatchMerged(axes, x, reduced, *parameter);
  }
  return over_axes;
}

bool MergesUnknownAxes(const Problem& problem, const Dims& x, const std::vector<int64_t>& sizes,
                       const Dim& parameter) {
  if (problem.merged_shape.empty()) return false;
  if (sizes.size() != x.size()) return true;  // nor is the rank known
  for (size_t i = 0; i < sizes.size(); ++i) {
    const bool along =
        std::any_of(x[i].begin(), x[i].end(), [&](Atom atom) { return Contains(parameter, atom); });
    if (along && sizes[i] < 0) return true;
  }
  return false;
}

}  // namespace nv_norms
