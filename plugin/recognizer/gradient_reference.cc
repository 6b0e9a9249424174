#include "plugin/recognizer/gradient_reference.h"

#include <algorithm>

#include "plugin/recognizer/moments.h"

namespace nv_norms {

std::optional<GradientReference> ReferenceGradients(const GraphView& view,
                                                    const ForwardMatch& forward,
                                                    const TriedDy& tried, Interpreter* interpreter,
                                                    const Axes& axes) {
  const auto normalized = Normalize(view, forward.statistics, interpreter);
  const Value* dy = interpreter->restart() ? nullptr : interpreter->Eval(tried.dy);
  if (!normalized || dy == nullptr) return std::nullopt;
  if (forward.lone && OverTheBatch(*normalized)) return std::nullopt;
  GradientReference out;
  Dim& parameter = out.parameter;
  Numbers gamma = Numbers::Scalar(1.0);
  for (const TensorId& tensor : {forward.gamma, forward.beta}) {
    if (!tensor.valid()) continue;
    const Value* value = interpreter->Eval(tensor);
    // y itself ties gamma's axes to those of x; without it, the gradient must.
    if (value == nullptr) return std::nullopt;
    if (!forward.lone && interpreter->Eval(forward.y) == nullptr) return std::nullopt;
    parameter = value->Flat();
    if (tensor == forward.gamma) gamma = value->numbers;
  }
  Dim others;
  for (Atom atom : normalized->plain.atoms) {
    if (std::find(parameter.begin(), parameter.end(), atom) == parameter.end()) {
      others.push_back(atom);
    }
  }
  // y ties the factors' axes, too, and those of what goes on beside it.
  const bool ties = tried.sum || !tried.factors.empty();
  if (ties && interpreter->Eval(forward.y) == nullptr) return std::nullopt;
  Numbers scaled = dy->numbers;
  for (const Part& factor : tried.factors) {
    const Value* value = interpreter->Eval(factor.tensor);
    if (value == nullptr || !value->numbers.VariesWithin(normalized->plain)) return std::nullopt;
    scaled = Zip(scaled, value->numbers, factor.inverted ? Over : Times);
  }
  const double count = interpreter->RealSize(axes.size(others));
  out.gradients = GradientsOf(*normalized, forward.subtract_mean, scaled, gamma, others, count);
  return out;
}

}  // namespace nv_norms
