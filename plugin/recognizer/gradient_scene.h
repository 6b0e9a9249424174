#ifndef NV_NORMS_PLUGIN_RECOGNIZER_GRADIENT_SCENE_H_
#define NV_NORMS_PLUGIN_RECOGNIZER_GRADIENT_SCENE_H_

#include <unordered_set>
#include <vector>

#include "plugin/recognizer/gradient_search.h"
#include "plugin/recognizer/interpreter.h"

namespace nv_norms {

// The part of a graph in which the gradient is that may be computed from a dy.
struct GradientScene {
  Scene scene;                      // from dy, the forward, and what leads from x or gamma here
  std::unordered_set<int> from_dy;  // dy's descendants, as many as a gradient may have
  std::vector<TensorId> sources;    // what factors of dy are Transposes of
};

GradientScene SceneOfGradient(const GraphView& view, const Shapes& shapes,
                              const ForwardMatch& forward, const TriedDy& tried);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_RECOGNIZER_GRADIENT_SCENE_H_
