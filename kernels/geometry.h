// The canonical problem: which elements of a contiguous tensor share a statistic, and which
// parameter belongs to an element. Layer, RMS, instance and group normalization differ in nothing
// else.
//
//   layer norm, last axis      [N: kept]           [D: reduced, gamma]                    rows
//   instance norm, NC...       [N: kept]           [C: kept, gamma]    [S: reduced]       rows
//   group norm, NC...          [N: kept] [G: kept, gamma] [C/G: reduced, gamma] [S: reduced]   rows
//   instance norm, N...C       [N: kept]           [S: reduced]        [C: kept, gamma]   columns
//   group norm, N...C          [N: kept] [S: reduced] [G: kept, gamma] [C/G: reduced, gamma]
//   columns layer norm, axis 1 of 3    [N: kept]           [D: reduced, gamma] [S: kept] columns
//   anything else                                                                         general
//
// Where each sample has parameters of its own, N carries gamma, too: channels first that is one
// sample of N * C channels, and a layer norm of [N: kept, gamma] [S: kept] [D: reduced, gamma] is
// rows of which each S in turn have the same.
#ifndef NV_NORMS_KERNELS_GEOMETRY_H_
#define NV_NORMS_KERNELS_GEOMETRY_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/status.h"

namespace nv_norms {

// After merging, neighbouring axes alternate, so 16 of them mean a tensor of at least 2^16 elements
// normalized over every other axis of 16 or more.
constexpr int kMaxRank = 16;

struct Axis {
  int64_t size = 1;
  bool reduced = false;
  int64_t param_stride = 0;  // step in gamma and beta; 0: they do not vary along this axis
  int64_t stat_stride = 0;   // step in mean and rstd; 0 for reduced axes
  int64_t stride = 1;        // step in x
};

enum class Layout { kRows, kColumns, kGeneral };

// x is [rows, cols], a statistic a row. The parameter of an element is
// (row / repeat % modulus) * row_stride + col / col_divisor.
struct RowLayout {
  int64_t rows = 1;
  int64_t cols = 1;
  int64_t repeat = 1;  // more: rows of a sample, whose parameters belong to columns
  int64_t modulus = 1;
  int64_t row_stride = 0;
  int64_t col_divisor = 1;  // cols: the parameter is the same for the whole row
  // As in layer norm: a parameter for each column, the same for all rows.
  bool by_column() const { return col_divisor == 1 && row_stride == 0; }
  // As in instance norm of NC...: one for a row.
  bool by_row() const { return col_divisor == cols && !by_column(); }
};

// x is [n, s, groups, depth], a statistic for each (n, group). The parameter of an element is
// n * n_stride + s * s_stride + group * group_stride + depth * depth_stride. n_stride is 0 or
// channels(), the latter with s_stride 0.
struct ColumnLayout {
  int64_t n = 1;
  int64_t s = 1;
  int64_t groups = 1;
  int64_t depth = 1;
  int64_t n_stride = 0;
  int64_t s_stride = 0;
  int64_t group_stride = 0;
  int64_t depth_stride = 0;
  int64_t channels() const { return groups * depth; }
};

struct Geometry {
  int rank = 0;
  Axis axes[kMaxRank];
  int64_t elements = 1;
  int64_t statistics = 1;  // elements of mean and rstd
  int64_t reduced = 1;     // elements of x to a statistic
  int64_t params = 1;      // elements of gamma and beta
  Layout layout = Layout::kGeneral;
  RowLayout rows;
  ColumnLayout columns;
};

namespace geometry_internal {

// Drops axes of size 1 and merges neighbours that are alike.
inline Status Merge(const std::vector<Axis>& axes, Geometry* out) {
  std::vector<Axis> merged;
  for (const Axis& axis : axes) {
    if (axis.size == 1) continue;
    if (!merged.empty()) {
      Axis& outer = merged.back();
      const bool same_params = axis.param_stride == 0
                                   ? outer.param_stride == 0
                                   : outer.param_stride == axis.param_stride * axis.size;
      if (outer.reduced == axis.reduced && same_params) {
        outer.size *= axis.size;
        outer.param_stride = axis.param_stride;
        continue;
      }
    }
    merged.push_back(axis);
  }
  if (merged.size() > kMaxRank) {
    return Status::Unimplemented("normalized and other axes alternate more than " +
                                 std::to_string(kMaxRank) + " times");
  }
  out->rank = static_cast<int>(merged.size());
  int64_t stride = 1;
  int64_t stat_stride = 1;
  for (int i = out->rank - 1; i >= 0; --i) {
    Axis axis = merged[i];
    axis.stride = stride;
    stride *= axis.size;
    if (!axis.reduced) {
      axis.stat_stride = stat_stride;
      stat_stride *= axis.size;
    }
    out->axes[i] = axis;
  }
  return Status();
}

inline bool AsRows(const Geometry& g, RowLayout* out) {
  int i = 0;
  RowLayout rows;
  rows.rows = g.statistics;
  rows.cols = g.reduced;
  if (i < g.rank && !g.axes[i].reduced && g.axes[i].param_stride == 0) ++i;
  if (i < g.rank && !g.axes[i].reduced && g.axes[i].param_stride != 0) {
    rows.modulus = g.axes[i].size;
    rows.row_stride = g.axes[i].param_stride;
    ++i;
    const bool one_column = i + 1 == g.rank && g.reduced == 1;
    const bool by_column =
        i + 2 == g.rank && g.axes[i + 1].reduced && g.axes[i + 1].param_stride == 1;
    if ((one_column || by_column) && !g.axes[i].reduced) rows.repeat = g.axes[i++].size;
  }
  rows.col_divisor = rows.cols;
  if (i < g.rank && g.axes[i].reduced && g.axes[i].param_stride == 1) {
    rows.col_divisor = rows.cols / g.axes[i].size;
    ++i;
  }
  if (i < g.rank && g.axes[i].reduced && g.axes[i].param_stride == 0) ++i;
  *out = rows;
  return i == g.rank;
}

inline bool AsColumns(const Geometry& g, ColumnLayout* out) {
  int i = 0;
  ColumnLayout columns;
  if (i < g.rank && !g.axes[i].reduced) {
    columns.n_stride = g.axes[i].param_stride;
    columns.n = g.axes[i++].size;
  }
  if (i < g.rank && g.axes[i].reduced) {
    columns.s_stride = g.axes[i].param_stride;
    columns.s = g.axes[i++].size;
  }
  if (i < g.rank && !g.axes[i].reduced) {
    columns.group_stride = g.axes[i].param_stride;
    columns.groups = g.axes[i++].size;
  }
  if (i < g.rank && g.axes[i].reduced) {
    columns.depth_stride = g.axes[i].param_stride;
    columns.depth = g.axes[i++].size;
  }
  *out = columns;
  if (columns.n_stride != 0 && (columns.n_stride != columns.channels() || columns.s_stride != 0)) {
    return false;
  }
  return i == g.rank && (columns.s_stride == 0 || columns.depth == 1);
}

inline Status Finish(const std::vector<Axis>& axes, Geometry* out) {
  *out = Geometry();
  for (const Axis& axis : axes) {
    out->elements *= axis.size;
    (axis.reduced ? out->reduced : out->statistics) *= axis.size;
    if (axis.param_stride != 0) out->params *= axis.size;
  }
  if (out->elements == 0) return Status();  // nothing to do, whatever the layout
  Status status = Merge(axes, out);
  if (!status.ok()) return status;
  if (AsRows(*out, &out->rows)) {
    out->layout = Layout::kRows;
  } else if (AsColumns(*out, &out->columns)) {
    out->layout = Layout::kColumns;
  }
  return Status();
}

inline std::string ToString(const std::vector<int64_t>& values) {
  std::string text = "[";
  for (size_t i = 0; i < values.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(values[i]);
  }
  return text + "]";
}

}  // namespace geometry_internal

// Marks the axes of a tensor of this rank that `axis` names; negative ones count from the end.
inline Status ResolveAxes(const std::vector<int64_t>& axis, int rank, std::vector<bool>* reduced) {
  reduced->assign(rank, false);
  if (axis.empty()) return Status::InvalidArgument("axis is empty: expected one axis or more");
  for (int64_t a : axis) {
    const int64_t resolved = a < 0 ? a + rank : a;
    if (resolved < 0 || resolved >= rank) {
      return Status::InvalidArgument("axis " + std::to_string(a) + " is out of range: x has rank " +
                                     std::to_string(rank));
    }
    if ((*reduced)[resolved]) {
      return Status::InvalidArgument("axis " + geometry_internal::ToString(axis) +
                                     " names one axis twice: x has rank " + std::to_string(rank));
    }
    (*reduced)[resolved] = true;
  }
  return Status();
}

// Layer and RMS norm: reduced over `axis`; a parameter for each element of the reduced axes, which
// are taken in ascending order; of each sample (axis 0) if per_sample, where they are the last
// ones.
inline Status LayerNormGeometry(const std::vector<int64_t>& dims, const std::vector<int64_t>& axis,
                                bool per_sample, Geometry* out) {
  std::vector<bool> reduced;
  Status status = ResolveAxes(axis, static_cast<int>(dims.size()), &reduced);
  if (!status.ok()) return status;
  if (per_sample && (reduced[0] || !std::is_sorted(reduced.begin(), reduced.end()))) {
    return Status::InvalidArgument("axis " + geometry_internal::ToString(axis) +
                                   ": expected the last axes of x, without its first, where each "
                                   "sample has parameters of its own");
  }
  std::vector<Axis> axes(dims.size());
  int64_t param_stride = 1;
  for (int i = static_cast<int>(dims.size()) - 1; i >= 0; --i) {
    axes[i].size = dims[i];
    axes[i].reduced = reduced[i];
    if (reduced[i]) {
      axes[i].param_stride = param_stride;
      param_stride *= dims[i];
    }
  }
  if (per_sample) axes[0].param_stride = param_stride;
  return geometry_internal::Finish(axes, out);
}

// Group norm: x is [N, C, ...] or [N, ..., C], reduced over all axes but N and over C / groups
// channels; a parameter for each channel, of each sample if per_sample. Instance norm is groups = C
// (pass groups = -1).
inline Status GroupNormGeometry(const std::vector<int64_t>& dims, bool channels_last,
                                int64_t groups, bool per_sample, Geometry* out) {
  const int rank = static_cast<int>(dims.size());
  if (rank < 2) {
    return Status::InvalidArgument("x has rank " + std::to_string(rank) +
                                   ": expected a batch axis and a channel axis");
  }
  const int channel_axis = channels_last ? rank - 1 : 1;
  const int64_t channels = dims[channel_axis];
  if (groups == -1) groups = channels;
  if (groups != channels && (groups <= 0 || channels % groups != 0)) {
    return Status::InvalidArgument(std::to_string(channels) + " channels cannot be split into " +
                                   std::to_string(groups) + " groups of the same size");
  }
  std::vector<Axis> axes;
  for (int i = 0; i < rank; ++i) {
    Axis axis;
    axis.size = dims[i];
    axis.reduced = i != 0;
    if (i == 0 && per_sample) axis.param_stride = channels;
    if (i == channel_axis) {
      const int64_t depth = groups == 0 ? 1 : channels / groups;
      axis.size = groups;
      axis.reduced = false;
      axis.param_stride = depth;
      axes.push_back(axis);
      axis.size = depth;
      axis.reduced = true;
      axis.param_stride = 1;
    }
    axes.push_back(axis);
  }
  return geometry_internal::Finish(axes, out);
}

}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_GEOMETRY_H_
