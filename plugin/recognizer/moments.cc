#include "plugin/recognizer/moments.h"

#include <algorithm>
#include <cmath>

#include "plugin/recognizer/ops.h"

namespace nv_norms {

Scene SceneAround(const GraphView& view, const Shapes& shapes, const Statistics& statistics) {
  Scene scene{&view, &shapes, {statistics.x}, statistics.rank_if_unknown, {}};
  if (statistics.epsilon > 0) scene.scale_of_last_draw = std::sqrt(statistics.epsilon);
  return scene;
}

std::optional<Dim> ReducedBetween(const Numbers& x, const Numbers& root) {
  if (!root.VariesWithin(x)) return std::nullopt;
  Dim reduced;
  for (Atom atom : x.atoms) {
    if (!root.VariesAlong(atom)) reduced.push_back(atom);
  }
  if (reduced.empty()) return std::nullopt;
  return reduced;
}

Dim ReducedAtoms(const GraphView& view, const Statistics& statistics, Interpreter* interpreter) {
  const int node = statistics.anchor.node;
  Dim reduced;
  if (ClassOf(view.op(node)) == OpClass::kNorm) {
    const Value* input = interpreter->Eval(view.inputs(node)[0]);
    if (input == nullptr) return {};
    const auto axes = NormAxes(view, node, static_cast<int>(input->dims.size()));
    if (!axes) return {};
    for (size_t i = 0; i < input->dims.size(); ++i) {
      if ((*axes)[i]) reduced.insert(reduced.end(), input->dims[i].begin(), input->dims[i].end());
    }
    return reduced;
  }
  const Value* root = interpreter->Eval(statistics.anchor);
  const Value* x = interpreter->restart() ? nullptr : interpreter->Eval(statistics.x);
  if (root == nullptr || x == nullptr) return {};
  return ReducedBetween(x->numbers, root->numbers).value_or(Dim());
}

std::optional<Normalized> Normalize(const GraphView& view, const Statistics& statistics,
                                    Interpreter* interpreter) {
  Normalized result;
  result.reduced = ReducedAtoms(view, statistics, interpreter);
  const Value* x = interpreter->restart() ? nullptr : interpreter->Eval(statistics.x);
  if (x == nullptr || result.reduced.empty()) return std::nullopt;
  const auto times = [](double a, double b) { return a * b; };
  result.dims = x->dims;
  Numbers centred = x->numbers;
  if (statistics.moment == Moment::kVariance) {
    const Numbers mean = MeanOver(x->numbers, result.reduced);
    centred = Zip(x->numbers, mean, [](double a, double b) { return a - b; });
  }
  const double epsilon = statistics.epsilon;
  const Numbers squares = Map(centred, [](double a) { return a * a; });
  result.rstd = Map(MeanOver(squares, result.reduced),
                    [epsilon](double v) { return 1.0 / std::sqrt(v + epsilon); });
  result.xhat = Zip(centred, result.rstd, times);
  result.plain = Zip(x->numbers, result.rstd, times);
  return result;
}

bool OverTheBatch(const Normalized& x) {
  if (x.dims.empty() || x.dims[0].empty()) return false;
  const auto reduced = [&](Atom atom) {
    return std::find(x.reduced.begin(), x.reduced.end(), atom) != x.reduced.end();
  };
  const Dim all = Value{x.dims, {}}.Flat();
  return std::all_of(x.dims[0].begin(), x.dims[0].end(), reduced) &&
         !std::all_of(all.begin(), all.end(), reduced);
}

}  // namespace nv_norms
