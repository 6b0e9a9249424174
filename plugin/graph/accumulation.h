#ifndef NV_NORMS_PLUGIN_GRAPH_ACCUMULATION_H_
#define NV_NORMS_PLUGIN_GRAPH_ACCUMULATION_H_

#include "plugin/graph/view.h"

namespace nv_norms {

// TensorFlow's memory optimizer writes a large AddN as a temporary variable to which its terms are
// added one by one; on a CPU it does so as soon as a graph needs 200 MB, for which it takes the
// whole memory to be 256 MB. The gradient of a normalization is such a sum. This puts the AddN
// back; anything that is not exactly what that optimizer writes stays.
void RestoreSums(GraphView* view);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_GRAPH_ACCUMULATION_H_
