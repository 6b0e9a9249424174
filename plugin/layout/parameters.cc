#include "plugin/layout/parameters.h"

#include <algorithm>
#include <vector>

#include "plugin/edit_steps.h"
#include "tensorflow/core/framework/node_def.pb.h"

namespace nv_norms {
namespace {

// At most one size differs from 1, so that no permutation of the axes moves an element.
bool HasOneLongAxis(const TensorInfo& info) {
  return info.rank_known &&
         std::count_if(info.dims.begin(), info.dims.end(), [](int64_t d) { return d != 1; }) <= 1;
}

bool MovesNothing(const GraphView& view, const Shapes& shapes, int node) {
  if (!view.control_inputs(node).empty()) return false;
  if (view.op(node) == "Reshape") return true;
  return view.op(node) == "Transpose" && HasOneLongAxis(shapes.Get(view.inputs(node)[0]));
}

}  // namespace

bool ReadParametersDirectly(GraphView* view, const Shapes& shapes, int norm,
                            const std::function<bool(int)>& keep) {
  const bool gradient = view->def(norm).attr().count("num_dx") > 0;
  const int first = gradient ? 2 : 1;
  const int64_t count = view->GetInt(norm, "num_scale", 0) + view->GetInt(norm, "num_offset", 0);
  std::vector<TensorId> inputs = view->inputs(norm);
  std::vector<int> unread;
  for (int slot = first; slot < first + count; ++slot) {
    TensorId tensor = inputs[slot];
    bool transposed = false;
    while (MovesNothing(*view, shapes, tensor.node)) {
      transposed = transposed || view->op(tensor.node) == "Transpose";
      tensor = view->inputs(tensor.node)[0];
    }
    if (!transposed) continue;
    unread.push_back(inputs[slot].node);
    inputs[slot] = tensor;
  }
  if (unread.empty()) return false;
  const tensorflow::NodeDef def = view->def(norm);
  view->ReplaceNode(norm, def, inputs, view->control_inputs(norm));
  RemoveUnread(view, unread, keep);
  return true;
}

}  // namespace nv_norms
