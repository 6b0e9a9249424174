#include "plugin/recognizer/gradient_search.h"

#include <algorithm>
#include <optional>

#include "plugin/recognizer/axes_order.h"
#include "plugin/recognizer/bags.h"
#include "plugin/recognizer/broadcast_sums.h"
#include "plugin/recognizer/clamp_ops.h"
#include "plugin/recognizer/dy_shape.h"
#include "plugin/recognizer/gradient_candidates.h"
#include "plugin/recognizer/gradient_check.h"
#include "plugin/recognizer/gradient_reference.h"
#include "plugin/recognizer/gradient_scene.h"
#include "plugin/recognizer/moments.h"
#include "plugin/recognizer/open_sizes.h"
#include "plugin/recognizer/ops.h"
#include "plugin/recognizer/parameter_shapes.h"
#include "plugin/recognizer/reach.h"
#include "plugin/recognizer/sample_counts.h"
#include "plugin/recognizer/stops.h"

namespace nv_norms {
namespace {

constexpr size_t kMaxTerms = 8;

// Whether a term is taken off again, as in the gradient of x - x. That is 0; beside a fused dx it
// would be what rounding leaves of it, and nothing could be removed.
bool HoldsBothSigns(const std::vector<BagItem>& terms) {
  return std::any_of(terms.begin(), terms.end(), [&](const BagItem& term) {
    return std::any_of(terms.begin(), terms.end(), [&](const BagItem& other) {
      return term.tensor == other.tensor && term.inverted != other.inverted;
    });
  });
}

// Of a gamma of zeros dx is 0, as is much else, y for one: that tells nothing.
bool IsGradient(const Numbers& value, const Numbers& reference, double tolerance) {
  return MaxAbs(reference) > 0 && Close(value, reference, tolerance);
}

class GradientSearch {
 public:
  GradientSearch(const GraphView& view, const Shapes& shapes, const ForwardMatch& forward,
                 const TriedDy& tried, const std::function<bool(int)>& keep)
      : view_(view),
        shapes_(shapes),
        forward_(forward),
        tried_(tried),
        keep_(keep),
        within_(SceneOfGradient(view, shapes, forward, tried)),
        forward_core_(forward.core.begin(), forward.core.end()) {}

  BackwardMatch Run() {
    const GradientCandidates candidates = CandidatesOfGradient(view_, forward_, within_);
    for (int attempt = 0; attempt < Interpreter::kMaxRestarts; ++attempt) {
      Interpreter interpreter(scene_, &axes_, /*draw=*/0);
      interpreter_ = &interpreter;
      match_ = BackwardMatch();
      match_.dy = scene_.dy;
      match_.factors = tried_.factors;
      match_.sum_dy = tried_.sum;
      match_.gamma = forward_.gamma;
      reference_ = ReferenceGradients(view_, forward_, tried_, &interpreter, axes_);
      if (reference_) {
        x_dims_ = interpreter.Eval(forward_.x)->dims;
        const Value* dy = interpreter.Eval(scene_.dy);
        // Without the rank of both, nobody knows whether it is the same.
        match_.reshape_dy = dy->dims != x_dims_ || !shapes_.Get(forward_.x).rank_known ||
                            !shapes_.Get(scene_.dy).rank_known;
        if (dy->Flat() == interpreter.Eval(forward_.x)->Flat()) {
          const bool thorough = attempt < Interpreter::kMaxRestarts / 2;
          Visit(candidates.nodes, thorough ? candidates.nodes.size() : candidates.of_norm);
        }
        if (!interpreter.restart()) TakeViews();
        if (!interpreter.restart()) CheckLayoutOfDx();
      }
      if (interpreter.restart()) continue;
      if (!reference_ || !match_.found()) return BackwardMatch();
      const Dim& parameter = reference_->parameter;
      GradientCheck check(view_, shapes_, forward_, tried_, scene_, from_dy_, match_, &axes_);
      if (!check.HoldsInEveryDraw() || !check.HoldsForEveryRank(x_dims_) ||
          check.HangsOnOthers(interpreter, within_.sources, &behind_) ||
          !check.SizesSurelyFit(x_dims_, parameter)) {
        return BackwardMatch();
      }
      if (forward_.lone) {
        const Dim reduced = ReducedAtoms(view_, forward_.statistics, &interpreter);
        match_.problem =
            FindProblem(axes_, x_dims_, reduced, forward_.gamma.valid() ? &parameter : nullptr,
                        forward_.statistics.moment);
        if (!match_.problem ||
            MergesUnknownAxes(*match_.problem, x_dims_, shapes_.Get(forward_.x).dims, parameter) ||
            (match_.problem->per_sample &&
             (!KnowsSamples(shapes_, forward_.x, forward_.gamma) ||
              !KnowsSizesAlong(shapes_, forward_.x, x_dims_,
                               WithoutSamples(*match_.problem, x_dims_, parameter)))) ||
            (forward_.gamma.valid() &&
             IsLeftOpenAlong(view_, shapes_, forward_.x, x_dims_, parameter))) {
          return BackwardMatch();
        }
      }
      // The op gives both in one type: a beta behind a Cast of the product with gamma has another.
      if (match_.dgamma.valid() && match_.dbeta.valid() &&
          shapes_.Get(match_.dgamma).dtype != shapes_.Get(match_.dbeta).dtype) {
        match_.dbeta = TensorId();
      }
      match_.core = CoreNodes();
      match_.reshape_dy = match_.reshape_dy || (IsReshaped(view_, scene_.dy, behind_) &&
                                                !HasSurelyShapeOf(shapes_, scene_.dy, forward_.x));
      const bool plain = !tried_.sum && tried_.factors.empty() && !forward_.open_samples;
      if (!plain && match_.reshape_dy) return BackwardMatch();
      if (tried_.sum ? !IsSummed() : MayBeSummed()) return BackwardMatch();
      match_.stops_gradient = StopsGradient(view_, behind_, forward_core_);
      return match_;
    }
    return BackwardMatch();
  }

 private:
  bool FromDy(TensorId tensor) const { return IsFromDy(scene_, from_dy_, tensor); }

  // The first `count` of the candidates.
  void Visit(const std::vector<int>& candidates, size_t count) {
    const bool wants_dgamma = forward_.gamma.valid();
    const bool wants_dbeta = forward_.beta.valid() || (forward_.lone && wants_dgamma);
    const auto needs_parameter = [&] {
      return match_.dgamma.valid() != wants_dgamma || match_.dbeta.valid() != wants_dbeta;
    };
    std::unordered_set<int> behind_dx;
    for (size_t i = 0; i < count; ++i) {
      const int node = candidates[i];
      // What nobody asks for is no gradient to take in; its type may be unknown, too.
      if (MakesY(node) || !view_.live(node)) continue;
      // Where x goes on beside the norm, the gradient of all that comes before x follows from dx:
      // each norm there may take a restart, and none of it is dgamma or dbeta.
      if (FollowsDx(node, behind_dx)) {
        behind_dx.insert(node);
        continue;
      }
      if (AddsParameters(node)) continue;
      const std::string& op = view_.op(node);
      const TensorId tensor{node, 0};
      if (needs_parameter()) {
        // A batch of one is not summed over, nor are parameters of each sample: dgamma is then a
        // product, say.
        const bool unsummed = x_dims_[0].empty() || forward_.problem.per_sample;
        const bool sums_to = SumsUp(op) || IsSum(op) || (unsummed && MayBeDx(node));
        if (sums_to) TryParameter(tensor, wants_dgamma, wants_dbeta);
        if (interpreter_->restart()) return;
      }
      if (!match_.dx.valid() && MayBeDx(node)) TryDx(tensor);
      if (interpreter_->restart()) return;
      if (match_.dx.valid() && !needs_parameter()) return;
    }
  }

  bool FollowsDx(int node, const std::unordered_set<int>& behind_dx) const {
    const std::vector<TensorId>& inputs = view_.inputs(node);
    return std::any_of(inputs.begin(), inputs.end(), [&](TensorId input) {
      return input == match_.dx || behind_dx.count(input.node) > 0;
    });
  }

  // Where many norms share a gamma, the sum of their dgammas, each of which takes a restart.
  bool AddsParameters(int node) const {
    const std::vector<TensorId>& inputs = view_.inputs(node);
    return IsSum(view_.op(node)) && std::any_of(inputs.begin(), inputs.end(), [&](TensorId term) {
             while (IsPlainView(view_.op(term.node))) term = view_.inputs(term.node)[0];
             return term == match_.dgamma || term == match_.dbeta;
           });
  }

  // Where dy is gamma itself, of one row, xhat * gamma is both dgamma and y.
  bool MakesY(int node) const {
    return !forward_.lone && (node == forward_.y.node || forward_core_.count(node) > 0);
  }

  void TryParameter(TensorId tensor, bool wants_dgamma, bool wants_dbeta) {
    const Value* value = interpreter_->Eval(tensor);
    if (value == nullptr || value->Flat() != reference_->parameter) return;
    if (!forward_.open_samples && IsSummedToOthers(view_, shapes_, forward_, tensor.node)) return;
    const ParameterShapes at(view_, shapes_, forward_.x, axes_, keep_);
    const auto shape = forward_.open_samples ? at.ForReshape(tensor, value->dims, x_dims_[0])
                                             : at.OfSum(tensor, value->dims);
    if (!shape) return;
    if (wants_dgamma && !match_.dgamma.valid() && HasSamplesOf(tensor, forward_.gamma) &&
        IsGradient(value->numbers, reference_->gradients.dgamma, forward_.statistics.tolerance)) {
      match_.dgamma = tensor;
      match_.dgamma_shape = *shape;
    } else if (wants_dbeta && !match_.dbeta.valid() && HasSamplesOf(tensor, forward_.beta) &&
               IsGradient(value->numbers, reference_->gradients.dbeta,
                          forward_.statistics.tolerance)) {
      match_.dbeta = tensor;
      match_.dbeta_shape = *shape;
    }
  }

  bool HasSamplesOf(TensorId tensor, TensorId source) {
    if (!forward_.open_samples) return true;
    if (!sample_counts_) {
      sample_counts_.emplace(view_, shapes_, forward_.x, std::vector{forward_.gamma, forward_.beta},
                             std::vector{scene_.dy, scene_.before_dy}, tried_.sum);
    }
    return sample_counts_->HasThoseOf(tensor, source);
  }

  bool MayBeDx(int node) const {
    const std::string& op = view_.op(node);
    return IsSum(op) || IsProduct(op) || op == "Neg" || ClassOf(op) == OpClass::kNormGrad;
  }

  // dx, or a sum some of whose terms make dx.
  void TryDx(TensorId tensor) {
    const Value* value = interpreter_->Eval(tensor);
    if (value == nullptr) return;
    if (IsGradient(value->numbers, reference_->gradients.dx, forward_.statistics.tolerance)) {
      if (HasSamplesOf(tensor, forward_.x)) match_.dx = tensor;
      return;
    }
    if (!IsSum(view_.op(tensor.node))) return;
    // dy is a term as it is: what it is a sum of does not follow from the random numbers that stand
    // in for it.
    const auto terms = Terms(view_, tensor.node, [&](TensorId t) {
      return FromDy(t) && t != scene_.dy && t != scene_.before_dy;
    });
    std::vector<BagItem> core, others;
    for (const BagItem& term : terms) (FromDy(term.tensor) ? core : others).push_back(term);
    if (core.empty() || core.size() > kMaxTerms || HoldsBothSigns(terms)) return;
    const unsigned all = (1u << core.size()) - 1;
    for (unsigned mask = all; mask > 0; --mask) {
      if (mask == all && others.empty()) continue;  // that is the whole sum
      bool ok = true;
      Numbers sum = Numbers::Scalar(0.0);
      std::vector<Part> terms, parts;
      for (size_t i = 0; i < core.size() && ok; ++i) {
        if ((mask >> i & 1) == 0) {
          parts.push_back({core[i].tensor, core[i].inverted});
          continue;
        }
        terms.push_back({core[i].tensor, core[i].inverted});
        const Value* term = interpreter_->Eval(core[i].tensor);
        if (!HasSamplesOf(core[i].tensor, forward_.x)) term = nullptr;
        // What varies along axes that dx has not is no term of it, and would cost the product of
        // all of them.
        ok = term != nullptr && term->numbers.VariesWithin(reference_->gradients.dx);
        if (ok) sum = Zip(sum, term->numbers, core[i].inverted ? Minus : Plus);
      }
      if (interpreter_->restart()) return;
      if (!ok || !IsGradient(sum, reference_->gradients.dx, forward_.statistics.tolerance))
        continue;
      for (const BagItem& other : others) parts.push_back({other.tensor, other.inverted});
      match_.dx = tensor;
      match_.terms = terms;
      match_.parts = parts;
      return;
    }
  }

  // Takes in the views after dx (the way back through x's own casts and reshapes), as long as
  // nobody reads what comes before them.
  void TakeViews() {
    if (!match_.dx.valid() || !match_.parts.empty()) return;
    TensorId best = match_.dx;
    TensorId at = match_.dx;
    while (!keep_(at.node) && view_.consumers(at.node).size() == 1) {
      const int next = view_.consumers(at.node)[0].node;
      const std::string& op = view_.op(next);
      if (op != "Cast" && op != "Reshape" && op != "Identity" && op != "Transpose") break;
      if (!view_.control_inputs(next).empty()) break;  // a step's results wait for its updates
      if (view_.consumers(at.node)[0].slot != 0 || from_dy_.count(next) == 0) break;
      const bool narrows = view_.op(at.node) == "Cast" && op == "Cast";
      if (narrows || interpreter_->Eval({next, 0}) == nullptr) break;
      at = {next, 0};
      if (DimsOf(at) == x_dims_) best = at;
    }
    match_.dx = best;
  }

  // dx in another shape than x's is reshaped; in another order it is transposed, as where
  // TensorFlow's layout pass turned the forward pass and dy, but not what dx is a sum of.
  void CheckLayoutOfDx() {
    if (!match_.dx.valid()) return;
    const Value* dx = interpreter_->Eval(match_.dx);
    const Value* x = interpreter_->Eval(forward_.x);
    if (dx == nullptr || x == nullptr || dx->dims == x->dims) return;
    match_.reshape_dx = dx->Flat() == x->Flat();
    if (match_.reshape_dx) return;
    const bool may_be_turned =
        shapes_.Get(forward_.x).rank_known && forward_.problem.merged_shape.empty();
    match_.dx_order = may_be_turned ? OrderOfAxes(x->dims, dx->dims) : std::vector<int64_t>();
    if (match_.dx_order.empty()) match_.dx = TensorId();
  }

  Dims DimsOf(TensorId tensor) {
    const Value* value = interpreter_->Eval(tensor);
    return value == nullptr ? Dims() : value->dims;
  }

  // Whether dx has x's shape, too, where dy is larger.
  bool IsSummed() const {
    if (!match_.dx.valid()) return true;
    if (match_.terms.empty()) return IsSummedLike(view_, match_.dx, scene_.dy, from_dy_);
    return std::all_of(match_.terms.begin(), match_.terms.end(), [&](const Part& term) {
      return IsSummedLike(view_, term.tensor, scene_.dy, from_dy_);
    });
  }

  // Whether dy may be larger than x after all: it is summed on its way, as what goes on beside the
  // norm may be what x is broadcast to.
  bool MayBeSummed() const {
    return std::any_of(behind_.begin(), behind_.end(), [&](int node) {
      return from_dy_.count(node) > 0 && SumsAsBroadcast(view_, node) &&
             !IsSurelyOverNothing(view_, shapes_, forward_, node);
    });
  }

  std::vector<int> CoreNodes() const {
    std::unordered_set<int> within = from_dy_;
    for (const Part& part : match_.parts) within.erase(part.tensor.node);
    std::vector<int> outputs;
    for (TensorId tensor : {match_.dx, match_.dgamma, match_.dbeta}) {
      if (tensor.valid()) outputs.push_back(tensor.node);
    }
    return NodesBetween(view_, within, {scene_.dy, scene_.before_dy}, outputs);
  }

  const GraphView& view_;
  const Shapes& shapes_;
  const ForwardMatch& forward_;
  const TriedDy& tried_;
  const std::function<bool(int)>& keep_;
  const GradientScene within_;
  const Scene& scene_ = within_.scene;
  const std::unordered_set<int>& from_dy_ = within_.from_dy;
  const std::unordered_set<int> forward_core_;
  Axes axes_;
  std::unordered_set<int> behind_;  // the nodes that the outputs came from
  std::optional<SampleCounts> sample_counts_;

  Interpreter* interpreter_ = nullptr;
  std::optional<GradientReference> reference_;
  Dims x_dims_;
  BackwardMatch match_;
};

}  // namespace

BackwardMatch FindGradient(const GraphView& view, const Shapes& shapes, const ForwardMatch& forward,
                           const TriedDy& tried, const std::function<bool(int)>& keep) {
  return GradientSearch(view, shapes, forward, tried, keep).Run();
}

}  // namespace nv_norms
