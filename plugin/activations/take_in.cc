#include "plugin/activations/take_in.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "plugin/activations/candidates.h"
#include "plugin/edit_steps.h"
#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/platform/logging.h"

namespace nv_norms {
namespace {

using tensorflow::NodeDef;

// Whether a fused op is the one of this output, or beside it: then it has that name and its op's.
bool IsOf(const std::string& fused, const std::string& op, const std::string& output) {
  const std::string name = output.substr(0, output.rfind(':'));
  return fused == name || fused.rfind(name + "/" + op, 0) == 0;
}

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
    RemoveDeadReaders(norm);
    for (int node : found.identities) RemoveDeadReaders(node);
    for (int node : found.functions) RemoveDeadReaders(node);
    for (const auto& entry : found.activation_gradients) RemoveDeadReaders(entry.first);
    for (int shape : found.shapes) ReadShapeOfX(shape, norm);
    PutNorm(found);
    for (int gradient : found.norm_gradients) PutGradient(gradient, found);
    MoveStatistics(norm, activation);
    for (const auto& [gradient, behind] : found.activation_gradients) {
      std::vector<int> instead = view_->control_inputs(gradient);
      instead.push_back(behind.node);
      Remove(gradient, instead);
    }
    std::vector<int> constants;
    for (auto i = found.functions.rbegin(); i != found.functions.rend(); ++i) {
      for (const TensorId& input : view_->inputs(*i)) {
        if (view_->op(input.node) == "Const") constants.push_back(input.node);
      }
      Remove(*i, {});
    }
    RemoveUnread(view_, constants, keep_);
    for (auto i = found.identities.rbegin(); i != found.identities.rend(); ++i) {
      Remove(*i, {activation});
    }
    if (found.stays) {
      (*view_->mutable_def(norm)->mutable_attr())[kUnread].set_b(true);
    } else {
      Remove(norm, {activation});
    }
  }

 private:
  void Report(const ActivatedNorm& found) {
    const auto& op = view_->op(found.norm);
    for (Record& record : *records_) {
      if (record.reason != Reason::kNone || record.outputs.empty()) continue;
      if (record.direction == "forward") {
        if (!IsOf(view_->name(found.norm), op, record.outputs[0])) continue;
        record.outputs[0] = view_->name(TensorId{found.activation, 0});
        Note(found, &record);
      } else if (record.direction == "backward") {
        for (int gradient : found.norm_gradients) {
          const auto is_of = [&](const std::string& output) {
            return IsOf(view_->name(gradient), view_->op(gradient), output);
          };
          if (std::none_of(record.outputs.begin(), record.outputs.end(), is_of)) continue;
          record.inputs[0] = view_->name(GradientBehind(gradient, found));
          Note(found, &record);
        }
      }
    }
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

  void ReadShapeOfX(int shape, int norm) {
    SetType(view_->mutable_def(shape), "T", view_->GetType(norm, "T"));
    SetInput(view_, shape, 0, view_->inputs(norm)[0]);
  }

  void PutNorm(const ActivatedNorm& found) {
    const int norm = found.norm, activation = found.activation;
    NodeDef def = view_->def(norm);
    auto& attr = *def.mutable_attr();
    attr.erase("_class");
    for (const auto& [name, value] : view_->def(activation).attr()) {
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

  // What reads a tensor and is not live, and all behind that, which is not live either.
  void RemoveDeadReaders(int node) {
    std::vector<int> dead;
    std::set<int> seen;
    const auto add = [&](int reader) {
      if (!view_->live(reader) && seen.insert(reader).second) dead.push_back(reader);
    };
    for (const Consumer& c : view_->consumers(node)) add(c.node);
    for (size_t i = 0; i < dead.size(); ++i) {
      for (const Consumer& c : view_->consumers(dead[i])) add(c.node);
      for (int waiter : view_->control_consumers(dead[i])) add(waiter);
    }
    for (int each : dead) view_->RemoveNode(each);
  }

  // Removes a node that nobody reads any more; who waited for it waits for others.
  void Remove(int node, const std::vector<int>& instead) {
    const std::vector<int> waiting = view_->control_consumers(node);
    for (int waiter : waiting) {
      for (int other : instead) view_->AddControlInput(waiter, other);
    }
    view_->DropControlConsumers(node);
    view_->RemoveNode(node);
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
  MarkLiveForActivations(view, keep);
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
  MarkLiveForActivations(view, keep);
  for (int node = 0; node < view->num_nodes(); ++node) {
    if (nodes(node) && FindActivation(*view, nullptr, node, keep, compiled)) return true;
  }
  return false;
}

}  // namespace nv_norms
