#ifndef NV_NORMS_PLUGIN_RECOGNIZER_GRADIENT_CANDIDATES_H_
#define NV_NORMS_PLUGIN_RECOGNIZER_GRADIENT_CANDIDATES_H_

#include <cstddef>
#include <vector>

#include "plugin/recognizer/gradient_scene.h"

namespace nv_norms {

// The nodes behind dy, in the order in which they are to be looked at as dx, dgamma or dbeta.
struct GradientCandidates {
  std::vector<int> nodes;
  size_t of_norm;  // so many are likely: the rest may be another branch behind the same dy
};

// What reads x or the forward, or follows from what does, comes first, and Sums of dy. The rest,
// the nearest to dy first, may hold a Sum of dy behind more, and is what other branches behind the
// same dy do with it: each norm there may take a dozen restarts.
GradientCandidates CandidatesOfGradient(const GraphView& view, const ForwardMatch& forward,
                                        const GradientScene& within);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_RECOGNIZER_GRADIENT_CANDIDATES_H_
