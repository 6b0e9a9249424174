#ifndef NV_NORMS_PLUGIN_RECOGNIZER_PROBLEM_H_
#define NV_NORMS_PLUGIN_RECOGNIZER_PROBLEM_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "plugin/recognizer/axes.h"

namespace nv_norms {

enum class Kind { kLayerNorm, kInstanceNorm, kGroupNorm, kRmsNorm };

const char* KindName(Kind kind);  // "layer_norm", ...

// What is divided by: sqrt of the variance, or of the mean square.
enum class Moment { kVariance, kMeanSquare };

// A normalization as one of our ops spells it.
struct Problem {
  Kind kind;
  std::vector<int> axes;    // reduced, negative, ascending
  std::string data_format;  // instance and group norm
  int64_t groups = 0;       // group norm
  bool per_sample = false;  // each sample has parameters of its own
  // If not empty, x is to be reshaped so before the op, and y to `split_shape` after it: the graph
  // keeps groups and the channels within them as two axes, or the batch. At most one size is -1;
  // split_shape is empty where more than one is unknown, and then x's when the graph runs.
  std::vector<int64_t> merged_shape, split_shape;
  // Several axes before the groups are one batch for the op.
  bool merges_batch = false;
};

// Which op covers a normalization of a tensor with dimensions `x` over the atoms `reduced`, with
// parameters (if any: not nullptr) that vary along the atoms `parameter`.
std::optional<Problem> FindProblem(const Axes& axes, const Dims& x, const Dim& reduced,
                                   const Dim* parameter, Moment moment);

// Whether axes are merged of which those that a parameter varies along are not known in `sizes`, of
// x: one that is 1 when the graph runs would be broadcast there, and the op cannot tell.
bool MergesUnknownAxes(const Problem& problem, const Dims& x, const std::vector<int64_t>& sizes,
                       const Dim& parameter);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_RECOGNIZER_PROBLEM_H_
