#ifndef NV_NORMS_PLUGIN_RECOGNIZER_STATISTICS_H_
#define NV_NORMS_PLUGIN_RECOGNIZER_STATISTICS_H_

#include <string>
#include <vector>

#include "plugin/graph/shapes.h"
#include "plugin/graph/view.h"
#include "plugin/recognizer/problem.h"
#include "plugin/recognizer/reasons.h"

namespace nv_norms {

// Float32 constants in the graph are off by up to 6e-8, and errors add up.
constexpr double kFormulaTolerance = 1e-6;
// The constants of a graph in float64 are exact. What is left is the rounding of x of 1e-6 (a draw)
// beside operands of 1, as a shift of it is.
constexpr double kFormulaToleranceOfFloat64 = 1e-8;

// A tensor of which an anchor takes the inverse root of the variance or of the mean square.
struct Statistics {
  TensorId anchor;  // r, or sqrt(..), or the output of an op that holds a normalization
  TensorId x;
  Moment moment;
  double epsilon;
  int rank_if_unknown = -1;
  double slope = 1;  // 1 / r^2 = slope * (moment + epsilon)
  // How close the graph must come to the formula.
  double tolerance = kFormulaTolerance;
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

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_RECOGNIZER_STATISTICS_H_
