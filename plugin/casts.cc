#include "plugin/casts.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "plugin/edit_steps.h"
#include "plugin/graph/fused_ops.h"
#include "plugin/recognizer/ops.h"
#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/platform/logging.h"

namespace nv_norms {
namespace {

using tensorflow::DataType;
using tensorflow::DT_FLOAT;
using tensorflow::NodeDef;

// Each is an attribute of the fused ops that says the type of one or two tensors.
enum class Role { kX, kDy, kY, kDx, kParameters };

const char* AttributeOf(Role role) {
  switch (role) {
    case Role::kX:
      return "T";
    case Role::kDy:
      return "Y";
    case Role::kY:
      return "out_type";
    case Role::kDx:
      return "dx_type";
    case Role::kParameters:
      return "param_type";
  }
  return "";
}

bool IsNarrow(DataType type) {
  return type == tensorflow::DT_HALF || type == tensorflow::DT_BFLOAT16;
}

// What is differentiated after this by a function of its own must stay.
bool HasOwnGradient(const GraphView& view, int node) {
  return view.def(node).attr().count("_gradient_op_type") > 0;
}

// float32 to half or bfloat16.
bool Narrows(const GraphView& view, int node) {
  return view.op(node) == "Cast" && !HasOwnGradient(view, node) &&
         view.GetType(node, "SrcT") == DT_FLOAT && IsNarrow(view.GetType(node, "DstT")) &&
         !view.GetBool(node, "Truncate", false);
}

bool Widens(const GraphView& view, int node) {
  return view.op(node) == "Cast" && !HasOwnGradient(view, node) &&
         view.GetType(node, "DstT") == DT_FLOAT && IsNarrow(view.GetType(node, "SrcT"));
}

bool IsView(const std::string& op) {
  return op == "Identity" || op == "Reshape" || op == "ExpandDims" || op == "Squeeze";
}

// Whether fused ops that read a tensor this many times read and write fewer bytes without the Cast
// (4 + 2 an element) that narrows it: up to twice, forward and in the gradient.
bool PaysToReadWide(size_t reads) { return reads * 4 < 4 + 2 + reads * 2; }

// The types of a fused op's tensors.
using Types = std::map<Role, DataType>;

// Whether kernels are made for these types. The rest is computed, too, but not at the memory's
// speed: CUDA kernels look up each element's type. CPU kernels convert through buffers; taking in
// pays there all the same (on 2 cores that others used too, least of 5 or 9 in turns: a Cast of x
// 0.9 to 1.6 times as fast, Casts of x and y 1.3 to 3.8, of dy and dx 1.2 to 2.4), but for instance
// and group norm with dy alone in half: forward and gradient together 0.90 to 0.93 in float16, 1.18
// to 1.25 in bfloat16.
bool HasKernels(const GraphView& view, int node, const Types& types) {
  const DataType x = types.at(Role::kX);
  const bool on_cpu = view.def(node).device().find("CPU") != std::string::npos;
  if (!IsFusedGradient(view.op(node))) {
    const DataType y = types.at(Role::kY);
    return on_cpu || x == y || (x == DT_FLOAT && IsNarrow(y));
  }
  const DataType dy = types.at(Role::kDy);
  const bool in_type = view.GetInt(node, "num_dx", 1) == 0 || types.at(Role::kDx) == x;
  if (!in_type) return false;
  if (dy == x) return true;
  const bool by_channel = view.def(node).attr().count("data_format") > 0;
  const bool slow = on_cpu && by_channel && dy == tensorflow::DT_HALF;
  return x == DT_FLOAT && IsNarrow(dy) && !slow;
}

// A tensor of a fused op that would be float32.
struct Slot {
  int norm;
  Role role;
  int input;  // kX, kDy
  bool operator<(const Slot& o) const {
    return std::make_pair(norm, role) < std::make_pair(o.norm, o.role);
  }
};

// What is taken in as a whole or not at all: the Casts of one tensor to one type, or those that
// read one output of a fused op (of the parameters' gradients, both).
struct Candidate {
  std::set<Slot> slots;
  std::vector<int> casts;
  std::vector<int> views;   // between them and the fused ops
  std::vector<int> shapes;  // Shape ops, which may read either
  bool wanted = true;
};

class Pass {
 public:
  Pass(GraphView* view, Shapes* shapes, const std::function<bool(int)>& nodes,
       const std::function<bool(int)>& keep, bool compiled)
      : view_(view), shapes_(shapes), nodes_(nodes), keep_(keep), compiled_(compiled) {}

  bool Find() {
    if (!HasCasts()) return false;
    view_->MarkLive([this](int node) { return keep_(node) || !IsPure(view_->op(node)); });
    FindInputs();
    for (int node = 0; node < view_->num_nodes(); ++node) {
      if (MayChange(node)) FindOutputs(node);
    }
    Refuse();
    const auto wanted = [](const Candidate& candidate) { return candidate.wanted; };
    return std::any_of(inputs_.begin(), inputs_.end(), wanted) ||
           std::any_of(outputs_.begin(), outputs_.end(), wanted);
  }

  void Apply() {
    for (const Candidate& candidate : inputs_) {
      if (candidate.wanted) ReadWide(candidate);
    }
    // A new op for all outputs of one norm.
    std::map<int, std::vector<const Candidate*>> of_norm;
    for (const Candidate& candidate : outputs_) {
      if (candidate.wanted) of_norm[candidate.slots.begin()->norm].push_back(&candidate);
    }
    for (const auto& [norm, candidates] : of_norm) WriteWide(norm, candidates);
  }

 private:
  bool HasCasts() const {
    for (int node = 0; node < view_->num_nodes(); ++node) {
      if (view_->alive(node) && (Narrows(*view_, node) || Widens(*view_, node))) return true;
    }
    return false;
  }

  bool MayChange(int node) const {
    return view_->alive(node) && IsFusedNorm(view_->op(node)) && nodes_(node);
  }

  // Casts of tensors that only fused ops read.
  void FindInputs() {
    std::map<std::pair<TensorId, DataType>, Candidate> of_tensor;
    for (int node = 0; node < view_->num_nodes(); ++node) {
      if (!view_->alive(node) || !view_->live(node) || !Narrows(*view_, node)) continue;
      Candidate& candidate = of_tensor[{view_->inputs(node)[0], view_->GetType(node, "DstT")}];
      candidate.casts.push_back(node);
      // Not past a control edge: in a branch it keeps a node from running.
      candidate.wanted = candidate.wanted && !keep_(node) && view_->control_inputs(node).empty() &&
                         FollowInput({node, 0}, view_->def(node).device(), &candidate);
    }
    for (auto& [key, candidate] : of_tensor) {
      if (candidate.wanted && !candidate.slots.empty() && PaysToReadWide(candidate.slots.size()) &&
          StatisticsFit(candidate) && (!compiled_ || IsStored(key.first, /*looks_back=*/true))) {
        inputs_.push_back(std::move(candidate));
      }
    }
  }

  // Whether only fused ops on this device read a tensor, directly or through views; adds them.
  bool FollowInput(TensorId tensor, const std::string& device, Candidate* candidate) const {
    for (const Consumer& c : view_->consumers(tensor)) {
      if (!view_->live(c.node)) continue;
      if (view_->op(c.node) == "Shape") {
        candidate->shapes.push_back(c.node);
        continue;
      }
      if (view_->def(c.node).device() != device) return false;
      if (MayChange(c.node)) {
        const int of_x = IsFusedGradient(view_->op(c.node)) ? 1 : 0;
        if (c.slot > of_x) return false;
        candidate->slots.insert({c.node, c.slot == of_x ? Role::kX : Role::kDy, c.slot});
      } else {
        if (!IsPlainView(c.node)) return false;
        candidate->views.push_back(c.node);
        if (!FollowInput({c.node, 0}, device, candidate)) return false;
      }
    }
    return true;
  }

  bool IsPlainView(int node) const {
    return IsView(view_->op(node)) && !keep_(node) && !HasOwnGradient(*view_, node) &&
           view_->control_inputs(node).empty() && view_->control_consumers(node).empty();
  }

  // A gradient uses mean and rstd of its x, rounded or not: a forward and all gradients that read
  // them change together, or, where not all are known, not at all.
  bool StatisticsFit(const Candidate& candidate) const {
    const auto changes = [&](int node) { return candidate.slots.count({node, Role::kX, 0}) > 0; };
    for (const Slot& slot : candidate.slots) {
      if (slot.role != Role::kX) continue;
      if (IsFusedGradient(view_->op(slot.norm))) {
        const auto& inputs = view_->inputs(slot.norm);
        const size_t first = 2 + view_->GetInt(slot.norm, "num_scale", 0);
        for (size_t i = first; i < inputs.size(); ++i) {
          if (!changes(inputs[i].node)) return false;
        }
        continue;
      }
      for (const Consumer& c : view_->consumers(slot.norm)) {
        if (c.port > 0 && view_->live(c.node) && !changes(c.node)) return false;
      }
    }
    return true;
  }

  // Whether a compiler, too, has the tensor in memory: a function gets it or hands it out, or a
  // fused op writes or reads it.
  bool IsStored(TensorId tensor, bool looks_back) const {
    if (looks_back) {
      TensorId source = tensor;
      while (IsView(view_->op(source.node))) source = view_->inputs(source.node)[0];
      const std::string& op = view_->op(source.node);
      if (op == "Placeholder" || op == "_Arg" || IsFusedNorm(op)) return true;
    }
    if (keep_(tensor.node)) return true;
    for (const Consumer& c : view_->consumers(tensor)) {
      if (IsFusedNorm(view_->op(c.node))) return true;
      if (keep_(c.node)) return true;
      if (IsView(view_->op(c.node)) && IsStored({c.node, 0}, /*looks_back=*/false)) return true;
    }
    return false;
  }

  void FindOutputs(int norm) {
    if (keep_(norm)) return;
    const auto add = [&](Role role, int first, int end) {
      Candidate candidate;
      candidate.slots.insert({norm, role, -1});
      for (int port = first; port < end; ++port) {
        if (!FollowOutput({norm, port}, view_->def(norm).device(), &candidate)) return;
      }
      if (candidate.casts.empty()) return;
      const bool stored =
          std::any_of(candidate.casts.begin(), candidate.casts.end(),
                      [&](int cast) { return IsStored({cast, 0}, /*looks_back=*/false); });
      if (!compiled_ || stored) outputs_.push_back(std::move(candidate));
    };
    if (!IsFusedGradient(view_->op(norm))) {
      if (IsNarrow(view_->GetType(norm, "out_type"))) add(Role::kY, 0, 1);
      return;
    }
    const int dx = static_cast<int>(view_->GetInt(norm, "num_dx", 1));
    const int parameters = static_cast<int>(view_->GetInt(norm, "num_dscale", 1) +
                                            view_->GetInt(norm, "num_doffset", 1));
    if (IsNarrow(view_->GetType(norm, "dx_type"))) add(Role::kDx, 0, dx);
    if (IsNarrow(view_->GetType(norm, "param_type"))) {
      add(Role::kParameters, dx, dx + parameters);
    }
  }

  // Whether only Casts to float32 on this device read a tensor, directly or through views; adds
  // them. What nobody needs counts here: it would keep the op beside the new one.
  bool FollowOutput(TensorId tensor, const std::string& device, Candidate* candidate) const {
    for (const Consumer& c : view_->consumers(tensor)) {
      if (view_->op(c.node) == "Shape") {
        candidate->shapes.push_back(c.node);
        continue;
      }
      if (view_->def(c.node).device() != device) return false;
      if (Widens(*view_, c.node)) {
        candidate->casts.push_back(c.node);
      } else {
        if (!IsPlainView(c.node)) return false;
        candidate->views.push_back(c.node);
        if (!FollowOutput({c.node, 0}, device, candidate)) return false;
      }
    }
    return true;
  }

  Types TypesNow(int norm) const {
    Types types;
    for (Role role : {Role::kX, Role::kDy, Role::kY, Role::kDx, Role::kParameters}) {
      types[role] = view_->GetType(norm, AttributeOf(role));
    }
    return types;
  }

  // Leaves what would leave an op without kernels for its types if all else were taken in.
  void Refuse() {
    for (bool again = true; again;) {
      again = false;
      std::map<int, Types> types;
      std::map<int, std::vector<Candidate*>> touching;
      for (auto* candidates : {&inputs_, &outputs_}) {
        for (Candidate& candidate : *candidates) {
          if (!candidate.wanted) continue;
          for (const Slot& slot : candidate.slots) {
            types.emplace(slot.norm, TypesNow(slot.norm)).first->second[slot.role] = DT_FLOAT;
            touching[slot.norm].push_back(&candidate);
          }
        }
      }
      for (const auto& [norm, then] : types) {
        if (HasKernels(*view_, norm, then) || !HasKernels(*view_, norm, TypesNow(norm))) continue;
        for (Candidate* candidate : touching[norm]) {
          const auto& slots = candidate->slots;
          const bool small = std::all_of(slots.begin(), slots.end(), [](const Slot& slot) {
            return slot.role == Role::kParameters;
          });
          if (small) continue;
          candidate->wanted = false;
          again = true;
        }
      }
    }
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

  void WidenShapes(const Candidate& candidate) {
    for (int node : candidate.shapes) {
      NodeDef def = view_->def(node);
      SetType(&def, "T", DT_FLOAT);
      const TensorId wide = Widened(view_->inputs(node)[0]);
      view_->ReplaceNode(node, def, {wide}, view_->control_inputs(node));
    }
  }

  void ReadWide(const Candidate& candidate) {
    for (int cast : candidate.casts) wide_[{cast, 0}] = view_->inputs(cast)[0];
    for (const Slot& slot : candidate.slots) {
      std::vector<TensorId> inputs = view_->inputs(slot.norm);
      inputs[slot.input] = Widened(inputs[slot.input]);
      NodeDef def = view_->def(slot.norm);
      SetType(&def, AttributeOf(slot.role), DT_FLOAT);
      view_->ReplaceNode(slot.norm, def, inputs, view_->control_inputs(slot.norm));
      VLOG(2) << "Take " << view_->name(candidate.casts[0]) << " into " << view_->name(slot.norm)
              << ": it reads " << view_->name(inputs[slot.input]);
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
    const std::vector<TensorId> inputs = view_->inputs(norm);
    const std::vector<int> controls = view_->control_inputs(norm);
    const int made = view_->AddNode(def, inputs, controls, norm);
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
  const std::function<bool(int)>& nodes_;
  const std::function<bool(int)>& keep_;
  const bool compiled_;
  std::vector<Candidate> inputs_, outputs_;
  std::unordered_map<TensorId, TensorId, TensorIdHash> wide_;  // narrow tensor -> in float32
};

}  // namespace

bool TakeInCasts(GraphView* view, Shapes* shapes, const std::function<bool(int)>& nodes,
                 const std::function<bool(int)>& keep, bool compiled) {
  Pass pass(view, shapes, nodes, keep, compiled);
  if (!pass.Find()) return false;
  pass.Apply();
  return true;
}

bool WouldTakeInCasts(GraphView* view, const std::function<bool(int)>& nodes,
                      const std::function<bool(int)>& keep, bool compiled) {
  return Pass(view, nullptr, nodes, keep, compiled).Find();
}

}  // namespace nv_norms
