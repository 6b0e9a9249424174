#include "plugin/recognizer/gradient_check.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "plugin/recognizer/any_rank.h"
#include "plugin/recognizer/axes_order.h"
#include "plugin/recognizer/draws.h"

namespace nv_norms {

bool IsFromDy(const Scene& scene, const std::unordered_set<int>& from_dy, TensorId tensor) {
  return tensor == scene.dy || tensor == scene.before_dy || from_dy.count(tensor.node) > 0;
}

bool GradientCheck::HoldsForEveryRank(const Dims& x_dims) const {
  const TensorInfo& dy = shapes_.Get(scene_.dy);
  if (shapes_.Get(forward_.x).rank_known) return true;
  if (dy.rank_known && dy.dims.size() == x_dims.size()) return true;
  const auto holds = [&](Interpreter* interpreter, const Axes& axes) {
    const auto reference = Holds(interpreter, axes);
    return reference && HasShapes(interpreter, reference->parameter);
  };
  return HoldsForAnyRank(scene_, static_cast<int>(x_dims.size()), holds);
}

bool GradientCheck::HangsOnOthers(const Interpreter& interpreter,
                                  const std::vector<TensorId>& sources,
                                  std::unordered_set<int>* behind) const {
  std::vector<TensorId> outputs = {match_.dgamma, match_.dbeta};
  for (const Part& term : match_.terms) outputs.push_back(term.tensor);
  if (match_.terms.empty()) outputs.push_back(match_.dx);
  std::vector<TensorId> parameters = {forward_.gamma, forward_.beta};
  for (const Part& factor : tried_.factors) parameters.push_back(factor.tensor);
  parameters.insert(parameters.end(), sources.begin(), sources.end());
  behind->clear();
  Scene scene = scene_;
  for (TensorId output : outputs) {
    if (!output.valid()) continue;
    for (TensorId operand : interpreter.OperandsOf(output, parameters, behind)) {
      scene.zeros.push_back(operand);
    }
  }
  return !scene.zeros.empty() && !HoldsInEveryDrawOf(scene);
}

bool GradientCheck::SizesSurelyFit(const Dims& x_dims, const Dim& parameter) const {
  if (axes_->tied().empty()) return true;
  Axes axes;
  const auto see = [&](const std::vector<TensorId>& tensors) {
    return nv_norms::HoldsInEveryDraw(scene_, &axes, [&](Interpreter* interpreter, const Axes&) {
      return std::all_of(tensors.begin(), tensors.end(),
                         [&](TensorId tensor) { return interpreter->Eval(tensor) != nullptr; });
    });
  };
  if (!forward_.lone && !see({forward_.y})) return false;
  const std::set<int64_t> before = axes.tied();
  std::vector<TensorId> tensors = {forward_.x, scene_.dy};
  for (TensorId tensor : {match_.dgamma, match_.dbeta}) {
    if (tensor.valid()) tensors.push_back(tensor);
  }
  // What goes on beside dx may be broadcast with it as it likes.
  for (const Part& term : match_.terms) tensors.push_back(term.tensor);
  if (match_.dx.valid() && match_.terms.empty()) {
    const int node = match_.dx.node;
    const bool one_shape = view_.op(node) == "AddN";
    for (const TensorId& term : one_shape ? view_.inputs(node) : std::vector{match_.dx}) {
      if (IsFromDy(scene_, from_dy_, term)) tensors.push_back(term);
    }
  }
  // Without what tied them before, the Sum that undoes a broadcast may be one over anything.
  if (!see(tensors)) return false;
  std::set<int64_t> tied;
  std::set_difference(axes.tied().begin(), axes.tied().end(), before.begin(), before.end(),
                      std::inserter(tied, tied.end()));
  return TiesAreChecked(view_, shapes_, forward_.x, x_dims, parameter, tied, &axes);
}

bool GradientCheck::HoldsInEveryDrawOf(const Scene& scene) const {
  for (int draw = 1; draw < Interpreter::kNumDraws; ++draw) {
    Interpreter interpreter(scene, axes_, draw);
    if (!Holds(&interpreter, *axes_)) return false;
  }
  return true;
}

std::optional<GradientReference> GradientCheck::Holds(Interpreter* interpreter,
                                                      const Axes& axes) const {
  auto reference = ReferenceGradients(view_, forward_, tried_, interpreter, axes);
  if (!reference) return std::nullopt;
  const Gradients& expected = reference->gradients;
  const double tolerance = forward_.statistics.tolerance;
  if (match_.dx.valid()) {
    const Value* whole = interpreter->Eval(match_.dx);
    if (whole == nullptr) return std::nullopt;
    Numbers dx = whole->numbers;
    for (const Part& part : match_.parts) {
      const Value* value = interpreter->Eval(part.tensor);
      // What varies along axes that the whole has not is no part of it, and would cost the product
      // of all of them.
      if (value == nullptr || !value->numbers.VariesWithin(whole->numbers)) return std::nullopt;
      dx = Zip(dx, value->numbers, part.inverted ? Plus : Minus);
    }
    // What is taken away may be far larger than what is left.
    const double size = std::max(MaxAbs(whole->numbers), MaxAbs(expected.dx));
    const double error = MaxAbs(Zip(dx, expected.dx, Minus));
    if (!(error <= 1e-9 * size + tolerance * MaxAbs(expected.dx))) return std::nullopt;
  }
  for (const auto& [tensor, numbers] : {std::make_pair(match_.dgamma, &expected.dgamma),
                                        std::make_pair(match_.dbeta, &expected.dbeta)}) {
    if (!tensor.valid()) continue;
    const Value* value = interpreter->Eval(tensor);
    if (value == nullptr || !Close(value->numbers, *numbers, tolerance)) return std::nullopt;
  }
  return reference;
}

bool GradientCheck::HasShapes(Interpreter* interpreter, const Dim& parameter) const {
  if (match_.dx.valid()) {
    const Value* dx = interpreter->Eval(match_.dx);
    const Value* x = interpreter->Eval(forward_.x);
    if (match_.reshape_dx ? dx->Flat() != x->Flat()
                          : dx->dims != InOrder(x->dims, match_.dx_order)) {
      return false;
    }
  }
  for (TensorId tensor : {match_.dgamma, match_.dbeta}) {
    if (tensor.valid() && interpreter->Eval(tensor)->Flat() != parameter) return false;
  }
  return true;
}

}  // namespace nv_norms
