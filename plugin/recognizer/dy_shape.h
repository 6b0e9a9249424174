#ifndef NV_NORMS_PLUGIN_RECOGNIZER_DY_SHAPE_H_
#define NV_NORMS_PLUGIN_RECOGNIZER_DY_SHAPE_H_

#include <unordered_set>
#include <vector>

#include "plugin/graph/shapes.h"
#include "plugin/graph/view.h"
#include "plugin/recognizer/forward.h"

namespace nv_norms {

// Whether dy is what a Reshape among the nodes `behind` a gradient makes x's shape of. Its own may
// be another then, though it was taken for x's, as unknown sizes may be equal.
bool IsReshaped(const GraphView& view, TensorId dy, const std::unordered_set<int>& behind);

// Whether dy, which has as many elements as x, has x's shape whatever the unknown sizes are.
bool HasSurelyShapeOf(const Shapes& shapes, TensorId dy, TensorId x);

// Whether these parts have dy's type, and go with x to x's shape whatever the unknown sizes are, or
// to what x may be broadcast to.
enum class Fit { kNot, kBroadcast, kSurely };
Fit FitBeside(const Shapes& shapes, TensorId dy, TensorId x, const std::vector<Part>& parts);

// Whether nothing makes dy larger than x: it has x's sizes, or was summed so.
bool IsSurelyLike(const GraphView& view, const Shapes& shapes, TensorId dy, TensorId x);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_RECOGNIZER_DY_SHAPE_H_
