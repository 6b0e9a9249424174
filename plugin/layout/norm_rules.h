#ifndef NV_NORMS_PLUGIN_LAYOUT_NORM_RULES_H_
#define NV_NORMS_PLUGIN_LAYOUT_NORM_RULES_H_

#include <vector>

#include "plugin/layout/rules.h"

namespace nv_norms {

// FindRule() for the fused normalizations and their gradients.
Reason FindNormRule(const GraphView& view, const Shapes& shapes, int node, Format now, int rank,
                    Rule* rule);

// The attribute axis of a layer or RMS norm, none negative, ascending.
std::vector<int> NormalizedAxes(const GraphView& view, int node, int rank);

// Whether these ascending axes are still ascending in the format `to`.
bool InSameOrder(const std::vector<int>& axes, Format to, int rank);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_LAYOUT_NORM_RULES_H_
