#ifndef NV_NORMS_PLUGIN_RECOGNIZER_GRADIENT_REFERENCE_H_
#define NV_NORMS_PLUGIN_RECOGNIZER_GRADIENT_REFERENCE_H_

#include <optional>

#include "plugin/recognizer/gradient_search.h"
#include "plugin/recognizer/interpreter.h"
#include "plugin/recognizer/textbook.h"

namespace nv_norms {

struct GradientReference {
  Gradients gradients;
  Dim parameter;  // gamma's atoms, or beta's
};

// What a norm's gradients are in a draw, from x, gamma and dy times its factors. Nothing if one of
// them has no value there.
std::optional<GradientReference> ReferenceGradients(const GraphView& view,
                                                    const ForwardMatch& forward,
                                                    const TriedDy& tried, Interpreter* interpreter,
                                                    const Axes& axes);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_RECOGNIZER_GRADIENT_REFERENCE_H_
