#include "plugin/recognizer/any_rank.h"

#include "plugin/recognizer/interpreter.h"

namespace nv_norms {
namespace {

constexpr int kMoreRanks = 2;  // beyond the guess

// The problem that an output is in one draw.
std::optional<Problem> ProblemOf(const Neighbourhood& near, const Output& output,
                                 Interpreter* interpreter, const Axes& axes) {
  const auto x = Normalize(near.view, near.statistics, interpreter);
  const Value* y = x ? interpreter->Eval(output.y) : nullptr;
  if (y == nullptr || y->dims != x->dims) return std::nullopt;
  if (!IsNormalizedX(output, *x, near.statistics, interpreter)) return std::nullopt;
  const TensorId affine = output.gamma.valid() ? output.gamma : output.beta;
  Dim parameter;
  if (affine.valid()) {
    const Value* value = interpreter->Eval(affine);
    if (value == nullptr) return std::nullopt;
    parameter = value->Flat();
  }
  return FindProblem(axes, x->dims, x->reduced, affine.valid() ? &parameter : nullptr,
                     near.statistics.moment);
}

std::vector<int> FromTheFirst(std::vector<int> axes, int rank) {
  for (int& axis : axes) axis += rank;
  return axes;
}

}  // namespace

bool HoldsForAnyRank(Scene scene, int guess, const HoldsInDraw& holds) {
  for (int rank = 1; rank <= guess + kMoreRanks; ++rank) {
    scene.rank_if_unknown = rank;
    Axes axes;
    if (rank != guess && !HoldsInEveryDraw(scene, &axes, holds) && rank > guess) return false;
  }
  return true;
}

std::optional<std::vector<int>> AxesForAnyRank(const Neighbourhood& near, const Output& output,
                                               const Problem& problem) {
  const int guess = static_cast<int>(near.x.dims.size());
  const std::vector<int> last = problem.axes, first = FromTheFirst(last, guess);
  bool from_last = true, from_first = true;
  const auto holds = [&](Interpreter* interpreter, const Axes& axes) {
    const auto there = ProblemOf(near, output, interpreter, axes);
    if (!there) return false;
    const int rank = static_cast<int>(interpreter->Eval(near.statistics.x)->dims.size());
    const bool same = there->kind == problem.kind;
    from_last = from_last && same && there->axes == last;
    from_first = from_first && same && FromTheFirst(there->axes, rank) == first;
    return true;
  };
  if (!HoldsForAnyRank(near.scene, guess, holds)) return std::nullopt;
  if (from_last) return last;
  if (from_first) return first;
  return std::nullopt;
}

}  // namespace nv_norms
