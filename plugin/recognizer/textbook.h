#ifndef NV_NORMS_PLUGIN_RECOGNIZER_TEXTBOOK_H_
#define NV_NORMS_PLUGIN_RECOGNIZER_TEXTBOOK_H_

#include "plugin/recognizer/axes.h"
#include "plugin/recognizer/moments.h"
#include "plugin/recognizer/value.h"

namespace nv_norms {

struct Gradients {
  Numbers dx, dgamma, dbeta;
};

// The textbook's gradients; `others` are the atoms of x along which gamma does not vary, `count` is
// how many elements they are in reality.
Gradients GradientsOf(const Normalized& x, bool subtract_mean, const Numbers& dy,
                      const Numbers& gamma, const Dim& others, double count);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_RECOGNIZER_TEXTBOOK_H_
