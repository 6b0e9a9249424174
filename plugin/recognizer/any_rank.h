#ifndef NV_NORMS_PLUGIN_RECOGNIZER_ANY_RANK_H_
#define NV_NORMS_PLUGIN_RECOGNIZER_ANY_RANK_H_

#include <optional>
#include <vector>

#include "plugin/recognizer/draws.h"
#include "plugin/recognizer/outputs.h"
#include "plugin/recognizer/problem.h"

namespace nv_norms {

// Where nobody knows x's rank, an output was found with a guessed one. The axes of the problem as
// they hold for every rank, all counted from the last (negative) or all from the first; no value if
// the output means something else where the rank is another.
std::optional<std::vector<int>> AxesForAnyRank(const Neighbourhood& near, const Output& output,
                                               const Problem& problem);

// Whether something that was found in a scene with a guessed rank holds where x has another: with
// fewer axes than guessed a graph mostly fails, and may.
bool HoldsForAnyRank(Scene scene, int guess, const HoldsInDraw& holds);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_RECOGNIZER_ANY_RANK_H_
