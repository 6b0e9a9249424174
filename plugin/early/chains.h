#ifndef NV_NORMS_PLUGIN_EARLY_CHAINS_H_
#define NV_NORMS_PLUGIN_EARLY_CHAINS_H_

#include <vector>

#include "plugin/early/body.h"

namespace nv_norms {

// What a look at one op's name can tell: a body with no such op, or only some of them, has no
// chain.
class ChainOps {
 public:
  void See(const std::string& op);
  bool MayBeChain() const { return batch_norm_ || (root_ && mean_ && square_); }
  bool MayBeNorm() const { return batch_norm_ || root_; }

 private:
  bool batch_norm_ = false, root_ = false, mean_ = false, square_ = false;
};

// One link in each chain of ops that TensorFlow's remapper would make _MklLayerNorm or
// _MklFusedInstanceNorm of, and a small tensor runs through it: the variance on its way to epsilon,
// or the scale of a batch norm. As the remapper is not the first of Grappler's passes, what these
// do before it is allowed for: constants that are yet to be folded, Identity and its like, and, if
// `pruned`, that readers that nobody asks for go away.
std::vector<Link> LinksToPart(const Body& body, bool pruned);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_EARLY_CHAINS_H_
