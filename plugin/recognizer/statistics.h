#ifndef NV_NORMS_PLUGIN_RECOGNIZER_STATISTICS_H_
#define NV_NORMS_PLUGIN_RECOGNIZER_STATISTICS_H_

#include <string>
#include <vector>

#include "plugin/graph/shapes.h"
#include "plugin/graph/view.h"
#include "plugin/recognizer/interpreter.h"
#include "plugin/recognizer/problem.h"
#include "plugin/recognizer/reasons.h"

namespace nv_norms {

// A tensor of which an anchor takes the inverse root of the variance or of the mean square.
struct Statistics {
  TensorId anchor;  // r, or sqrt(..), or the output of an op that holds a normalization
  TensorId x;
  Moment moment;
  double epsilon;
  int rank_if_unknown = -1;
  double slope = 1;  // 1 / r^2 = slope * (moment + epsilon)
};

// Nodes at which to look: Rsqrt, Sqrt, Pow(+-0.5), _UnaryOpsComposition with a Mean or Sum behind
// them, and ops that normalize.
bool IsAnchor(const GraphView& view, int node);
bool MayBeAnchor(const std::string& op);  // a quick first look

// All meanings that the anchor has, the best first: a variance before a mean square, and the
// tensor that lies further out first. Empty with a reason if it has none; kNotANormalization
// where it does not even look like one.
std::vector<Statistics> FindStatistics(const GraphView& view, const Shapes& shapes, int anchor,
                                       Reason* reason);

// The atoms over which the statistics are taken, given interpreted x and anchor; empty and
// nothing else if they cannot be told (or the interpreter wants a restart).
Dim ReducedAtoms(const GraphView& view, const Statistics& statistics, Interpreter* interpreter);

// Mean (0 if the moment is the mean square) and 1 / sqrt(moment + epsilon) of x.
Numbers MeanOf(const Numbers& x, const Dim& reduced);
Numbers RstdOf(const Numbers& x, const Dim& reduced, Moment moment, double epsilon);

// Tensors whose values are within reach: nodes that lead from `from` on through ops that the
// interpreter follows, at most `limit` of them.
std::unordered_set<int> Dependents(const GraphView& view, TensorId from, int limit);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_RECOGNIZER_STATISTICS_H_
