#include "plugin/recognizer/reach.h"

#include <algorithm>
#include <set>
#include <utility>

#include "plugin/recognizer/clamp_ops.h"
#include "plugin/recognizer/ops.h"

namespace nv_norms {

std::unordered_set<int> Dependents(const GraphView& view, TensorId from, int limit) {
  std::unordered_set<int> nodes;
  // Nearest in the graph's order first: a layer's own nodes come before the rest of the network
  // and before its gradient.
  std::set<std::pair<int, int>> queue;
  const auto visit = [&](int node) {
    if (IsFollowed(view, node) && nodes.count(node) == 0) {
      queue.insert({view.order(node), node});
    }
  };
  for (const Consumer& c : view.consumers(from)) visit(c.node);
  while (!queue.empty() && static_cast<int>(nodes.size()) < limit) {
    const int node = queue.begin()->second;
    queue.erase(queue.begin());
    if (!nodes.insert(node).second) continue;
    for (const Consumer& c : view.consumers(node)) visit(c.node);
  }
  return nodes;
}

std::vector<int> NodesBetween(const GraphView& view, const std::unordered_set<int>& within,
                              const std::vector<TensorId>& from, const std::vector<int>& to) {
  std::vector<int> nodes;
  std::set<int> seen;
  std::vector<int> stack = to;
  while (!stack.empty()) {
    const int node = stack.back();
    stack.pop_back();
    if (within.count(node) == 0 || !seen.insert(node).second) continue;
    nodes.push_back(node);
    for (const TensorId& input : view.inputs(node)) {
      if (std::find(from.begin(), from.end(), input) == from.end()) stack.push_back(input.node);
    }
  }
  return nodes;
}

namespace {

// What gives the reference that a tensor is, or is a view of; -1 if it is none.
int ReferenceBehind(const GraphView& view, TensorId tensor) {
  int node = tensor.node;
  while (!GivesReference(view.op(node))) {
    if (ClassOf(view.op(node)) != OpClass::kView) return -1;
    node = view.inputs(node)[0].node;
  }
  return node;
}

}  // namespace

bool IsReference(const GraphView& view, TensorId tensor) {
  return ReferenceBehind(view, tensor) >= 0;
}

bool RunsAfterAssignment(const GraphView& view, int node, TensorId tensor) {
  int variable = ReferenceBehind(view, tensor);
  if (variable < 0) return false;
  constexpr int kMaxSteps = 16;  // references to the reference; loops hold them in a circle
  for (int step = 0; step < kMaxSteps && !view.inputs(variable).empty(); ++step) {
    variable = view.inputs(variable)[0].node;
  }
  std::unordered_set<int> assignments;
  for (const Consumer& c : view.consumers(variable)) {
    if (GivesReference(view.op(c.node))) assignments.insert(c.node);
  }
  return view.DependsOn(node, assignments);
}

}  // namespace nv_norms
