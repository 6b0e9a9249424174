#ifndef NV_NORMS_PLUGIN_RECOGNIZER_LIKELY_KIND_H_
#define NV_NORMS_PLUGIN_RECOGNIZER_LIKELY_KIND_H_

#include <string>
#include <vector>

#include "plugin/recognizer/statistics.h"

namespace nv_norms {

// What a norm that was refused is, by its moments alone: "layer_norm" and so on, or
// "normalization" where these do not tell. `meanings`: those of its root, the best first.
std::string LikelyKind(const GraphView& view, const Shapes& shapes,
                       const std::vector<Statistics>& meanings);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_RECOGNIZER_LIKELY_KIND_H_
