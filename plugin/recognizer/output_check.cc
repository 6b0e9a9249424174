#include "plugin/recognizer/output_check.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <unordered_set>
#include <utility>

#include "plugin/recognizer/any_rank.h"
#include "plugin/recognizer/draws.h"
#include "plugin/recognizer/open_sizes.h"
#include "plugin/recognizer/ops.h"
#include "plugin/recognizer/reach.h"

namespace nv_norms {
namespace {

// In the shapes that x and y are given; axes have the sizes that a parameter's samples would give
// them. False: another size is open there.
bool LeaveSamplesOpen(Problem* problem) {
  for (std::vector<int64_t>* shape : {&problem->merged_shape, &problem->split_shape}) {
    if (shape->empty()) continue;
    shape->front() = -1;
    if (std::count(shape->begin(), shape->end(), -1) > 1) return false;
  }
  return true;
}

}  // namespace

bool OutputCheck::IsCandidate(TensorId y) const {
  if (LosesRounding(y)) return false;
  // A view after a complete output is taken in only if nobody else reads what comes before it.
  for (TensorId at = y; ClassOf(near_.view.op(at.node)) == OpClass::kView;) {
    const TensorId before = near_.view.inputs(at.node)[0];
    if (near_.view.def(before.node).device() != near_.view.def(at.node).device()) return false;
    const Value* value = near_.interpreter->Eval(before);
    const bool complete =
        value != nullptr && value->dims == near_.x.dims && outputs_->At(before) != nullptr;
    if (complete && !ReadOnlyBy(before, at)) return false;
    at = before;
  }
  return true;
}

bool OutputCheck::Fits(const Output& output, ForwardMatch* match, Reason* reason) const {
  const Value* y = near_.interpreter->Eval(output.y);
  if (y == nullptr || y->dims != near_.x.dims) return false;
  const TensorId affine = output.gamma.valid() ? output.gamma : output.beta;
  Dim parameter;
  if (affine.valid()) parameter = near_.interpreter->Eval(affine)->Flat();
  const Moment moment = near_.statistics.moment;
  auto problem = FindProblem(*near_.axes, near_.x.dims, near_.x.reduced,
                             affine.valid() ? &parameter : nullptr, moment);
  // Only the op for layer norms can leave the mean where it is.
  const bool keeps_mean = !output.subtract_mean && moment == Moment::kVariance;
  if (!problem || (keeps_mean && problem->kind != Kind::kLayerNorm) ||
      !ParametersSurelyFit(output, *problem, parameter) || !SizesSurelyFit(output, &problem)) {
    *reason = Reason::kNotExpressible;
    return false;
  }
  match->open_samples = problem->per_sample && !KnowsSamplesOf(output);
  if (match->open_samples && !LeaveSamplesOpen(&*problem)) {
    *reason = Reason::kNotExpressible;
    return false;
  }
  if (HangsOnOthers(output)) {
    *reason = Reason::kOperandCancels;
    return false;
  }
  if (IsTransposedCopy(output.y)) return false;
  const std::vector<int> core =
      NodesBetween(near_.view, near_.scene.dependents, {near_.statistics.x}, {output.y.node});
  if (!near_.shapes.Get(near_.statistics.x).rank_known) {
    const bool over_axes = problem->kind == Kind::kLayerNorm || problem->kind == Kind::kRmsNorm;
    const bool may_have_any = over_axes && !output.scale.valid();
    const auto axes = may_have_any ? AxesForAnyRank(near_, output, *problem) : std::nullopt;
    if (!axes) {
      *reason = Reason::kUnknownRank;
      return false;
    }
    problem->axes = *axes;
  }
  // The other outputs of an op that normalizes are not those of ours.
  if (ClassOf(near_.view.op(output.y.node)) == OpClass::kNorm && near_.keep(output.y.node)) {
    return false;
  }
  for (const Consumer& c : near_.view.consumers(output.y.node)) {
    if (c.port != 0) return false;
  }
  if (keeps_mean && (outputs_->IsTermOfMore(output.y) || MeanGoesOn())) return false;
  if (!IsRead(output.y.node)) {
    // Then nobody needs what leads to it either.
    settled_->insert(core.begin(), core.end());
    *reason = Reason::kNobodyReadsIt;
    return false;
  }
  match->statistics = near_.statistics;
  match->problem = *std::move(problem);
  match->subtract_mean = output.subtract_mean;
  match->x = near_.statistics.x;
  match->y = output.y;
  match->gamma = output.gamma;
  match->beta = output.beta;
  match->scale = output.scale;
  match->parts = output.parts;
  match->parts_are_factors = output.parts_are_factors;
  match->core = core;
  return true;
}

bool OutputCheck::KnowsSamplesOf(const Output& output) const {
  const auto knows = [&](TensorId parameter) {
    return !parameter.valid() || KnowsSamples(near_.shapes, near_.statistics.x, parameter);
  };
  return knows(output.gamma) && knows(output.beta);
}

bool OutputCheck::HoldsInEveryDraw(const Output& output) const {
  return HoldsInEveryDrawOf(near_.scene, output) &&
         (near_.statistics.epsilon > 0 || HasNoSafeguard(output));
}

bool OutputCheck::HoldsInEveryDrawOf(const Scene& scene, const Output& output) const {
  for (int draw = 1; draw < Interpreter::kNumDraws; ++draw) {
    Interpreter interpreter(scene, near_.axes, draw);
    const auto x = Normalize(near_.view, near_.statistics, &interpreter);
    if (!x || !IsNormalizedX(output, *x, near_.statistics, &interpreter)) return false;
  }
  return true;
}

// Without an epsilon, x = 0 gives 0 / 0; a graph that gives something else has a safeguard.
bool OutputCheck::HasNoSafeguard(const Output& output) const {
  Scene scene = near_.scene;
  scene.scale_of_last_draw = 0;
  Axes axes = *near_.axes;
  Interpreter interpreter(scene, &axes, Interpreter::kNumDraws - 1);
  const auto value = Combine(output.core, output.core_is_product, &interpreter);
  return value && std::none_of(value->data.begin(), value->data.end(),
                               [](double v) { return std::isfinite(v); });
}

// Whether more than x, gamma and beta is in it, and does not cancel where it is 0: weights of
// moments that are the same for all elements, say; not a shift.
bool OutputCheck::HangsOnOthers(const Output& output) const {
  const Interpreter& interpreter = *near_.interpreter;
  const std::vector<TensorId> parameters = {output.gamma, output.beta, output.scale};
  Scene scene = near_.scene;
  for (const BagItem& item : output.core) {
    for (TensorId operand : interpreter.OperandsOf(item.tensor, parameters)) {
      scene.zeros.push_back(operand);
    }
  }
  return !scene.zeros.empty() && !HoldsInEveryDrawOf(scene, output);
}

// Narrowing to half and widening again would lose the rounding that the graph asks for.
bool OutputCheck::LosesRounding(TensorId y) const {
  int node = y.node;
  bool widened = false;
  while (ClassOf(near_.view.op(node)) == OpClass::kView) {
    if (near_.view.op(node) == "Cast") {
      const bool narrow = IsNarrow(near_.view.GetType(node, "DstT"));
      if (narrow && widened) return true;
      widened = widened || !narrow;
    }
    node = near_.view.inputs(node)[0].node;
  }
  return false;
}

bool OutputCheck::ReadOnlyBy(TensorId tensor, TensorId view_of_it) const {
  if (near_.keep(tensor.node)) return false;
  for (const Consumer& c : near_.view.consumers(tensor.node)) {
    if (c.node != view_of_it.node) return false;
  }
  return true;
}

// A transposed copy beside what others read: the layout pass made it, x is to be found nearer.
bool OutputCheck::IsTransposedCopy(TensorId y) const {
  for (TensorId at = y; ClassOf(near_.view.op(at.node)) == OpClass::kView;) {
    const TensorId before = near_.view.inputs(at.node)[0];
    if (near_.view.op(at.node) == "Transpose" && !ReadOnlyBy(before, at)) return true;
    at = before;
  }
  return false;
}

// A parameter of unknown size may have one element when the graph runs, and so may x along a
// parameter's axes where the owner of an argument left its size open: either would broadcast.
bool OutputCheck::ParametersSurelyFit(const Output& output, const Problem& problem,
                                      const Dim& parameter) const {
  const Dim held = WithoutSamples(problem, near_.x.dims, parameter);
  for (TensorId tensor : {output.gamma, output.beta}) {
    if (!tensor.valid()) continue;
    const bool known = problem.per_sample ? MayBeOfSamples(near_, problem, tensor)
                                          : IsKnown(near_.shapes.Get(tensor));
    if (!known) return false;
  }
  const TensorId x = near_.statistics.x;
  if (problem.per_sample && !KnowsSizesAlong(near_.shapes, x, near_.x.dims, held)) return false;
  const TensorInfo& info = near_.shapes.Get(x);
  if (!info.rank_known) return true;
  return !MergesUnknownAxes(problem, near_.x.dims, info.dims, held) &&
         !IsLeftOpenAlong(near_.view, near_.shapes, x, near_.x.dims, held);
}

// Seen alone: what goes on beside the output may be broadcast with it as it likes, as may a scale,
// and must not be what makes a number of the graph's the size of an axis. A `problem` that merges
// axes becomes the one of these sizes.
bool OutputCheck::SizesSurelyFit(const Output& output, std::optional<Problem>* problem) const {
  if (near_.axes->tied().empty()) return true;
  Scene scene = near_.scene;
  scene.number = output.scale;
  Axes axes;
  std::vector<TensorId> tensors;
  std::vector<Dims> dims;  // theirs: of x first
  Dim parameter, reduced;
  const auto see = [&](Interpreter* interpreter, const Axes&) {
    const auto x = Normalize(near_.view, near_.statistics, interpreter);
    if (!x || !IsNormalizedX(output, *x, near_.statistics, interpreter)) return false;
    if (output.clean() && interpreter->Eval(output.y) == nullptr) return false;
    tensors = {near_.statistics.x};
    dims = {x->dims};
    reduced = x->reduced;
    parameter.clear();
    for (TensorId tensor : {output.gamma, output.beta}) {
      const Value* value = tensor.valid() ? interpreter->Eval(tensor) : nullptr;
      if (value == nullptr) continue;
      parameter = value->Flat();
      tensors.push_back(tensor);
      dims.push_back(value->dims);
    }
    return !interpreter->restart();
  };
  if (!nv_norms::HoldsInEveryDraw(scene, &axes, see)) return false;
  const Dims& x_dims = dims[0];
  // Numbers of samples need not be the same: the op broadcasts.
  const std::set<int64_t> tied =
      (*problem)->per_sample
          ? WithoutSizesOfSamples(axes.tied(), near_.shapes, tensors, dims, &axes)
          : axes.tied();
  if (!TiesAreChecked(near_.view, near_.shapes, near_.statistics.x, x_dims, parameter, tied,
                      &axes)) {
    return false;
  }
  // Nor the size of an axis that a Reshape before the op is given.
  if ((*problem)->merged_shape.empty()) return true;
  const Kind kind = (*problem)->kind;
  const bool affine = output.gamma.valid() || output.beta.valid();
  *problem =
      FindProblem(axes, x_dims, reduced, affine ? &parameter : nullptr, near_.statistics.moment);
  return problem->has_value() && (*problem)->kind == kind && !(*problem)->merged_shape.empty();
}

// Whether somebody reads x's mean for more than the variance. Then mean * rstd is likely to be
// taken from x * rstd sooner or later, and both must be of the very same rstd: beside a mean of 1e6
// the rounding of another one costs all digits.
bool OutputCheck::MeanGoesOn() const {
  constexpr double kLoose = 1e-4;
  const GraphView& view = near_.view;
  const Numbers shift =  // mean * rstd
      Zip(near_.x.plain, near_.x.xhat, [](double plain, double xhat) { return plain - xhat; });
  const auto is_mean = [&](TensorId tensor) {
    const Value* value = near_.interpreter->Eval(tensor);
    return value != nullptr && CloseToProduct(shift, value->numbers, near_.x.rstd, kLoose);
  };
  const auto stays_within = [&](TensorId mean, int reader) {
    const std::string& op = view.op(reader);
    if (ClassOf(op) == OpClass::kView) return is_mean({reader, 0});  // looked at itself
    if (op == "Sub" || op == "SquaredDifference" || op == "Square" || op == "Shape") return true;
    const auto& inputs = view.inputs(reader);
    return op == "_Retval" || (op == "Mul" && inputs[0] == mean && inputs[1] == mean);
  };
  // From x on, and not behind rstd, where nothing is the mean, and of a deep net there is much.
  std::vector<int> pending = {near_.statistics.x.node};
  std::unordered_set<int> seen;
  while (!pending.empty()) {
    const int at = pending.back();
    pending.pop_back();
    for (const Consumer& consumer : view.consumers(at)) {
      const int node = consumer.node;
      const TensorId tensor{node, 0};
      const std::string& op = view.op(node);
      const bool may_lead =
          op == "Mean" || op == "Sum" || IsProduct(op) || ClassOf(op) == OpClass::kView;
      if (!may_lead || near_.scene.dependents.count(node) == 0 || outputs_->FromAnchor(tensor) ||
          !seen.insert(node).second) {
        continue;
      }
      pending.push_back(node);
      if (op == "Sum" || !is_mean(tensor)) continue;
      for (const Consumer& c : view.consumers(node)) {
        if (view.live(c.node) && !stays_within(tensor, c.node)) return true;
      }
    }
  }
  return near_.interpreter->restart();
}

bool OutputCheck::IsRead(int node) const {
  if (near_.keep(node)) return true;
  const auto& consumers = near_.view.consumers(node);
  return std::any_of(consumers.begin(), consumers.end(), [&](const Consumer& c) {
    return near_.view.live(c.node) && near_.view.op(c.node) != "Shape";
  });
}

}  // namespace nv_norms
