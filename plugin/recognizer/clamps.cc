// Which clamps mean nothing. The draws do not reach every clamp, so this is not asked of them.
#include <algorithm>
#include <cmath>
#include <set>

#include "plugin/recognizer/interpreter.h"
#include "plugin/recognizer/moments.h"
#include "plugin/recognizer/ops.h"

namespace nv_norms {
namespace {

constexpr int kMaxClampDepth = 8;

bool IsNeverNegativeOp(const std::string& op) {
  return op == "Square" || op == "SquaredDifference" || op == "Abs" || op == "Exp" ||
         op == "Sqrt" || op == "Rsqrt";
}

// Ops that give nothing negative where they get nothing negative.
bool KeepsSign(const std::string& op) {
  static const auto* const kOps = new std::set<std::string>{
      "Mul", "RealDiv", "Div", "Add", "AddV2", "AddN", "Maximum", "Minimum", "Sum", "Mean"};
  return kOps->count(op) > 0 || ClassOf(op) == OpClass::kView;
}

}  // namespace

bool Interpreter::IsIdleClamp(int node) {
  const TensorId a = view_.inputs(node)[0], b = view_.inputs(node)[1];
  if (view_.op(node) == "Minimum") return IsInfinite(a) || IsInfinite(b);
  Doubtful doubtful;
  return (IsNeverPositive(a) && IsNeverNegative(b, 0, &doubtful)) ||
         (IsNeverPositive(b) && IsNeverNegative(a, 0, &doubtful));
}

// Where v is 0 its gradient is not passed on. It would have been multiplied with 0, though: with x,
// or with its deviation from the mean, of which v is the mean square.
std::optional<Value> Interpreter::Clamp(int node) {
  const std::string& op = view_.op(node);
  const auto& inputs = view_.inputs(node);
  TensorId v = inputs[0], passed = inputs[0];
  Doubtful doubtful;
  // Before the root such a choice may be what keeps 0 from being divided by.
  if (op != "Relu" && !scene_.dy.valid()) return std::nullopt;
  if (op == "ReluGrad") {
    v = view_.inputs(inputs[1].node)[0];
  } else if (op == "SelectV2") {
    const auto& compared = view_.inputs(inputs[0].node);  // is it >= 0, or <= infinity?
    const bool of_minimum = view_.op(inputs[0].node) == "LessEqual";
    const auto means_nothing = [&](TensorId bound) {
      return of_minimum ? IsInfinite(bound) : IsNeverPositive(bound);
    };
    const bool first = means_nothing(compared[1]);
    if (!first && !means_nothing(compared[0])) return std::nullopt;
    v = compared[first ? 0 : 1];
    passed = inputs[first ? 1 : 2];
    const auto rest = Number(inputs[first ? 2 : 1], 0);
    if (!rest || rest->value != 0) return std::nullopt;
  }
  if (!IsNeverNegative(v, 0, &doubtful)) return std::nullopt;
  const Value* value = Eval(v);
  const Value* gradient = value != nullptr ? Eval(passed) : nullptr;
  if (gradient == nullptr || gradient->dims != value->dims) return std::nullopt;
  return *gradient;
}

bool Interpreter::IsNeverPositive(TensorId tensor) {
  const auto number = Number(tensor, 0);
  return number && number->constant && number->value <= 0;
}

bool Interpreter::IsInfinite(TensorId tensor) {
  const auto number = Number(tensor, 0);
  return number && number->constant && std::isinf(number->value) && number->value > 0;
}

bool Interpreter::IsNeverNegative(TensorId tensor, int depth, Doubtful* doubtful) {
  if (depth > kMaxClampDepth || restart_) return false;
  const auto tried = doubtful->find(tensor);
  if (tried != doubtful->end() && tried->second <= depth) return false;
  const auto number = Number(tensor, 0);
  if (number && number->constant) return number->value >= 0;
  const std::string& op = view_.op(tensor.node);
  if (IsNeverNegativeOp(op) || IsMoment(tensor)) return true;
  if (!KeepsSign(op)) return false;
  const auto& inputs = view_.inputs(tensor.node);
  if (op == "Mul" && inputs[0] == inputs[1]) return true;
  const bool reads_all = ClassOf(op) == OpClass::kElementwise;
  const std::set<TensorId> read(inputs.begin(), reads_all ? inputs.end() : inputs.begin() + 1);
  const bool all = std::all_of(read.begin(), read.end(), [&](TensorId input) {
    return IsNeverNegative(input, depth + 1, doubtful);
  });
  if (!all) (*doubtful)[tensor] = depth;
  return all;
}

// Whether a tensor is the variance or the mean square of a root, or N times that, however it is
// computed: as E[x^2] - E[x]^2, say.
bool Interpreter::IsMoment(TensorId tensor) {
  if (scene_.dependents.count(tensor.node) == 0) return false;
  const Value* value = Eval(tensor);
  for (const TensorId& root : scene_.roots) {
    const Value* x = restart_ ? nullptr : Eval(root);
    if (value == nullptr || x == nullptr) return false;
    const auto reduced = ReducedBetween(x->numbers, value->numbers);
    if (!reduced) continue;
    const auto square = [](double a) { return a * a; };
    const Numbers mean = MeanOver(x->numbers, *reduced);
    const Numbers centred = Zip(x->numbers, mean, [](double a, double b) { return a - b; });
    for (const Numbers& of : {x->numbers, centred}) {
      const Numbers moment = MeanOver(Map(of, square), *reduced);
      for (double count : {1.0, RealSize(axes_->size(*reduced))}) {
        if (CloseToProduct(value->numbers, moment, Numbers::Scalar(count), kFormulaTolerance)) {
          return true;
        }
      }
    }
  }
  return false;
}

}  // namespace nv_norms
