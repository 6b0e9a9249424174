#ifndef NV_NORMS_PLUGIN_RECOGNIZER_REACH_H_
#define NV_NORMS_PLUGIN_RECOGNIZER_REACH_H_

#include <unordered_set>
#include <vector>

#include "plugin/graph/view.h"

namespace nv_norms {

// Nodes that lead from a tensor on through ops that the interpreter follows, at most `limit`.
std::unordered_set<int> Dependents(const GraphView& view, TensorId from, int limit);

// The nodes of `within` that lead to the nodes `to`, themselves included, without looking behind
// the tensors `from`.
std::vector<int> NodesBetween(const GraphView& view, const std::unordered_set<int>& within,
                              const std::vector<TensorId>& from, const std::vector<int>& to);

// Whether a tensor is a view of a variable of TensorFlow 1, which is in the variable's own memory.
bool IsReference(const GraphView& view, TensorId tensor);

// Whether it is, and a node runs after something was assigned to that: it may find another value
// than others did.
bool RunsAfterAssignment(const GraphView& view, int node, TensorId tensor);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_RECOGNIZER_REACH_H_
