#ifndef NV_NORMS_PLUGIN_FUSED_BEFORE_H_
#define NV_NORMS_PLUGIN_FUSED_BEFORE_H_

#include <set>
#include <vector>

#include "plugin/graph/view.h"
#include "plugin/recognizer/statistics.h"

namespace nv_norms {

// The fused norms that a graph had before the pass: a plugin runs twice, and what was the root of
// one may still serve something else.
class FusedBefore {
 public:
  explicit FusedBefore(const GraphView& view);

  // Whether one reads x and has the epsilon of a meaning: somebody still reads its moments.
  bool Normalizes(const std::vector<Statistics>& meanings) const;
  // Whether one that is still there normalizes x, or a view of it: what is left of its root serves
  // the gradient of each sample's gamma, say.
  bool HasRoot(const std::vector<Statistics>& meanings) const;

 private:
  bool HasEpsilon(int node, const Statistics& statistics) const;
  TensorId BehindViews(TensorId tensor) const;

  const GraphView& view_;
  std::set<int> nodes_;
};

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_FUSED_BEFORE_H_
