#ifndef NV_NORMS_PLUGIN_ACTIVATIONS_SILU_H_
#define NV_NORMS_PLUGIN_ACTIVATIONS_SILU_H_

#include <functional>
#include <set>
#include <vector>

#include "plugin/graph/view.h"

namespace nv_norms {

// silu(t) = t * sigmoid(t), which TensorFlow computes, as its derivative, by several ops of one
// tensor and constants. They are known by their values.
struct SiluNodes {
  int silu = -1;                 // computes silu(y), one of them if there are several
  bool several = false;          // so do others
  std::vector<int> derivatives;  // compute its derivative at y
  // All that compute a function of y alone, on the way to these or elsewhere, each after what it
  // reads. What reads silu(y) or the derivative is not among them.
  std::vector<int> functions;
};

// `y`: the tensors that are y. `usable`: which nodes may be part of it.
SiluNodes FindSilu(const GraphView& view, const std::set<TensorId>& y,
                   const std::function<bool(int)>& usable);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_ACTIVATIONS_SILU_H_
