#include "plugin/casts/candidates.h"

#include <algorithm>
#include <map>
#include <string>

#include "plugin/graph/constants.h"
#include "plugin/graph/fused_ops.h"
#include "plugin/recognizer/ops.h"
#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/node_def.pb.h"

namespace nv_norms {
namespace {

using tensorflow::DataType;
using tensorflow::DT_FLOAT;

// float32 to half or bfloat16.
bool Narrows(const GraphView& view, int node) {
  return view.op(node) == "Cast" && !HasOwnGradient(view, node) &&
         view.GetType(node, "SrcT") == DT_FLOAT && IsNarrow(view.GetType(node, "DstT")) &&
         !view.GetBool(node, "Truncate", false);
}

bool Widens(const GraphView& view, int node) {
  return IsWideningCast(view, node) && !HasOwnGradient(view, node);
}

bool HasCasts(const GraphView& view) {
  for (int node = 0; node < view.num_nodes(); ++node) {
    if (view.alive(node) && (Narrows(view, node) || Widens(view, node))) return true;
  }
  return false;
}

class Finder {
 public:
  Finder(const GraphView& view, const std::function<bool(int)>& nodes,
         const std::function<bool(int)>& keep, bool compiled)
      : view_(view), nodes_(nodes), keep_(keep), compiled_(compiled) {}

  Candidates Find() {
    FindInputs();
    for (int node = 0; node < view_.num_nodes(); ++node) {
      if (MayChange(node)) FindOutputs(node);
    }
    while (RefuseSome()) {
    }
    return std::move(found_);
  }

 private:
  bool MayChange(int node) const {
    return view_.alive(node) && IsFusedNorm(view_.op(node)) && nodes_(node);
  }

  // Casts of tensors that only fused ops read.
  void FindInputs() {
    using Narrowed = std::pair<TensorId, DataType>;
    std::map<Narrowed, Candidate> candidates;
    std::set<Narrowed> refused;
    for (int node = 0; node < view_.num_nodes(); ++node) {
      if (!view_.alive(node) || !view_.live(node) || !Narrows(view_, node)) continue;
      const Narrowed narrowed{view_.inputs(node)[0], view_.GetType(node, "DstT")};
      Candidate& candidate = candidates[narrowed];
      candidate.casts.push_back(node);
      // Not past a control edge: in a branch it keeps a node from running.
      if (keep_(node) || !view_.control_inputs(node).empty() ||
          !FollowInput({node, 0}, view_.def(node).device(), &candidate)) {
        refused.insert(narrowed);
      }
    }
    for (auto& [narrowed, candidate] : candidates) {
      const TensorId wide = narrowed.first;
      if (refused.count(narrowed) == 0 && !candidate.slots.empty() &&
          PaysToReadWide(candidate.slots.size()) && StatisticsFit(candidate) &&
          (!compiled_ || ComesFromMemory(wide) || GoesToMemory(wide))) {
        found_.inputs.push_back(std::move(candidate));
      }
    }
  }

  // Whether only fused ops on this device read a tensor, directly or through views; adds them.
  bool FollowInput(TensorId tensor, const std::string& device, Candidate* candidate) const {
    for (const Consumer& c : view_.consumers(tensor)) {
      if (!view_.live(c.node)) continue;
      if (view_.op(c.node) == "Shape") {
        candidate->shapes.push_back(c.node);
        continue;
      }
      if (view_.def(c.node).device() != device) return false;
      if (MayChange(c.node)) {
        const int of_x = IsFusedGradient(view_.op(c.node)) ? 1 : 0;
        if (c.slot > of_x) return false;
        candidate->slots.insert({c.node, c.slot == of_x ? Role::kX : Role::kDy, c.slot});
      } else {
        if (!MayPass(c.node)) return false;
        candidate->views.push_back(c.node);
        if (!FollowInput({c.node, 0}, device, candidate)) return false;
      }
    }
    return true;
  }

  // Whether the node is a view that may be made anew.
  bool MayPass(int node) const {
    return IsPlainView(view_.op(node)) && !keep_(node) && !HasOwnGradient(view_, node) &&
           view_.control_inputs(node).empty() && view_.control_consumers(node).empty();
  }

  // A gradient uses mean and rstd of its x, rounded or not: a forward and all gradients that read
  // them change together, or, where not all are known, not at all.
  bool StatisticsFit(const Candidate& candidate) const {
    const auto changes = [&](int node) { return candidate.slots.count({node, Role::kX, 0}) > 0; };
    for (const Slot& slot : candidate.slots) {
      if (slot.role != Role::kX) continue;
      if (IsFusedGradient(view_.op(slot.norm))) {
        const auto& inputs = view_.inputs(slot.norm);
        const size_t first =
            2 + view_.GetInt(slot.norm, "num_scale", 0) + view_.GetInt(slot.norm, "num_offset", 0);
        for (size_t i = first; i < inputs.size(); ++i) {
          if (!changes(inputs[i].node)) return false;
        }
        continue;
      }
      for (const Consumer& c : view_.consumers(slot.norm)) {
        if (c.port > 0 && view_.live(c.node) && !changes(c.node)) return false;
      }
    }
    return true;
  }

  // Whether a compiler, too, has the tensor in memory because a function gets it or a fused op
  // writes it.
  bool ComesFromMemory(TensorId tensor) const {
    int source = tensor.node;
    while (IsPlainView(view_.op(source))) source = view_.inputs(source)[0].node;
    const std::string& op = view_.op(source);
    return op == "Placeholder" || op == "_Arg" || IsFusedNorm(op);
  }

  // The same because a function hands it out or a fused op reads it.
  bool GoesToMemory(TensorId tensor) const {
    if (keep_(tensor.node)) return true;
    for (const Consumer& c : view_.consumers(tensor)) {
      if (IsFusedNorm(view_.op(c.node)) || keep_(c.node)) return true;
      if (IsPlainView(view_.op(c.node)) && GoesToMemory({c.node, 0})) return true;
    }
    return false;
  }

  void FindOutputs(int norm) {
    if (keep_(norm)) return;
    if (!IsFusedGradient(view_.op(norm))) {
      FindOutput(norm, Role::kY, 0, 1);
      return;
    }
    const int dx = static_cast<int>(view_.GetInt(norm, "num_dx", 1));
    const int parameters = static_cast<int>(view_.GetInt(norm, "num_dscale", 1) +
                                            view_.GetInt(norm, "num_doffset", 1));
    FindOutput(norm, Role::kDx, 0, dx);
    FindOutput(norm, Role::kParameters, dx, dx + parameters);
  }

  // Casts of the outputs from port `first` to before `end`.
  void FindOutput(int norm, Role role, int first, int end) {
    if (!IsNarrow(view_.GetType(norm, AttributeOf(role)))) return;
    Candidate candidate;
    candidate.slots.insert({norm, role, -1});
    for (int port = first; port < end; ++port) {
      if (!FollowOutput({norm, port}, view_.def(norm).device(), &candidate)) return;
    }
    const auto& casts = candidate.casts;
    if (casts.empty()) return;
    if (compiled_ && std::none_of(casts.begin(), casts.end(),
                                  [&](int cast) { return GoesToMemory({cast, 0}); })) {
      return;
    }
    found_.outputs.push_back(std::move(candidate));
  }

  // Whether only Casts to float32 on this device read a tensor, directly or through views; adds
  // them. What nobody needs counts here: it would keep the op beside the new one.
  bool FollowOutput(TensorId tensor, const std::string& device, Candidate* candidate) const {
    for (const Consumer& c : view_.consumers(tensor)) {
      if (view_.op(c.node) == "Shape") {
        candidate->shapes.push_back(c.node);
        continue;
      }
      if (view_.def(c.node).device() != device) return false;
      if (Widens(view_, c.node)) {
        candidate->casts.push_back(c.node);
      } else {
        if (!MayPass(c.node)) return false;
        candidate->views.push_back(c.node);
        if (!FollowOutput({c.node, 0}, device, candidate)) return false;
      }
    }
    return true;
  }

  // Leaves what would leave an op without kernels for its types if all else were taken in. Whether
  // there was any.
  bool RefuseSome() {
    std::map<int, Types> types;
    for (const auto* candidates : {&found_.inputs, &found_.outputs}) {
      for (const Candidate& candidate : *candidates) {
        for (const Slot& slot : candidate.slots) {
          types.emplace(slot.norm, TypesOf(view_, slot.norm)).first->second[slot.role] = DT_FLOAT;
        }
      }
    }
    const auto leaves_slow = [&](const Slot& slot) {
      const int norm = slot.norm;
      return slot.role != Role::kParameters && !HasKernels(view_, norm, types.at(norm)) &&
             HasKernels(view_, norm, TypesOf(view_, norm));
    };
    const auto refuse = [&](const Candidate& candidate) {
      return std::any_of(candidate.slots.begin(), candidate.slots.end(), leaves_slow);
    };
    bool refused = false;
    for (auto* candidates : {&found_.inputs, &found_.outputs}) {
      const auto end = std::remove_if(candidates->begin(), candidates->end(), refuse);
      refused = refused || end != candidates->end();
      candidates->erase(end, candidates->end());
    }
    return refused;
  }

  const GraphView& view_;
  const std::function<bool(int)>& nodes_;
  const std::function<bool(int)>& keep_;
  const bool compiled_;
  Candidates found_;
};

}  // namespace

Candidates FindCandidates(GraphView* view, const std::function<bool(int)>& nodes,
                          const std::function<bool(int)>& keep, bool compiled) {
  if (!HasCasts(*view)) return {};
  view->MarkLive([&](int node) { return keep(node) || !IsPure(view->op(node)); });
  return Finder(*view, nodes, keep, compiled).Find();
}

}  // namespace nv_norms
