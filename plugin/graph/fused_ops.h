#ifndef NV_NORMS_PLUGIN_GRAPH_FUSED_OPS_H_
#define NV_NORMS_PLUGIN_GRAPH_FUSED_OPS_H_

#include <string>

#include "plugin/graph/view.h"

namespace nv_norms {

bool IsFusedForward(const std::string& op);   // FusedLayerNorm, ..., FusedRMSNorm
bool IsFusedGradient(const std::string& op);  // FusedLayerNormGrad, ..., FusedRMSNormGrad
bool IsFusedNorm(const std::string& op);      // one of either

// Whether a fused norm, or gradient, has an activation inside.
bool HasActivation(const GraphView& view, int node);

// Whether a fused gradient, without an activation, is that of this norm and beside it, parameters
// included: it reads the x, the scale and the statistics of the norm.
bool IsGradientOf(const GraphView& view, int gradient, int norm);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_GRAPH_FUSED_OPS_H_
