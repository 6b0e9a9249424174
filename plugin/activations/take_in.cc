#include "plugin/activations/take_in.h"

#include <set>
#include <string>
#include <utility>

#include "plugin/activations/candidates.h"
#include "plugin/edit_steps.h"
#include "plugin/records_of.h"
#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/platform/logging.h"

namespace nv_norms {
namespace {

using tensorflow::NodeDef;

class Editor {
 public:
  Editor(GraphView* view, Shapes* shapes, const std::function<bool(int)>& keep,
         std::vector<Record>* records)
      : view_(view), shapes_(shapes), keep_(keep), records_(records) {}

  void Apply(const ActivatedNorm& found) {
    const int norm = found.norm, activation = found.activation;
    VLOG(2) << "Take " << view_->name(activation) << " into " << view_->name(norm) << ": "
            << (found.silu ? "silu" : "negative_slope=" + std::to_string(found.slope)) << ", "
            << found.norm_gradients.size() << " gradients";
    Report(found);
    RemoveDeadReaders(view_, norm);
    for (int node : found.identities) RemoveDeadReaders(view_, node);
    for (int node : found.functions) RemoveDeadReaders(view_, node);
    for (const auto& entry : found.activation_gradients) RemoveDeadReaders(view_, entry.first);
    const TensorId x = view_->inputs(norm)[0];
    for (int shape : found.shapes) ReadShapeOf(view_, shape, x, view_->GetType(norm, "T"));
    PutNorm(found);
    for (int gradient : found.norm_gradients) PutGradient(gradient, found);
    MoveStatistics(norm, activation);
    for (const auto& [gradient, behind] : found.activation_gradients) {
      std::vector<int> instead = view_->control_inputs(gradient);
      instead.push_back(behind.node);
      RemoveReplaced(view_, gradient, instead);
    }
    std::vector<int> constants;
    for (auto i = found.functions.rbegin(); i != found.functions.rend(); ++i) {
      for (const TensorId& input : view_->inputs(*i)) {
        if (view_->op(input.node) == "Const") constants.push_back(input.node);
      }
      RemoveReplaced(view_, *i, {});
    }
    RemoveUnread(view_, constants, keep_);
    for (auto i = found.identities.rbegin(); i != found.identities.rend(); ++i) {
      RemoveReplaced(view_, *i, {activation});
    }
    if (found.stays) {
      (*view_->mutable_def(norm)->mutable_attr())[kUnread].set_b(true);
    } else {
      RemoveReplaced(view_, norm, {activation});
    }
  }

 private:
  void Report(const ActivatedNorm& found) {
    ForRecordsOf(
        *view_, found.norm, found.norm_gradients, records_,
        [&](Record* record) {
          record->outputs[0] = view_->name(TensorId{found.activation, 0});
          Note(found, record);
        },
        [&](Record* record, int gradient) {
          record->inputs[0] = view_->name(GradientBehind(gradient, found));
          Note(found, record);
        });
  }

  static void Note(const ActivatedNorm& found, Record* record) {
    record->negative_slope = found.slope;
    record->silu = found.silu;
  }

  static void SetActivation(const ActivatedNorm& found, NodeDef* def) {
    auto& attr = *def->mutable_attr();
    if (found.silu) {
      attr["silu"].set_b(true);
    } else {
      attr["negative_slope"].set_f(found.slope);
    }
  }

  // The gradient of the activation's output, given a gradient of the norm.
  TensorId GradientBehind(int norm_gradient, const ActivatedNorm& found) const {
    return found.activation_gradients.at(view_->inputs(norm_gradient)[0].node);
  }

  void PutNorm(const ActivatedNorm& found) {
    const int norm = found.norm, activation = found.activation;
    NodeDef def = view_->def(norm);
    auto& attr = *def.mutable_attr();
    attr.erase("_class");
    attr.erase("_output_shapes");
    for (const auto& [name, value] : view_->def(activation).attr()) {
      if (name == "_output_shapes") continue;  // of one output
      if (name == "_class" || (name.rfind('_', 0) == 0 && attr.count(name) == 0)) {
        attr[name] = value;
      }
    }
    SetActivation(found, &def);
    std::vector<int> controls = view_->control_inputs(norm);
    AddControls(*view_, activation, &controls);
    for (int node : FunctionsBehind(*view_, found, activation)) {
      AddControls(*view_, node, &controls);
    }
    std::vector<TensorInfo> outputs;
    for (int port : {0, 1, 2}) outputs.push_back(shapes_->Get({norm, port}));
    view_->ReplaceNode(activation, def, view_->inputs(norm), controls);
    shapes_->Set(activation, std::move(outputs));
  }

  void PutGradient(int gradient, const ActivatedNorm& found) {
    const int made = found.activation;
    NodeDef def = view_->def(gradient);
    const int64_t scales = view_->GetInt(made, "num_scale", 0);
    const int64_t offsets = view_->GetInt(made, "num_offset", 0);
    SetActivation(found, &def);
    (*def.mutable_attr())["num_offset"].set_i(offsets);
    std::vector<int> controls = view_->control_inputs(gradient);
    const int dy = view_->inputs(gradient)[0].node;
    AddControls(*view_, dy, &controls);
    for (int node : FunctionsBehind(*view_, found, dy)) AddControls(*view_, node, &controls);
    std::vector<TensorId> inputs = view_->inputs(gradient);
    inputs[0] = GradientBehind(gradient, found);
    const auto first = view_->inputs(made).begin() + 1 + scales;
    inputs.insert(inputs.begin() + 2 + scales, first, first + offsets);
    view_->ReplaceNode(gradient, def, inputs, controls);
  }

  void MoveStatistics(int norm, int made) {
    const std::vector<Consumer> readers = view_->consumers(norm);
    for (const Consumer& c : readers) {
      if (c.port > 0) SetInput(view_, c.node, c.slot, {made, c.port});
    }
  }

  GraphView* view_;
  Shapes* shapes_;
  const std::function<bool(int)>& keep_;
  std::vector<Record>* records_;
};

}  // namespace

bool TakeInActivations(GraphView* view, Shapes* shapes, const std::function<bool(int)>& nodes,
                       const std::function<bool(int)>& keep, bool compiled,
                       std::vector<Record>* records) {
  bool changed = false;
  MarkLiveAroundNorms(view, keep);
  for (int node = 0; node < view->num_nodes(); ++node) {
    if (!nodes(node)) continue;
    if (const auto found = FindActivation(*view, shapes, node, keep, compiled)) {
      Editor(view, shapes, keep, records).Apply(*found);
      changed = true;
    }
  }
  return changed;
}

bool WouldTakeInActivations(GraphView* view, const std::function<bool(int)>& nodes,
                            const std::function<bool(int)>& keep, bool compiled) {
  MarkLiveAroundNorms(view, keep);
  for (int node = 0; node < view->num_nodes(); ++node) {
    if (nodes(node) && FindActivation(*view, nullptr, node, keep, compiled)) return true;
  }
  return false;
}

}  // namespace nv_norms
