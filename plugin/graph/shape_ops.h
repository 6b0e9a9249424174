#ifndef NV_NORMS_PLUGIN_GRAPH_SHAPE_OPS_H_
#define NV_NORMS_PLUGIN_GRAPH_SHAPE_OPS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "plugin/graph/view.h"

namespace nv_norms {

// Whether an op's output has the shape of its first input, its only one or beside parameters.
bool KeepsShape(const std::string& op);

// Whether it is an elementwise op of two inputs that are broadcast to one shape.
bool Broadcasts(const std::string& op);

// Elements first to last - 1 of a vector, or the one element as a scalar.
struct VectorSlice {
  int64_t first;
  int64_t last;
  bool scalar;
};

// What a StridedSlice from `begin` to `end`, in steps of one, takes of a vector of `count`.
std::optional<VectorSlice> SliceOfVector(const GraphView& view, int node, int64_t begin,
                                         int64_t end, int64_t count);

// Element i of what a DataFormatVecPermute puts out is element order[i] of its input.
std::optional<std::vector<int64_t>> OrderOfFormats(const GraphView& view, int node);

// The axis of the other format that `axis`, which may count from the end, becomes in that order;
// nullopt if there is no such axis. What a DataFormatDimMap puts out.
std::optional<int64_t> AxisInOrder(const std::vector<int64_t>& order, int64_t axis);

// Element i is what was at order[i]; nullopt if that is no permutation.
std::optional<std::vector<int64_t>> Permuted(const std::vector<int64_t>& sizes,
                                             const std::vector<int64_t>& order);

// The integers of a constant, as axes or an entry for each axis, behind what TensorFlow's layout
// pass puts between it and the op that it is an operand of.
std::optional<std::vector<int64_t>> ConstantOperand(const GraphView& view, int node);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_GRAPH_SHAPE_OPS_H_
