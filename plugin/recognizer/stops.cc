#include "plugin/recognizer/stops.h"

#include <algorithm>
#include <string>

#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/node_def.pb.h"

namespace nv_norms {
namespace {

// tf.nn.moments stops the mean's gradient in a sum of squared differences to it, where it is 0,
// and so does the gradient of that sum.
bool TakesOffItsMean(const GraphView& view, int reader, int stopped) {
  const std::string& op = view.op(reader);
  const int mean = view.inputs(stopped)[0].node;
  if (view.op(mean) != "Mean" || (op != "Sub" && op != "SquaredDifference")) return false;
  const TensorId x = view.inputs(mean)[0];
  const auto& inputs = view.inputs(reader);
  const auto& readers = view.consumers(stopped);
  return std::find(inputs.begin(), inputs.end(), x) != inputs.end() &&
         std::any_of(readers.begin(), readers.end(), [&](const Consumer& c) {
           return view.op(c.node) == "SquaredDifference" && view.inputs(c.node)[1 - c.slot] == x;
         });
}

}  // namespace

bool StopsGradient(const GraphView& view, const std::unordered_set<int>& nodes,
                   const std::unordered_set<int>& forward) {
  for (int node : nodes) {
    if (forward.count(node) > 0) continue;
    if (HasOwnGradient(view, node)) return true;
    if (view.op(node) == "PreventGradient") return true;
    if (view.op(node) != "StopGradient") continue;
    for (const Consumer& c : view.consumers(node)) {
      if (nodes.count(c.node) > 0 && !TakesOffItsMean(view, c.node, node)) return true;
    }
  }
  return false;
}

}  // namespace nv_norms
