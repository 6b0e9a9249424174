#ifndef NV_NORMS_PLUGIN_RECOGNIZER_MOMENTS_H_
#define NV_NORMS_PLUGIN_RECOGNIZER_MOMENTS_H_

#include <optional>

#include "plugin/graph/view.h"
#include "plugin/recognizer/axes.h"
#include "plugin/recognizer/interpreter.h"
#include "plugin/recognizer/statistics.h"
#include "plugin/recognizer/value.h"

namespace nv_norms {

// x with random values, in the last draw about as large as the root of epsilon.
Scene SceneAround(const GraphView& view, const Shapes& shapes, const Statistics& statistics);

// The atoms that are reduced on the way from x to the root of its moment: those of x along which
// the root does not vary. No value if there are none, or if the root varies along others.
std::optional<Dim> ReducedBetween(const Numbers& x, const Numbers& root);

// The atoms over which the statistics are taken; empty if they cannot be told (or the interpreter
// wants a restart).
Dim ReducedAtoms(const GraphView& view, const Statistics& statistics, Interpreter* interpreter);

// An interpreted x and what a normalization makes of it.
struct Normalized {
  Dims dims;      // of x
  Dim reduced;    // the atoms over which the moments are taken
  Numbers rstd;   // 1 / sqrt(moment + epsilon)
  Numbers xhat;   // (x - mean) * rstd where the moment is the variance, else x * rstd
  Numbers plain;  // x * rstd
};

// No value if x or its reduced atoms cannot be told (or the interpreter wants a restart).
std::optional<Normalized> Normalize(const GraphView& view, const Statistics& statistics,
                                    Interpreter* interpreter);

// Over the first axis but not over all: a batch norm, or the standardization of a kernel.
bool OverTheBatch(const Normalized& x);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_RECOGNIZER_MOMENTS_H_
