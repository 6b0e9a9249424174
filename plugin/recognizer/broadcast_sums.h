#ifndef NV_NORMS_PLUGIN_RECOGNIZER_BROADCAST_SUMS_H_
#define NV_NORMS_PLUGIN_RECOGNIZER_BROADCAST_SUMS_H_

#include <unordered_set>

#include "plugin/graph/shapes.h"
#include "plugin/graph/view.h"
#include "plugin/recognizer/forward.h"

// The Sums that undo a broadcast in a gradient. Where sizes are unknown, the graph does not say
// what they are over, but for what is broadcast with what.
namespace nv_norms {

// Where a tensor comes from, behind changes of its shape and type, and behind its sign.
TensorId BehindShapes(const GraphView& view, TensorId tensor);

// What BroadcastGradientArgs says, when the graph runs, that a Sum is over, behind what
// TensorFlow's layout optimizer puts between them; not valid() for other Sums.
TensorId AxesOfBroadcast(const GraphView& view, int node);
// Whether there is such: a Sum over nothing, for most operands.
bool SumsAsBroadcast(const GraphView& view, int node);

// Whether that Sum is surely over nothing if what it gives has x's shape: what is broadcast with it
// is no larger than a parameter, or is an inner tensor that nothing but parameters made larger.
bool IsSurelyOverNothing(const GraphView& view, const Shapes& shapes, const ForwardMatch& forward,
                         int node);

// Whether dy was summed to the shape of an inner tensor that may be smaller than x: mean * rstd *
// gamma, say, where gamma has unknown sizes.
bool IsSummedToLess(const GraphView& view, const Shapes& shapes, const ForwardMatch& forward,
                    TensorId dy);

// Whether a Sum that takes a broadcast back may be to fewer elements than a parameter has: to those
// of a tensor of unknown sizes that neither is the parameter nor belongs to the norm.
bool IsSummedToOthers(const GraphView& view, const Shapes& shapes, const ForwardMatch& forward,
                      int node);

// Whether such a Sum is on each way from dy to a tensor, `within` these nodes.
bool IsSummedLike(const GraphView& view, TensorId tensor, TensorId dy,
                  const std::unordered_set<int>& within);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_RECOGNIZER_BROADCAST_SUMS_H_
