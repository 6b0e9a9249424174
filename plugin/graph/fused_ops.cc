#include "plugin/graph/fused_ops.h"

namespace nv_norms {

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

}  // namespace nv_norms
