#include "plugin/casts/take_in.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "plugin/casts/candidates.h"
#include "plugin/casts/types.h"
#include "plugin/edit_steps.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/platform/logging.h"

namespace nv_norms {
namespace {

using tensorflow::DT_FLOAT;
using tensorflow::NodeDef;

class Editor {
 public:
  Editor(GraphView* view, Shapes* shapes, const std::function<bool(int)>& keep)
      : view_(view), shapes_(shapes), keep_(keep) {}

  void Apply(const Candidates& candidates) {
    for (const Candidate& candidate : candidates.inputs) ReadWide(candidate);
    // A new op for all outputs of one norm.
    std::map<int, std::vector<const Candidate*>> of_norm;
    for (const Candidate& candidate : candidates.outputs) {
      of_norm[candidate.slots.begin()->norm].push_back(&candidate);
    }
    for (const auto& [norm, outputs] : of_norm) WriteWide(norm, outputs);
  }

 private:
  void ReadWide(const Candidate& candidate) {
    for (int cast : candidate.casts) wide_[{cast, 0}] = view_->inputs(cast)[0];
    for (const Slot& slot : candidate.slots) {
      const TensorId wide = Widened(view_->inputs(slot.norm)[slot.input]);
      SetType(view_->mutable_def(slot.norm), AttributeOf(slot.role), DT_FLOAT);
      SetInput(view_, slot.norm, slot.input, wide);
      VLOG(2) << "Take " << view_->name(candidate.casts[0]) << " into " << view_->name(slot.norm)
              << ": it reads " << view_->name(wide);
    }
    WidenShapes(candidate);
    RemoveUnread(view_, candidate.views, keep_);
    RemoveUnread(view_, candidate.casts, keep_);
  }

  // A new op beside the norm, whose outputs have other types, takes its place; Identities take the
  // Casts'. So each name that stays means what it did.
  void WriteWide(int norm, const std::vector<const Candidate*>& candidates) {
    NodeDef def = view_->def(norm);
    const std::string& name = view_->name(norm);
    const bool is_suffixed = name.find("/" + def.op()) != std::string::npos;
    def.set_name(view_->UniqueName(is_suffixed ? name : name + "/" + def.op()));
    const int dx = static_cast<int>(view_->GetInt(norm, "num_dx", 1));
    std::set<int> wide_ports;
    for (const Candidate* candidate : candidates) {
      const Role role = candidate->slots.begin()->role;
      SetType(&def, AttributeOf(role), DT_FLOAT);
      if (role != Role::kParameters) {
        wide_ports.insert(0);
      } else {
        for (const Consumer& c : view_->consumers(norm)) {
          if (c.port >= dx) wide_ports.insert(c.port);
        }
      }
    }
    const int made = view_->AddNode(def, view_->inputs(norm), view_->control_inputs(norm), norm);
    SetShapes(made, norm, wide_ports);
    for (int port : wide_ports) wide_[{norm, port}] = {made, port};
    for (const Candidate* candidate : candidates) {
      for (int cast : candidate->casts) {
        PutIdentity(Widened(view_->inputs(cast)[0]), cast);
        VLOG(2) << "Take " << view_->name(cast) << " into " << view_->name(made);
      }
      WidenShapes(*candidate);
      RemoveUnread(view_, candidate->views, keep_);
    }
    MoveReaders(norm, made);
  }

  // The tensor in float32, given those in `wide_`; views are made anew.
  TensorId Widened(TensorId tensor) {
    const auto found = wide_.find(tensor);
    if (found != wide_.end()) return found->second;
    const int node = tensor.node;
    NodeDef def = view_->def(node);
    def.set_name(view_->UniqueName(view_->name(node) + "/wide"));
    SetType(&def, "T", DT_FLOAT);
    std::vector<TensorId> inputs = view_->inputs(node);
    inputs[0] = Widened(inputs[0]);
    const TensorId widened{view_->AddNode(def, inputs, {}, node), 0};
    SetShapes(widened.node, node, {0});
    return wide_[tensor] = widened;
  }

  void WidenShapes(const Candidate& candidate) {
    for (int node : candidate.shapes) {
      const TensorId wide = Widened(view_->inputs(node)[0]);
      SetType(view_->mutable_def(node), "T", DT_FLOAT);
      SetInput(view_, node, 0, wide);
    }
  }

  // The shapes of the outputs of `like`, some of them of float32.
  void SetShapes(int node, int like, const std::set<int>& wide_ports) {
    std::vector<TensorInfo> outputs;
    int count = wide_ports.empty() ? 1 : *wide_ports.rbegin() + 1;
    for (const Consumer& c : view_->consumers(like)) count = std::max(count, c.port + 1);
    for (int port = 0; port < count; ++port) {
      outputs.push_back(shapes_->Get({like, port}));
      if (wide_ports.count(port) > 0) outputs.back().dtype = DT_FLOAT;
    }
    shapes_->Set(node, std::move(outputs));
  }

  void PutIdentity(TensorId tensor, int place) {
    NodeDef identity;
    identity.set_op("Identity");
    CopyPlacement(view_->def(place), &identity);
    SetType(&identity, "T", DT_FLOAT);
    view_->ReplaceNode(place, identity, {tensor}, view_->control_inputs(place));
  }

  // Whoever reads the norm, or waits for it, reads the new one.
  void MoveReaders(int norm, int made) {
    std::set<int> readers;
    for (const Consumer& c : view_->consumers(norm)) readers.insert(c.node);
    for (int reader : readers) {
      std::vector<TensorId> inputs = view_->inputs(reader);
      for (TensorId& input : inputs) {
        if (input.node == norm) input.node = made;
      }
      const NodeDef def = view_->def(reader);
      view_->ReplaceNode(reader, def, inputs, view_->control_inputs(reader));
    }
    const std::vector<int> waiting = view_->control_consumers(norm);
    for (int waiter : waiting) view_->AddControlInput(waiter, made);
    view_->DropControlConsumers(norm);
    view_->RemoveNode(norm);
  }

  GraphView* view_;
  Shapes* shapes_;
  const std::function<bool(int)>& keep_;
  std::unordered_map<TensorId, TensorId, TensorIdHash> wide_;  // narrow tensor -> in float32
};

}  // namespace

bool TakeInCasts(GraphView* view, Shapes* shapes, const std::function<bool(int)>& nodes,
                 const std::function<bool(int)>& keep, bool compiled) {
  const Candidates candidates = FindCandidates(view, nodes, keep, compiled);
  if (candidates.empty()) return false;
  Editor(view, shapes, keep).Apply(candidates);
  return true;
}

bool WouldTakeInCasts(GraphView* view, const std::function<bool(int)>& nodes,
                      const std::function<bool(int)>& keep, bool compiled) {
  return !FindCandidates(view, nodes, keep, compiled).empty();
}

}  // namespace nv_norms
