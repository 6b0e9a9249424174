#ifndef NV_NORMS_PLUGIN_RECOGNIZER_ALIGNMENT_H_
#define NV_NORMS_PLUGIN_RECOGNIZER_ALIGNMENT_H_

#include <vector>

#include "plugin/recognizer/axes.h"

namespace nv_norms {

enum class Alignment {
  kDone,
  kRestart,     // the axes became finer: evaluate again
  kImpossible,  // these shapes do not go together, or we cannot tell that they do
};

// How sure it is that what goes together has one size: an op that broadcasts takes a 1, too.
enum class Certainty { kSure, kUnlessOne };

// The dimensions of an elementwise op's output. Where two dimensions are made of different atoms
// of the same size, one that belongs to an operand is bound to the other's; atoms are split where
// one operand groups them more finely.
Alignment AlignForBroadcast(const std::vector<const Dims*>& operands, Certainty certainty,
                            Axes* axes, Dims* out);

// The dimensions after a Reshape to `target`, where -1 is what remains.
Alignment AlignForReshape(const Dims& from, const std::vector<Size>& target, Certainty certainty,
                          Axes* axes, Dims* out);

// Whether one axis is in two places: a diagonal or an outer product, which numbers by name cannot
// hold.
bool HasAtomTwice(const Dims& dims);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_RECOGNIZER_ALIGNMENT_H_
