#include "plugin/activations/candidates.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <unordered_set>

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

// The ops of which there are kernels with an activation inside.
bool TakesActivation(const std::string& op) {
  return op == "FusedInstanceNorm" || op == "FusedGroupNorm";
}

bool IsActivationGradient(const std::string& op) {
  return op == "LeakyReluGrad" || op == "ReluGrad";
}

// What reads only a tensor's shape, and may read that of another one of the same shape.
bool ReadsShape(const std::string& op) { return op == "Shape" || op == "Size" || op == "Rank"; }

bool HasOwnGradient(const GraphView& view, int node) {
  return view.def(node).attr().count("_gradient_op_type") > 0;
}

class Finder {
 public:
  Finder(const GraphView& view, const std::function<bool(int)>& keep) : view_(view), keep_(keep) {}

  std::optional<ActivatedNorm> At(int norm) {
    if (!view_.alive(norm) || !TakesActivation(view_.op(norm)) || !MayGo(norm) ||
        view_.GetFloat(norm, "negative_slope", 1.0f) != 1.0f) {
      return std::nullopt;
    }
    const int64_t parameters =
        view_.GetInt(norm, "num_scale", 0) + view_.GetInt(norm, "num_offset", 0);
    if (static_cast<int64_t>(view_.inputs(norm).size()) != 1 + parameters) return std::nullopt;
    ActivatedNorm found;
    found.norm = norm;
    y_ = {{norm, 0}};
    if (!FollowY({norm, 0}, &found) || found.activation < 0) return std::nullopt;
    found.slope = SlopeOf(found.activation);
    if (!std::isfinite(found.slope) || found.slope == 1.0f) return std::nullopt;
    if (!FindGradients(&found) || !MayWait(found)) return std::nullopt;
    return found;
  }

 private:
  bool MayGo(int node) const { return !keep_(node) && !HasOwnGradient(view_, node); }

  bool IsBeside(int node, int norm) const {
    return view_.def(node).device() == view_.def(norm).device();
  }

  float SlopeOf(int activation) const {
    return view_.op(activation) == "Relu" ? 0.0f
                                          : view_.GetFloat(activation, "alpha", kLeakyReluAlpha);
  }

  // Whether an activation reads y, directly or through Identities, and beside it only gradients of
  // one; adds them.
  bool FollowY(TensorId y, ActivatedNorm* found) {
    for (const Consumer& c : view_.consumers(y)) {
      if (!view_.live(c.node)) continue;
      const std::string& op = view_.op(c.node);
      if (ReadsShape(op)) {
        found->shapes.push_back(c.node);
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
        found->activation_gradients.push_back(c.node);
      } else {
        return false;
      }
    }
    return true;
  }

  // Whether all fused gradients of the norm read, as their dy, what the activation's gradient
  // gives, and nobody else does; adds them.
  bool FindGradients(ActivatedNorm* found) const {
    for (const Consumer& c : view_.consumers(found->norm)) {
      if (c.port == 0 || !view_.live(c.node) || !IsFusedGradient(view_.op(c.node))) continue;
      if (Contains(found->norm_gradients, c.node)) continue;
      if (!IsGradientOf(c.node, found->norm)) return false;
      const TensorId dy = view_.inputs(c.node)[0];
      if (!IsGradientOfActivation(dy.node, *found)) return false;
      found->norm_gradients.push_back(c.node);
      if (!Contains(found->activation_gradients, dy.node)) {
        found->activation_gradients.push_back(dy.node);
      }
    }
    for (int gradient : found->activation_gradients) {
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
      const std::string& op = view_.op(view_.inputs(gradient)[0].node);
      const bool branches = op == "Switch" || op == "RefSwitch" || op == "Merge";
      if (branches && !view_.control_consumers(gradient).empty()) return false;
    }
    return true;
  }

  // Whether a fused gradient is that of this norm, parameters included: xhat * gamma + beta is to
  // be computed in it.
  bool IsGradientOf(int gradient, int norm) const {
    if (view_.op(gradient) != view_.op(norm) + "Grad" || !IsBeside(gradient, norm) ||
        HasOwnGradient(view_, gradient) ||
        view_.GetFloat(gradient, "negative_slope", 1.0f) != 1.0f ||
        view_.GetInt(gradient, "num_offset", 0) != 0) {
      return false;
    }
    for (const char* attr : {"T", "P", "U"}) {
      if (view_.GetType(gradient, attr) != view_.GetType(norm, attr)) return false;
    }
    if (view_.GetInt(gradient, "groups", 0) != view_.GetInt(norm, "groups", 0) ||
        view_.GetString(gradient, "data_format", "N...C") !=
            view_.GetString(norm, "data_format", "N...C")) {
      return false;
    }
    const size_t scales = view_.GetInt(norm, "num_scale", 0);
    if (view_.GetInt(gradient, "num_scale", 0) != static_cast<int64_t>(scales)) return false;
    const auto& read = view_.inputs(gradient);
    const auto& of_norm = view_.inputs(norm);
    return read.size() == scales + 4 &&
           std::equal(of_norm.begin(), of_norm.begin() + scales + 1, read.begin() + 1) &&
           read[scales + 2] == TensorId{norm, 1} && read[scales + 3] == TensorId{norm, 2};
  }

  bool IsGradientOfActivation(int gradient, const ActivatedNorm& found) const {
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
    for (int control : view_.control_inputs(found.activation)) {
      if (Contains(waits, control)) continue;
      if (HasBranches() || view_.DependsOn(control, norm)) return false;
    }
    return true;
  }

  bool HasBranches() const {
    for (int node = 0; node < view_.num_nodes(); ++node) {
      const std::string& op = view_.op(node);
      if (view_.alive(node) && (op == "Switch" || op == "RefSwitch")) return true;
    }
    return false;
  }

  const GraphView& view_;
  const std::function<bool(int)>& keep_;
  std::set<TensorId> y_;  // that of the norm in question, and its Identities
};

}  // namespace

bool IsActivation(const std::string& op) { return op == "LeakyRelu" || op == "Relu"; }

void MarkLiveForActivations(GraphView* view, const std::function<bool(int)>& keep) {
  view->MarkLive([&](int node) {
    const std::string& op = view->op(node);
    const bool pure = IsPure(op) || IsFusedNorm(op) || IsActivation(op) || IsActivationGradient(op);
    return keep(node) || !pure;
  });
}

std::optional<ActivatedNorm> FindActivation(const GraphView& view, int norm,
                                            const std::function<bool(int)>& keep) {
  return Finder(view, keep).At(norm);
}

}  // namespace nv_norms
