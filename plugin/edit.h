#ifndef NV_NORMS_PLUGIN_EDIT_H_
#define NV_NORMS_PLUGIN_EDIT_H_

#include <functional>

#include "plugin/graph/shapes.h"
#include "plugin/graph/view.h"
#include "plugin/recognizer/backward.h"
#include "plugin/recognizer/forward.h"

namespace nv_norms {

const char* OpName(const ForwardMatch& match);  // "FusedLayerNorm", ...

// Reasons not to edit that have to do with types, devices, readers and what the ops' attributes can
// hold, not with meaning.
Reason CheckForward(const GraphView& view, const Shapes& shapes, const ForwardMatch& match);

// Puts the fused op in the place of y, or of the sum or product with what goes on beside it, and
// removes what nobody reads any more. Names of kept nodes, devices, control edges stay.
// Returns the fused node.
int ApplyForward(GraphView* view, Shapes* shapes, const ForwardMatch& match,
                 const std::function<bool(int)>& keep);

// For a gradient whose forward's y is not in the graph: adds the fused op for its statistics.
int AddLoneForward(GraphView* view, Shapes* shapes, const ForwardMatch& match);

// The same for the gradient, given the fused forward node. CheckBackward() must hold before the
// forward is edited.
Reason CheckBackward(const GraphView& view, const Shapes& shapes, const ForwardMatch& forward,
                     const BackwardMatch& backward, const std::function<bool(int)>& keep);
// Returns dx, as far as it is wanted.
TensorId ApplyBackward(GraphView* view, Shapes* shapes, const ForwardMatch& forward,
                       const BackwardMatch& backward, int fused,
                       const std::function<bool(int)>& keep);

// Tells a gradient that is still to be applied that the terms of another in the same sum are `dx`
// now.
void PutBeside(const BackwardMatch& applied, TensorId dx, BackwardMatch* later);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_EDIT_H_
