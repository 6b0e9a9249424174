#ifndef NV_NORMS_PLUGIN_GRAPH_FUSED_OPS_H_
#define NV_NORMS_PLUGIN_GRAPH_FUSED_OPS_H_

#include <string>

namespace nv_norms {

bool IsFusedForward(const std::string& op);   // FusedLayerNorm, ..., FusedRMSNorm
bool IsFusedGradient(const std::string& op);  // FusedLayerNormGrad, ..., FusedRMSNormGrad
bool IsFusedNorm(const std::string& op);      // one of either

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_GRAPH_FUSED_OPS_H_
