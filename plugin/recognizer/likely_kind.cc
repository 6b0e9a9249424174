#include "plugin/recognizer/likely_kind.h"

#include <optional>

#include "plugin/recognizer/moments.h"
#include "plugin/recognizer/problem.h"
#include "plugin/recognizer/reach.h"

namespace nv_norms {
namespace {

constexpr int kMaxDependentsOfX = 100;  // the root is near
constexpr char kSomeKind[] = "normalization";

// The problem without parameters, and x's rank.
std::optional<Problem> ProblemOfMoments(const GraphView& view, const Shapes& shapes,
                                        const Statistics& statistics, int* rank) {
  Scene scene = SceneAround(view, shapes, statistics);
  scene.dependents = Dependents(view, statistics.x, kMaxDependentsOfX);
  Axes axes;
  for (int attempt = 0; attempt < Interpreter::kMaxRestarts; ++attempt) {
    Interpreter interpreter(scene, &axes, /*draw=*/0);
    const auto x = Normalize(view, statistics, &interpreter);
    if (interpreter.restart()) continue;
    if (!x) return std::nullopt;
    *rank = static_cast<int>(x->dims.size());
    return FindProblem(axes, x->dims, x->reduced, nullptr, statistics.moment);
  }
  return std::nullopt;
}

}  // namespace

std::string LikelyKind(const GraphView& view, const Shapes& shapes,
                       const std::vector<Statistics>& meanings) {
  if (meanings.empty()) return kSomeKind;
  if (meanings[0].moment == Moment::kMeanSquare) return KindName(Kind::kRmsNorm);
  int rank = 0;
  const auto problem = ProblemOfMoments(view, shapes, meanings[0], &rank);
  if (!problem) return kSomeKind;
  if (problem->kind != Kind::kLayerNorm) return KindName(problem->kind);
  const std::vector<int>& axes = problem->axes;
  const int count = static_cast<int>(axes.size());
  // All but the first axis and the channels: an instance norm's, if these are last; if they come
  // before, a layer norm's as well.
  const bool over_space = rank > 2 && count == rank - 2;
  if (axes.back() == -1) return over_space && count > 1 ? kSomeKind : KindName(problem->kind);
  return over_space && axes.back() == -2 ? KindName(Kind::kInstanceNorm) : kSomeKind;
}

}  // namespace nv_norms
