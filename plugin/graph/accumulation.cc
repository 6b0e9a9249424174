#include "plugin/graph/accumulation.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/node_def.pb.h"

namespace nv_norms {
namespace {

struct Accumulation {
  std::vector<TensorId> terms;
  std::vector<int> controls;    // what the sum waits for besides
  std::vector<int> additions;   // AssignAdd
  int assign, zeros, variable;  // nodes
};

bool Has(const std::vector<int>& nodes, int node) {
  return std::find(nodes.begin(), nodes.end(), node) != nodes.end();
}

std::optional<Accumulation> AccumulationAt(const GraphView& view, int destroy) {
  if (view.op(destroy) != "DestroyTemporaryVariable") return std::nullopt;
  Accumulation found;
  found.assign = view.inputs(destroy)[0].node;
  if (view.op(found.assign) != "Assign") return std::nullopt;
  found.variable = view.inputs(found.assign)[0].node;
  found.zeros = view.inputs(found.assign)[1].node;
  const bool ours =
      view.op(found.variable) == "TemporaryVariable" && view.op(found.zeros) == "ZerosLike" &&
      view.consumers(found.variable).size() == 1 && view.consumers(found.zeros).size() == 1 &&
      view.GetString(found.variable, "var_name", "") == view.GetString(destroy, "var_name", "-");
  if (!ours) return std::nullopt;
  for (const Consumer& c : view.consumers(found.assign)) {
    if (c.node == destroy) continue;
    if (view.op(c.node) != "AssignAdd" || c.slot != 0 || !view.consumers(c.node).empty() ||
        view.control_consumers(c.node) != std::vector<int>{destroy}) {
      return std::nullopt;
    }
    found.additions.push_back(c.node);
    found.terms.push_back(view.inputs(c.node)[1]);
  }
  for (int control : view.control_inputs(destroy)) {
    if (!Has(found.additions, control)) found.controls.push_back(control);
  }
  const bool quiet = view.control_consumers(found.assign).empty() &&
                     view.control_consumers(found.zeros).empty() &&
                     view.control_consumers(found.variable).empty();
  if (!quiet || found.terms.size() < 2) return std::nullopt;
  return found;
}

}  // namespace

void RestoreSums(GraphView* view) {
  for (int node = 0; node < view->num_nodes(); ++node) {
    const auto accumulation = AccumulationAt(*view, node);
    if (!accumulation) continue;
    tensorflow::NodeDef sum;
    sum.set_op("AddN");
    sum.set_device(view->def(node).device());
    auto& attr = *sum.mutable_attr();
    attr["T"].set_type(view->GetType(node, "T"));
    attr["N"].set_i(static_cast<int64_t>(accumulation->terms.size()));
    view->ReplaceNode(node, sum, accumulation->terms, accumulation->controls);
    for (int addition : accumulation->additions) view->RemoveNode(addition);
    view->RemoveNode(accumulation->assign);
    view->RemoveNode(accumulation->zeros);
    view->RemoveNode(accumulation->variable);
  }
}

}  // namespace nv_norms
