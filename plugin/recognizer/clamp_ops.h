#ifndef NV_NORMS_PLUGIN_RECOGNIZER_CLAMP_OPS_H_
#define NV_NORMS_PLUGIN_RECOGNIZER_CLAMP_OPS_H_

#include "plugin/graph/view.h"

namespace nv_norms {

// Whether a node is followed: an op that the interpreter knows, or a clamp at a root.
bool IsFollowed(const GraphView& view, int node);

// A Relu that is a few steps before a root, as of E[x^2] - E[x]^2; the ReluGrad of one; or the
// SelectV2 that is the gradient of such a Maximum or Minimum. Others, of which nets are full, are
// opaque.
bool IsClampAtRoot(const GraphView& view, int node);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_RECOGNIZER_CLAMP_OPS_H_
