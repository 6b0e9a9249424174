#ifndef NV_NORMS_PLUGIN_RECOGNIZER_BAGS_H_
#define NV_NORMS_PLUGIN_RECOGNIZER_BAGS_H_

#include <functional>
#include <vector>

#include "plugin/graph/view.h"

namespace nv_norms {

// One term of a sum, or one factor of a product. `inverted`: subtracted, divided by.
struct BagItem {
  TensorId tensor;
  bool inverted;
};

// Grappler re-associates sums and products, so their trees mean nothing: these flatten the tree
// whose root is `node` to its leaves. `open` says which inner tensors may be looked into.
using MayOpen = std::function<bool(TensorId)>;
std::vector<BagItem> Terms(const GraphView& view, int node, const MayOpen& open);
std::vector<BagItem> Factors(const GraphView& view, int node, const MayOpen& open);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_RECOGNIZER_BAGS_H_
