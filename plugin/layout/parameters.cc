#include "plugin/layout/parameters.h"

#include <algorithm>
#include <vector>

#include "plugin/edit_steps.h"
#include "plugin/layout/format.h"
#include "tensorflow/core/framework/node_def.pb.h"

namespace nv_norms {
namespace {

// At most one size differs from 1, so that no permutation of the axes moves an element.
bool HasOneLongAxis(const TensorInfo& info) {
  return info.rank_known &&
         std::count_if(info.dims.begin(), info.dims.end(), [](int64_t d) { return d != 1; }) <= 1;
}

bool MovesNothing(const GraphView& view, const Shapes& shapes, int node) {
  if (WaitsForOthers(view, node)) return false;
  if (view.op(node) == "Reshape") return true;
  return view.op(node) == "Transpose" && HasOneLongAxis(shapes.Get(view.inputs(node)[0]));
}

bool IsOrderKeepingTranspose(const GraphView& view, const Shapes& shapes, int node) {
  return view.op(node) == "Transpose" && MovesNothing(view, shapes, node);
}

// gamma and beta.
void BypassBefore(GraphView* view, const Shapes& shapes, int norm, std::vector<int>* unread) {
  const int first = view->def(norm).attr().count("num_dx") > 0 ? 2 : 1;
  const int64_t count = view->GetInt(norm, "num_scale", 0) + view->GetInt(norm, "num_offset", 0);
  for (int slot = first; slot < first + count; ++slot) {
    TensorId tensor = view->inputs(norm)[slot];
    bool transposed = false;
    while (MovesNothing(*view, shapes, tensor.node)) {
      transposed = transposed || view->op(tensor.node) == "Transpose";
      tensor = view->inputs(tensor.node)[0];
    }
    if (!transposed) continue;
    unread->push_back(view->inputs(norm)[slot].node);
    SetInput(view, norm, slot, tensor);
  }
}

// Their gradients: Grad -> Reshape or Identity -> Transpose -> Reshape.
void BypassBehind(GraphView* view, const Shapes& shapes, int norm,
                  const std::function<bool(int)>& keep, std::vector<int>* unread) {
  std::vector<int> transposes;
  for (const Consumer& c : view->consumers(norm)) {
    if (c.port == 0 || (view->op(c.node) != "Reshape" && view->op(c.node) != "Identity")) continue;
    for (const Consumer& t : view->consumers(c.node)) {
      if (t.slot == 0 && IsOrderKeepingTranspose(*view, shapes, t.node) && !keep(t.node)) {
        transposes.push_back(t.node);
      }
    }
  }
  for (int transpose : transposes) {
    const std::vector<Consumer> readers = view->consumers(transpose);
    for (const Consumer& reader : readers) {
      if (view->op(reader.node) != "Reshape" || reader.slot != 0) continue;
      SetInput(view, reader.node, 0, view->inputs(transpose)[0]);
      unread->push_back(transpose);
    }
  }
}

}  // namespace

bool BypassParameterTransposes(GraphView* view, const Shapes& shapes, int norm,
                               const std::function<bool(int)>& keep) {
  std::vector<int> unread;
  BypassBefore(view, shapes, norm, &unread);
  BypassBehind(view, shapes, norm, keep, &unread);
  RemoveUnread(view, unread, keep);
  return !unread.empty();
}

}  // namespace nv_norms
