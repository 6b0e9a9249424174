#include "plugin/recognizer/draws.h"

#include <algorithm>
#include <set>

namespace nv_norms {
bool HoldsInEveryDraw(const Scene& scene, Axes* axes, const HoldsInDraw& holds) {
  const auto holds_in = [&](int draw) {
    for (int attempt = 0; attempt < Interpreter::kMaxRestarts; ++attempt) {
      Interpreter interpreter(scene, axes, draw);
      const bool held = holds(&interpreter, *axes);
      if (!interpreter.restart()) return held;
    }
    return false;
  };
  for (int draw = 0; draw < Interpreter::kNumDraws; ++draw) {
    if (!holds_in(draw)) return false;
  }
  return true;
}

bool TiesAreChecked(const GraphView& view, const Shapes& shapes, TensorId x, const Dims& x_dims,
                    const Dim& parameter, const std::set<int64_t>& tied, Axes* axes) {
  if (tied.empty()) return true;
  const TensorInfo& info = shapes.Get(x);
  if (info.rank_known && view.IsArgument(x.node)) return false;
  std::set<int64_t> checked;
  for (size_t i = 0; i < x_dims.size(); ++i) {
    const bool along = std::all_of(x_dims[i].begin(), x_dims[i].end(), [&](Atom atom) {
      return std::find(parameter.begin(), parameter.end(), atom) != parameter.end();
    });
    const int64_t size = info.rank_known ? info.dims[i] : -1;
    if (along) checked.insert(size == -1 ? axes->SymbolFor(x, static_cast<int>(i)) : size);
  }
  return std::includes(checked.begin(), checked.end(), tied.begin(), tied.end());
}

}  // namespace nv_norms
