#include "plugin/activations/candidates.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <unordered_set>

#include "plugin/activations/silu.h"
#include "plugin/graph/fused_ops.h"
#include "plugin/recognizer/ops.h"
#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/node_def.pb.h"

namespace nv_norms {
namespace {

constexpr float kLeakyReluAlpha = 0.2f;  // the op's default

bool Contains(const std::vector<int>& nodes, int node) {
  return std::find(nodes.begin(), nodes.end(), node) != nodes.end();
}

bool IsActivation(const std::string& op) { return op == "LeakyRelu" || op == "Relu"; }

// The ops of which there are kernels with an activation inside.
bool TakesActivation(const std::string& op) {
  return op == "FusedInstanceNorm" || op == "FusedGroupNorm";
}

bool IsActivationGradient(const std::string& op) {
  return op == "LeakyReluGrad" || op == "ReluGrad";
}

class Finder {
 public:
  Finder(const GraphView& view, const Shapes* shapes, const std::function<bool(int)>& keep,
         bool compiled)
      : view_(view), shapes_(shapes), keep_(keep), compiled_(compiled) {}

  std::optional<ActivatedNorm> At(int norm) {
    if (!view_.alive(norm) || !TakesActivation(view_.op(norm)) || !MayGo(norm) ||
        HasActivation(view_, norm)) {
      return std::nullopt;
    }
    const int64_t parameters =
        view_.GetInt(norm, "num_scale", 0) + view_.GetInt(norm, "num_offset", 0);
    if (static_cast<int64_t>(view_.inputs(norm).size()) != 1 + parameters) return std::nullopt;
    ActivatedNorm found;
    found.norm = norm;
    y_ = {{norm, 0}};
    if (!FollowY({norm, 0}, &found)) return std::nullopt;
    if (!readers_.empty()) {
      if (found.activation >= 0 || !found.activation_gradients.empty() || !TakeSilu(&found)) {
        return std::nullopt;
      }
    } else {
      if (found.activation < 0 || found.stays) return std::nullopt;
      found.slope = SlopeOf(found.activation);
      if (!std::isfinite(found.slope) || found.slope == 1.0f) return std::nullopt;
    }
    if (!FindGradients(&found) || !HasShapeOfX(found) || !MayWait(found)) return std::nullopt;
    return found;
  }

 private:
  bool MayGo(int node) const { return !keep_(node) && !HasOwnGradient(view_, node); }

  bool IsBeside(int node, int norm) const {
    return view_.def(node).device() == view_.def(norm).device();
  }

  // What reads y's shape is made to read x's, which may have one sample where y has several.
  bool HasShapeOfX(const ActivatedNorm& found) const {
    if (found.shapes.empty() || !view_.GetBool(found.norm, "per_sample", false)) return true;
    if (shapes_ == nullptr) return false;
    const TensorInfo& x = shapes_->Get(view_.inputs(found.norm)[0]);
    const TensorInfo& y = shapes_->Get({found.norm, 0});
    return x.rank_known && y.rank_known && !x.dims.empty() && x.dims[0] >= 0 && x.dims == y.dims;
  }

  float SlopeOf(int activation) const {
    return view_.op(activation) == "Relu" ? 0.0f
                                          : view_.GetFloat(activation, "alpha", kLeakyReluAlpha);
  }

  // Whether an activation reads y, directly or through Identities, and beside it only gradients of
  // one; adds them. What else reads y may be part of a silu.
  bool FollowY(TensorId y, ActivatedNorm* found) {
    for (const Consumer& c : view_.consumers(y)) {
      if (!view_.live(c.node)) continue;
      const std::string& op = view_.op(c.node);
      if (ReadsShape(op)) {
        found->shapes.push_back(c.node);
        continue;
      }
      if (op == "IdentityN") {
        if (!EndsIn(y, c, *found)) return false;
        found->stays = true;
        continue;
      }
      if (!IsBeside(c.node, found->norm) || HasOwnGradient(view_, c.node)) return false;
      if (op == "Identity") {
        if (keep_(c.node) || !view_.control_inputs(c.node).empty()) return false;
        found->identities.push_back(c.node);
        y_.insert({c.node, 0});
        if (!FollowY({c.node, 0}, found)) return false;
      } else if (IsActivation(op)) {
        if (found->activation >= 0) return false;
        found->activation = c.node;
      } else if (IsActivationGradient(op) && c.slot == 1) {
        found->activation_gradients[c.node] = view_.inputs(c.node)[0];
      } else {
        readers_.insert(c.node);
      }
    }
    return true;
  }

  // Whether nobody reads on what an IdentityN reads here. TensorFlow puts one around what has a
  // gradient of its own, and hands it all that the gradient is with respect to. The norm is to stay
  // for it: a compiler drops that.
  bool EndsIn(TensorId y, const Consumer& identities, const ActivatedNorm& found) const {
    if (!compiled_ || y.node != found.norm || keep_(identities.node)) return false;
    for (const Consumer& c : view_.consumers(TensorId{identities.node, identities.slot})) {
      if (view_.live(c.node)) return false;
    }
    return true;
  }

  // Whether all that reads y makes a silu of it, and gradients of that; adds them.
  bool TakeSilu(ActivatedNorm* found) const {
    const auto type = view_.GetType(found->norm, "out_type");
    const SiluNodes nodes = FindSilu(view_, y_, [&](int node) {
      return IsBeside(node, found->norm) && !HasOwnGradient(view_, node) &&
             view_.GetType(node, "T") == type;
    });
    if (nodes.silu < 0 || nodes.several) return false;
    const auto is_function = [&](int node) { return Contains(nodes.functions, node); };
    if (!std::all_of(readers_.begin(), readers_.end(), is_function)) return false;
    found->silu = true;
    found->activation = nodes.silu;
    for (int node : nodes.functions) {
      if (node == nodes.silu) continue;
      if (keep_(node) || !view_.control_consumers(node).empty()) return false;
      const bool derivative = Contains(nodes.derivatives, node);
      for (const Consumer& c : view_.consumers(node)) {
        if (!view_.live(c.node) || is_function(c.node)) continue;
        if (!derivative || view_.op(c.node) != "Mul") return false;
        const TensorId other = view_.inputs(c.node)[1 - c.slot];
        if (y_.count(other) > 0 || is_function(other.node) || !HaveOneShape(other, found->norm)) {
          return false;
        }
        found->activation_gradients[c.node] = other;
      }
      found->functions.push_back(node);
    }
    return true;
  }

  // Whether a tensor has y's shape. An unknown size is taken not to be 1.
  bool HaveOneShape(TensorId tensor, int norm) const {
    if (shapes_ == nullptr) return true;
    const TensorInfo& a = shapes_->Get(tensor);
    const TensorInfo& b = shapes_->Get({norm, 0});
    if (!a.rank_known || !b.rank_known || a.dims.size() != b.dims.size()) return false;
    for (size_t i = 0; i < a.dims.size(); ++i) {
      if (a.dims[i] == b.dims[i] || (a.dims[i] < 0 && b.dims[i] < 0)) continue;
      if (std::max(a.dims[i], b.dims[i]) <= 1 || (a.dims[i] >= 0 && b.dims[i] >= 0)) return false;
    }
    return true;
  }

  // Whether all fused gradients of the norm read, as their dy, what the activation's gradient
  // gives, and nobody else does; adds them.
  bool FindGradients(ActivatedNorm* found) const {
    for (const Consumer& c : view_.consumers(found->norm)) {
      if (c.port == 0 || !view_.live(c.node) || !IsFusedGradient(view_.op(c.node))) continue;
      if (Contains(found->norm_gradients, c.node)) continue;
      // Parameters included: xhat * gamma + beta is to be computed in it.
      if (!IsGradientOf(view_, c.node, found->norm)) return false;
      const TensorId dy = view_.inputs(c.node)[0];
      if (!IsGradientOfActivation(dy.node, *found)) return false;
      found->norm_gradients.push_back(c.node);
      if (!found->silu) found->activation_gradients[dy.node] = view_.inputs(dy.node)[0];
    }
    for (const auto& [gradient, behind] : found->activation_gradients) {
      if (!MayGo(gradient) || !IsBeside(gradient, found->norm) ||
          !IsGradientOfActivation(gradient, *found)) {
        return false;
      }
      for (const Consumer& c : view_.consumers(gradient)) {
        if (!view_.live(c.node)) continue;
        if (ReadsShape(view_.op(c.node))) {
          found->shapes.push_back(c.node);
        } else if (c.slot != 0 || !Contains(found->norm_gradients, c.node)) {
          return false;
        }
      }
      // Who waits for it is to wait for what it reads; a branch's tensor has no control edge to
      // give.
      const std::string& op = view_.op(behind.node);
      const bool branches = IsSwitchOrMerge(op);
      if (branches && !view_.control_consumers(gradient).empty()) return false;
    }
    return true;
  }

  bool IsGradientOfActivation(int gradient, const ActivatedNorm& found) const {
    if (found.silu) return found.activation_gradients.count(gradient) > 0;
    const std::string& op = view_.op(gradient);
    if (op != view_.op(found.activation) + "Grad" || view_.inputs(gradient).size() != 2) {
      return false;
    }
    const TensorId features = view_.inputs(gradient)[1];
    if (op == "LeakyReluGrad") {
      return y_.count(features) > 0 &&
             view_.GetFloat(gradient, "alpha", kLeakyReluAlpha) == found.slope;
    }
    // A relu's output is positive where its input is.
    return y_.count(features) > 0 || features == TensorId{found.activation, 0};
  }

  // Whether the norm may run where the activation does, and all who wait for it or read its
  // statistics then. In a branch or a loop, what an activation waits for may keep it from running.
  bool MayWait(const ActivatedNorm& found) const {
    const std::unordered_set<int> norm = {found.norm};
    const auto& waits = view_.control_inputs(found.norm);
    const auto may_wait_as = [&](int node) {
      for (int control : view_.control_inputs(node)) {
        if (Contains(waits, control)) continue;
        if (HasBranches() || view_.DependsOn(control, norm)) return false;
      }
      return true;
    };
    const std::vector<int> before = FunctionsBehind(view_, found, found.activation);
    return may_wait_as(found.activation) && std::all_of(before.begin(), before.end(), may_wait_as);
  }

  bool HasBranches() const {
    for (int node = 0; node < view_.num_nodes(); ++node) {
      const std::string& op = view_.op(node);
      if (view_.alive(node) && (op == "Switch" || op == "RefSwitch")) return true;
    }
    return false;
  }

  const GraphView& view_;
  const Shapes* shapes_;
  const std::function<bool(int)>& keep_;
  const bool compiled_;
  std::set<TensorId> y_;   // that of the norm in question, and its Identities
  std::set<int> readers_;  // of y, that are neither activations nor gradients of one
};

}  // namespace

bool MayBeActivation(const std::string& op) { return IsActivation(op) || op == "Sigmoid"; }

std::vector<int> FunctionsBehind(const GraphView& view, const ActivatedNorm& found, int node) {
  std::set<int> needed = {node};
  std::vector<int> behind;
  const auto look = [&](int each) {
    for (const TensorId& input : view.inputs(each)) needed.insert(input.node);
  };
  look(node);
  for (auto i = found.functions.rbegin(); i != found.functions.rend(); ++i) {
    if (needed.count(*i) == 0) continue;
    behind.push_back(*i);
    look(*i);
  }
  return behind;
}

void MarkLiveAroundNorms(GraphView* view, const std::function<bool(int)>& keep) {
  view->MarkLive([&](int node) {
    const std::string& op = view->op(node);
    const bool pure =
        IsPure(op) || IsFusedNorm(op) || MayBeActivation(op) || IsActivationGradient(op);
    return keep(node) || !pure;
  });
}

std::optional<ActivatedNorm> FindActivation(const GraphView& view, const Shapes* shapes, int norm,
                                            const std::function<bool(int)>& keep, bool compiled) {
  return Finder(view, shapes, keep, compiled).At(norm);
}

}  // namespace nv_norms
