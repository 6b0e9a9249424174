#include "plugin/graph/fused_ops.h"

#include <algorithm>

#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/node_def.pb.h"

namespace nv_norms {
namespace {

std::string Attribute(const GraphView& view, int node, const char* name) {
  const auto& attr = view.def(node).attr();
  const auto found = attr.find(name);
  return found == attr.end() ? std::string() : found->second.SerializeAsString();
}

}  // namespace

bool IsFusedForward(const std::string& op) {
  return op == "FusedLayerNorm" || op == "FusedInstanceNorm" || op == "FusedGroupNorm" ||
         op == "FusedRMSNorm";
}

bool IsFusedGradient(const std::string& op) {
  constexpr size_t kSuffix = 4;  // "Grad"
  return op.size() > kSuffix && op.compare(op.size() - kSuffix, kSuffix, "Grad") == 0 &&
         IsFusedForward(op.substr(0, op.size() - kSuffix));
}

bool IsFusedNorm(const std::string& op) { return IsFusedForward(op) || IsFusedGradient(op); }

bool HasActivation(const GraphView& view, int node) {
  return view.GetFloat(node, "negative_slope", 1.0f) != 1.0f || view.GetBool(node, "silu", false);
}

bool IsGradientOf(const GraphView& view, int gradient, int norm) {
  if (view.op(gradient) != view.op(norm) + "Grad" ||
      view.def(gradient).device() != view.def(norm).device() || HasOwnGradient(view, gradient) ||
      HasActivation(view, gradient) || view.GetInt(gradient, "num_offset", 0) != 0) {
    return false;
  }
  for (const char* name :
       {"T", "P", "U", "axis", "groups", "data_format", "subtract_mean", "per_sample"}) {
    if (Attribute(view, gradient, name) != Attribute(view, norm, name)) return false;
  }
  const int scales = static_cast<int>(view.GetInt(norm, "num_scale", 0));
  if (view.GetInt(gradient, "num_scale", 0) != scales) return false;
  const int statistics = view.op(norm) == "FusedRMSNorm" ? 1 : 2;
  const auto& read = view.inputs(gradient);
  const auto& of_norm = view.inputs(norm);
  if (static_cast<int>(read.size()) != scales + 2 + statistics ||
      !std::equal(of_norm.begin(), of_norm.begin() + scales + 1, read.begin() + 1)) {
    return false;
  }
  for (int i = 1; i <= statistics; ++i) {
    if (read[scales + 1 + i] != TensorId{norm, i}) return false;
  }
  return true;
}

}  // namespace nv_norms
