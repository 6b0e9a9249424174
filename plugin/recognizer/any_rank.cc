#include "plugin/recognizer/any_rank.h"

#include "plugin/recognizer/interpreter.h"

namespace nv_norms {
namespace {

constexpr int kMaxRestarts = 40;
constexpr int kMoreRanks = 2;  // beyond the guess

// The problem that an output is where x has a certain rank.
class AtRank {
 public:
  AtRank(const Neighbourhood& near, const Output& output, int rank)
      : near_(near), output_(output), scene_(near.scene) {
    scene_.rank_if_unknown = rank;
  }

  std::optional<Problem> Find() {
    std::optional<Problem> problem;
    for (int draw = 0; draw < Interpreter::kNumDraws; ++draw) {
      problem = InDraw(draw);
      if (!problem) return std::nullopt;
    }
    return problem;
  }

 private:
  std::optional<Problem> InDraw(int draw) {
    for (int attempt = 0; attempt < kMaxRestarts; ++attempt) {
      Interpreter interpreter(scene_, &axes_, draw);
      const auto problem = Evaluate(&interpreter);
      if (!interpreter.restart()) return problem;
    }
    return std::nullopt;
  }

  std::optional<Problem> Evaluate(Interpreter* interpreter) {
    const auto x = Normalize(near_.view, near_.statistics, interpreter);
    const Value* y = x ? interpreter->Eval(output_.y) : nullptr;
    if (y == nullptr || y->dims != x->dims) return std::nullopt;
    const auto value = Combine(output_.core, output_.core_is_product, interpreter);
    if (!value) return std::nullopt;
    const Value* affine = nullptr;
    if (output_.beta.valid()) affine = interpreter->Eval(output_.beta);
    if (output_.gamma.valid()) affine = interpreter->Eval(output_.gamma);
    if (affine == nullptr && (output_.gamma.valid() || output_.beta.valid())) return std::nullopt;
    const Numbers& base = output_.subtract_mean ? x->xhat : x->plain;
    if (!Close(*value, base, near_.statistics.tolerance) &&
        (!output_.gamma.valid() ||
         !CloseToProduct(*value, base, affine->numbers, near_.statistics.tolerance))) {
      return std::nullopt;
    }
    const Dim parameter = affine != nullptr ? affine->Flat() : Dim();
    return FindProblem(axes_, x->dims, x->reduced, affine != nullptr ? &parameter : nullptr,
                       near_.statistics.moment);
  }

  const Neighbourhood& near_;
  const Output& output_;
  Scene scene_;
  Axes axes_;
};

std::vector<int> FromTheFirst(std::vector<int> axes, int rank) {
  for (int& axis : axes) axis += rank;
  return axes;
}

}  // namespace

std::optional<std::vector<int>> AxesForAnyRank(const Neighbourhood& near, const Output& output,
                                               const Problem& problem) {
  const int guess = static_cast<int>(near.x.dims.size());
  const std::vector<int> last = problem.axes, first = FromTheFirst(last, guess);
  bool from_last = true, from_first = true;
  for (int rank = 1; rank <= guess + kMoreRanks; ++rank) {
    if (rank == guess) continue;
    const auto there = AtRank(near, output, rank).Find();
    // With fewer axes than the graph names, it fails in any case.
    if (!there && rank < guess) continue;
    if (!there || there->kind != problem.kind) return std::nullopt;
    from_last = from_last && there->axes == last;
    from_first = from_first && FromTheFirst(there->axes, rank) == first;
  }
  if (from_last) return last;
  if (from_first) return first;
  return std::nullopt;
}

}  // namespace nv_norms
