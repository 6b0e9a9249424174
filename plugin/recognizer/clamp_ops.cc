#include "plugin/recognizer/clamp_ops.h"

#include <algorithm>
#include <string>
#include <vector>

#include "plugin/recognizer/ops.h"
#include "plugin/recognizer/statistics.h"

namespace nv_norms {
namespace {

constexpr int kStepsToRoot = 3;  // an epsilon, views, a Maximum
constexpr size_t kMaxReaders = 8;

bool LeadsToRootWithin(const GraphView& view, int node, int steps) {
  const auto& readers = view.consumers(node);
  if (readers.size() > kMaxReaders) return false;
  return std::any_of(readers.begin(), readers.end(), [&](const Consumer& c) {
    const std::string& op = view.op(c.node);
    if (MayBeAnchor(op) && ClassOf(op) == OpClass::kElementwise) return true;
    const bool goes_on =
        op == "Add" || op == "AddV2" || op == "Maximum" || ClassOf(op) == OpClass::kView;
    return goes_on && steps > 0 && LeadsToRootWithin(view, c.node, steps - 1);
  });
}

bool IsReluAtRoot(const GraphView& view, int node) {
  return view.op(node) == "Relu" && LeadsToRootWithin(view, node, kStepsToRoot);
}

// Whether the comparison is that of a Maximum or a Minimum at a root.
bool ComparesForClamp(const GraphView& view, int comparison) {
  const std::string& op = view.op(comparison);
  if (op != "GreaterEqual" && op != "LessEqual") return false;
  const char* clamp = op == "GreaterEqual" ? "Maximum" : "Minimum";
  const auto& compared = view.inputs(comparison);
  const auto& readers = view.consumers(compared[0].node);
  if (readers.size() > kMaxReaders) return false;
  return std::any_of(readers.begin(), readers.end(), [&](const Consumer& c) {
    return view.op(c.node) == clamp && view.inputs(c.node) == compared &&
           LeadsToRootWithin(view, c.node, kStepsToRoot);
  });
}

}  // namespace

bool IsFollowed(const GraphView& view, int node) {
  return ClassOf(view.op(node)) != OpClass::kOpaque || IsClampAtRoot(view, node);
}

bool IsClampAtRoot(const GraphView& view, int node) {
  const std::string& op = view.op(node);
  if (op == "Relu") return IsReluAtRoot(view, node);
  if (op == "ReluGrad") return IsReluAtRoot(view, view.inputs(node)[1].node);
  return op == "SelectV2" && ComparesForClamp(view, view.inputs(node)[0].node);
}

}  // namespace nv_norms
