#ifndef NV_NORMS_PLUGIN_LAYOUT_FORMAT_H_
#define NV_NORMS_PLUGIN_LAYOUT_FORMAT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "plugin/graph/view.h"

namespace nv_norms {

// Where the channels of a tensor of rank 3 to 5 are: behind the batch (NCHW) or at the end (NHWC).
enum class Format { kLast, kFirst };

inline Format Other(Format format) {
  return format == Format::kLast ? Format::kFirst : Format::kLast;
}

// "NHWC", "NCDHW", ...
std::string FormatName(Format format, int rank);

// The permutation that brings a tensor into `to` from the other format, as Transpose takes it:
// result.shape[i] = x.shape[permutation[i]].
std::vector<int> PermutationTo(Format to, int rank);

// Where an axis (not negative) goes when its tensor is brought into `to`.
int AxisIn(Format to, int rank, int axis);

// One entry for each axis, permuted as the axes are.
std::vector<int64_t> Permuted(const std::vector<int64_t>& of_axes, Format to);

// Whether bringing a tensor of this shape into the format `to` moves no element in memory, so that
// a Reshape does it.
bool KeepsElementOrder(const std::vector<int64_t>& shape, Format to);

// Whether the node, or what is in its slot 1 (an order, a shape), waits for more than what the node
// reads: for an op with an effect, however far back, or for what is computed from what the node
// reads, which must not come to read the node.
bool WaitsForOthers(const GraphView& view, int node);

// Whether the node is a Transpose to `to` (or, of a vector with one entry for each axis, a
// DataFormatVecPermute) with a constant permutation that waits for nothing that has an effect.
bool IsConversion(const GraphView& view, int node, bool of_vector, Format to, int rank);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_LAYOUT_FORMAT_H_
