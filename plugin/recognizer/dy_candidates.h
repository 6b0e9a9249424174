#ifndef NV_NORMS_PLUGIN_RECOGNIZER_DY_CANDIDATES_H_
#define NV_NORMS_PLUGIN_RECOGNIZER_DY_CANDIDATES_H_

#include <vector>

#include "plugin/graph/shapes.h"
#include "plugin/graph/view.h"
#include "plugin/recognizer/forward.h"

namespace nv_norms {

// A tensor that may be what a normalization's gradient is computed from.
struct DyCandidate {
  TensorId dy;
  TensorId like;  // x, or the view of x, whose shape it has
};

// Tensors that are multiplied with x or with inner tensors of the forward, and came after it; the
// likeliest first. `may_be_larger`: they need not have x's shape, if unknown sizes may be equal.
std::vector<DyCandidate> DyCandidates(const GraphView& view, const Shapes& shapes,
                                      const ForwardMatch& forward, bool may_be_larger);

// The same of tensors in an order of axes to which x or y is transposed: where the forward was
// taken for a norm of what comes before its Transposes, dy may come after those.
struct TransposedDy {
  TensorId dy;
  std::vector<int64_t> order;  // that of a Transpose of dy to x's shape
};
std::vector<TransposedDy> TransposedDys(const GraphView& view, const Shapes& shapes,
                                        const ForwardMatch& forward);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_RECOGNIZER_DY_CANDIDATES_H_
