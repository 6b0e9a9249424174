#include "plugin/recognizer/backward.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include "plugin/graph/constants.h"
#include "plugin/recognizer/bags.h"
#include "plugin/recognizer/ops.h"

namespace nv_norms {
namespace {

constexpr int kMaxDescendants = 120;  // of dy: a gradient has up to 80 nodes, then the next begins
constexpr int kMaxCandidates = 8;
constexpr int kHopsFromX = 6;
constexpr int kMaxRestarts = 40;
constexpr size_t kMaxTerms = 8;
constexpr double kTolerance = 1e-6;

double Plus(double a, double b) { return a + b; }
double Minus(double a, double b) { return a - b; }
double Times(double a, double b) { return a * b; }

// A Sum over axes of size 1, which the gradient of a broadcast leaves behind.
bool SumsNothing(const GraphView& view, const Shapes& shapes, int node) {
  if (view.op(node) != "Sum") return false;
  const TensorInfo& from = shapes.Get(view.inputs(node)[0]);
  const TensorInfo& to = shapes.Get({node, 0});
  const auto axes = IntConstant(view, view.inputs(node)[1].node);
  if (!axes || !from.rank_known || !to.rank_known || from.dims.size() != to.dims.size()) {
    return false;
  }
  const int64_t rank = static_cast<int64_t>(from.dims.size());
  return std::all_of(axes->values.begin(), axes->values.end(), [&](int64_t axis) {
    const int64_t at = axis < 0 ? axis + rank : axis;
    return at >= 0 && at < rank && from.dims[at] == 1;
  });
}

// A Sum over what BroadcastGradientArgs says when the graph runs: over nothing, for most operands.
bool SumsAsBroadcast(const GraphView& view, int node) {
  return view.op(node) == "Sum" && view.op(view.inputs(node)[1].node) == "BroadcastGradientArgs";
}

// Behind views that change neither values nor (but for their shape) anything else: where dy
// really comes from. `and_sums`: behind sums that may be none, too.
TensorId BehindViews(const GraphView& view, const Shapes& shapes, TensorId tensor,
                     bool and_sums = false) {
  while (true) {
    const int node = tensor.node;
    const std::string& op = view.op(node);
    if (op != "Identity" && op != "Reshape" && op != "Neg" && !IsWideningCast(view, node) &&
        !SumsNothing(view, shapes, node) && !(and_sums && SumsAsBroadcast(view, node))) {
      return tensor;
    }
    tensor = view.inputs(node)[0];
  }
}

class BackwardSearch {
 public:
  BackwardSearch(const GraphView& view, const Shapes& shapes, const ForwardMatch& forward,
                 TensorId dy, TensorId dy_like, const std::function<bool(int)>& keep)
      : view_(view), shapes_(shapes), forward_(forward), keep_(keep) {
    scene_ = Scene{&view, &shapes, {forward.x}, forward.statistics.rank_if_unknown, {}};
    scene_.dy = dy;
    scene_.dy_like = dy_like;
    if (forward.statistics.epsilon > 0) {
      scene_.scale_of_last_draw = std::sqrt(forward.statistics.epsilon);
    }
    LookBeforeTranspose();
    from_dy_ = Dependents(view, scene_.before_dy.valid() ? scene_.before_dy : dy, kMaxDescendants);
    scene_.dependents = from_dy_;
    scene_.dependents.insert(forward.core.begin(), forward.core.end());
    for (int node : from_dy_) {
      for (const TensorId& input : view.inputs(node)) FollowIfFromX(input, kHopsFromX);
    }
  }

  BackwardMatch Run() {
    for (int attempt = 0; attempt < kMaxRestarts; ++attempt) {
      Interpreter interpreter(scene_, &axes_, /*draw=*/0);
      interpreter_ = &interpreter;
      match_ = BackwardMatch();
      match_.dy = scene_.dy;
      reference_ = ReferenceOf(&interpreter);
      if (reference_) {
        x_dims_ = interpreter.Eval(forward_.x)->dims;
        const Value* dy = interpreter.Eval(scene_.dy);
        // Without x's rank, nobody knows whether dy has the same.
        match_.reshape_dy = dy->dims != x_dims_ || !shapes_.Get(forward_.x).rank_known;
        if (dy->Flat() == interpreter.Eval(forward_.x)->Flat()) Visit();
        if (!interpreter.restart()) TakeViews();
        if (!interpreter.restart()) CheckLayoutOfDx();
      }
      if (interpreter.restart()) continue;
      if (!reference_ || !match_.found() || !HoldsInEveryDraw()) return BackwardMatch();
      if (forward_.lone) {
        const Dim reduced = ReducedAtoms(view_, forward_.statistics, &interpreter);
        match_.problem =
            FindProblem(axes_, x_dims_, reduced, forward_.gamma.valid() ? &parameter_ : nullptr,
                        forward_.statistics.moment);
        if (!match_.problem) return BackwardMatch();
      }
      match_.core = CoreNodes();
      return match_;
    }
    return BackwardMatch();
  }

 private:
  struct Reference {
    Numbers dx, dgamma, dbeta;
  };

  // TensorFlow's layout pass transposes dy once for each of its readers.
  void LookBeforeTranspose() {
    const int node = scene_.dy.node;
    if (view_.op(node) != "Transpose") return;
    const auto order = IntConstant(view_, view_.inputs(node)[1].node);
    if (!order) return;
    std::vector<int64_t> sorted = order->values;
    std::sort(sorted.begin(), sorted.end());
    for (size_t i = 0; i < sorted.size(); ++i) {
      if (sorted[i] != static_cast<int64_t>(i)) return;
    }
    scene_.before_dy = view_.inputs(node)[0];
    scene_.dy_order = order->values;
  }

  // Nodes that lead from x or the forward to the gradient without passing dy: Sub(x, mean), say.
  bool FollowIfFromX(TensorId tensor, int hops) {
    const int node = tensor.node;
    if (tensor == forward_.x || scene_.dependents.count(node) > 0) return true;
    if (hops == 0 || ClassOf(view_.op(node)) == OpClass::kOpaque) return false;
    bool from_x = false;
    for (const TensorId& input : view_.inputs(node)) {
      from_x = FollowIfFromX(input, hops - 1) || from_x;
    }
    if (from_x) scene_.dependents.insert(node);
    return from_x;
  }

  // The textbook's gradients.
  std::optional<Reference> ReferenceOf(Interpreter* interpreter) {
    const Dim reduced = ReducedAtoms(view_, forward_.statistics, interpreter);
    const Value* x = interpreter->restart() ? nullptr : interpreter->Eval(forward_.x);
    const Value* dy = interpreter->restart() ? nullptr : interpreter->Eval(scene_.dy);
    if (x == nullptr || dy == nullptr || reduced.empty()) return std::nullopt;
    Numbers gamma = Numbers::Scalar(1.0);
    parameter_.clear();
    for (const TensorId& tensor : {forward_.gamma, forward_.beta}) {
      if (!tensor.valid()) continue;
      const Value* value = interpreter->Eval(tensor);
      // y itself ties gamma's axes to those of x; without it, the gradient must.
      if (value == nullptr) return std::nullopt;
      if (!forward_.lone && interpreter->Eval(forward_.y) == nullptr) return std::nullopt;
      parameter_ = value->Flat();
      if (tensor == forward_.gamma) gamma = value->numbers;
    }
    const bool mean_square = forward_.statistics.moment == Moment::kMeanSquare;
    const Numbers mean = mean_square ? Numbers::Scalar(0.0) : MeanOf(x->numbers, reduced);
    const Numbers rstd =
        RstdOf(x->numbers, reduced, forward_.statistics.moment, forward_.statistics.epsilon);
    const Numbers centred = Zip(x->numbers, mean, Minus);
    const Numbers xhat = Zip(forward_.subtract_mean ? centred : x->numbers, rstd, Times);
    const Numbers w = Zip(dy->numbers, gamma, Times);
    const Numbers along = MeanOver(Zip(w, xhat, Times), reduced);
    Numbers dx = w;
    if (forward_.subtract_mean && !mean_square) dx = Zip(dx, MeanOver(w, reduced), Minus);
    dx = Zip(dx, Zip(Zip(centred, rstd, Times), along, Times), Minus);
    Reference reference;
    reference.dx = Zip(dx, rstd, Times);
    Dim others;
    for (Atom atom : x->numbers.atoms) {
      if (std::find(parameter_.begin(), parameter_.end(), atom) == parameter_.end()) {
        others.push_back(atom);
      }
    }
    const double count = interpreter->RealSize(axes_.size(others));
    const auto sum = [&](const Numbers& numbers) {
      return Map(MeanOver(numbers, others), [count](double v) { return v * count; });
    };
    reference.dgamma = sum(Zip(dy->numbers, xhat, Times));
    reference.dbeta = sum(dy->numbers);
    return reference;
  }

  bool FromDy(TensorId tensor) const {
    return tensor == scene_.dy || tensor == scene_.before_dy || from_dy_.count(tensor.node) > 0;
  }

  void Visit() {
    std::vector<int> nodes(from_dy_.begin(), from_dy_.end());
    std::sort(nodes.begin(), nodes.end(), [&](int a, int b) {
      return std::make_pair(view_.order(a), a) < std::make_pair(view_.order(b), b);
    });
    const bool wants_dgamma = forward_.gamma.valid();
    const bool wants_dbeta = forward_.beta.valid() || (forward_.lone && wants_dgamma);
    for (int node : nodes) {
      const std::string& op = view_.op(node);
      const TensorId tensor{node, 0};
      if (ClassOf(op) == OpClass::kReduction && op == "Sum" && (wants_dgamma || wants_dbeta)) {
        TryParameter(tensor, wants_dgamma, wants_dbeta);
      } else if (!match_.dx.valid() && MayBeDx(node)) {
        TryDx(tensor);
      }
      if (interpreter_->restart()) return;
      const bool complete = match_.dx.valid() && match_.dgamma.valid() == wants_dgamma &&
                            match_.dbeta.valid() == wants_dbeta;
      if (complete) return;
    }
  }

  void TryParameter(TensorId tensor, bool wants_dgamma, bool wants_dbeta) {
    const Value* value = interpreter_->Eval(tensor);
    if (value == nullptr || value->Flat() != parameter_) return;
    std::vector<int64_t> shape;
    if (!ShapeOfSum(tensor, value->dims, &shape)) return;
    if (wants_dgamma && !match_.dgamma.valid() &&
        Close(value->numbers, reference_->dgamma, kTolerance)) {
      match_.dgamma = tensor;
      match_.dgamma_shape = shape;
    } else if (wants_dbeta && !match_.dbeta.valid() &&
               Close(value->numbers, reference_->dbeta, kTolerance)) {
      match_.dbeta = tensor;
      match_.dbeta_shape = shape;
    }
  }

  // The shape of a parameter's gradient at its Sum: as inferred, or as the axes tell. Without x's
  // rank nobody knows it; then a Reshape must follow that tells it (and would fail, were the rank
  // another than it seems), and any shape will do. False: unknown.
  bool ShapeOfSum(TensorId sum, const Dims& dims, std::vector<int64_t>* shape) const {
    const auto known = [](const std::vector<int64_t>& sizes) {
      return std::all_of(sizes.begin(), sizes.end(), [](int64_t size) { return size >= 0; });
    };
    const TensorInfo& info = shapes_.Get(sum);
    *shape = info.dims;
    if (info.rank_known && known(*shape)) return true;
    shape->clear();
    if (shapes_.Get(forward_.x).rank_known) {
      for (const Dim& dim : dims) {
        const Size size = axes_.size(dim);
        shape->push_back(size.known() ? size.coefficient() : -1);
      }
      return known(*shape);
    }
    while (!keep_(sum.node) && view_.consumers(sum.node).size() == 1) {
      sum = {view_.consumers(sum.node)[0].node, 0};
      const TensorInfo& next = shapes_.Get(sum);
      if (view_.op(sum.node) == "Reshape") return next.rank_known && known(next.dims);
      if (view_.op(sum.node) != "Cast") return false;
    }
    return false;
  }

  bool MayBeDx(int node) const {
    const std::string& op = view_.op(node);
    return IsSum(op) || IsProduct(op) || op == "Neg" || ClassOf(op) == OpClass::kNormGrad;
  }

  // dx, or a sum some of whose terms make dx.
  void TryDx(TensorId tensor) {
    const Value* value = interpreter_->Eval(tensor);
    if (value == nullptr) return;
    if (Close(value->numbers, reference_->dx, kTolerance)) {
      match_.dx = tensor;
      return;
    }
    if (!IsSum(view_.op(tensor.node))) return;
    const auto terms = Terms(view_, tensor.node, [&](TensorId t) { return FromDy(t); });
    std::vector<BagItem> core, others;
    for (const BagItem& term : terms) (FromDy(term.tensor) ? core : others).push_back(term);
    if (core.empty() || core.size() > kMaxTerms) return;
    const unsigned all = (1u << core.size()) - 1;
    for (unsigned mask = all; mask > 0; --mask) {
      if (mask == all && others.empty()) continue;  // that is the whole sum
      bool ok = true;
      Numbers sum = Numbers::Scalar(0.0);
      std::vector<Part> parts;
      for (size_t i = 0; i < core.size() && ok; ++i) {
        if ((mask >> i & 1) == 0) {
          parts.push_back({core[i].tensor, core[i].inverted});
          continue;
        }
        const Value* term = interpreter_->Eval(core[i].tensor);
        ok = term != nullptr;
        if (ok) sum = Zip(sum, term->numbers, core[i].inverted ? Minus : Plus);
      }
      if (interpreter_->restart()) return;
      if (!ok || !Close(sum, reference_->dx, kTolerance)) continue;
      for (const BagItem& other : others) parts.push_back({other.tensor, other.inverted});
      match_.dx = tensor;
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

  // dx in another shape than x's is reshaped; in another order it is none for us.
  void CheckLayoutOfDx() {
    if (!match_.dx.valid()) return;
    const Value* dx = interpreter_->Eval(match_.dx);
    const Value* x = interpreter_->Eval(forward_.x);
    if (dx == nullptr || x == nullptr) return;
    match_.reshape_dx = dx->dims != x->dims;
    if (dx->Flat() != x->Flat()) match_.dx = TensorId();
  }

  Dims DimsOf(TensorId tensor) {
    const Value* value = interpreter_->Eval(tensor);
    return value == nullptr ? Dims() : value->dims;
  }

  bool HoldsInEveryDraw() {
    for (int draw = 1; draw < Interpreter::kNumDraws; ++draw) {
      Interpreter interpreter(scene_, &axes_, draw);
      const auto reference = ReferenceOf(&interpreter);
      if (!reference) return false;
      if (match_.dx.valid()) {
        const Value* whole = interpreter.Eval(match_.dx);
        if (whole == nullptr) return false;
        Numbers dx = whole->numbers;
        for (const Part& part : match_.parts) {
          const Value* value = interpreter.Eval(part.tensor);
          if (value == nullptr) return false;
          dx = Zip(dx, value->numbers, part.inverted ? Plus : Minus);
        }
        // What is taken away may be far larger than what is left.
        const double size = std::max(MaxAbs(whole->numbers), MaxAbs(reference->dx));
        const double error = MaxAbs(Zip(dx, reference->dx, Minus));
        if (!(error <= 1e-9 * size + kTolerance * MaxAbs(reference->dx))) return false;
      }
      for (const auto& [tensor, expected] : {std::make_pair(match_.dgamma, &reference->dgamma),
                                             std::make_pair(match_.dbeta, &reference->dbeta)}) {
        if (!tensor.valid()) continue;
        const Value* value = interpreter.Eval(tensor);
        if (value == nullptr || !Close(value->numbers, *expected, kTolerance)) return false;
      }
    }
    return true;
  }

  std::vector<int> CoreNodes() const {
    std::vector<int> nodes;
    std::set<int> seen;
    std::vector<int> stack;
    for (TensorId tensor : {match_.dx, match_.dgamma, match_.dbeta}) {
      if (tensor.valid()) stack.push_back(tensor.node);
    }
    std::set<int> outside;
    for (const Part& part : match_.parts) outside.insert(part.tensor.node);
    while (!stack.empty()) {
      const int node = stack.back();
      stack.pop_back();
      if (from_dy_.count(node) == 0 || outside.count(node) > 0 || !seen.insert(node).second) {
        continue;
      }
      nodes.push_back(node);
      for (const TensorId& input : view_.inputs(node)) {
        if (input != scene_.dy && input != scene_.before_dy) stack.push_back(input.node);
      }
    }
    return nodes;
  }

  const GraphView& view_;
  const Shapes& shapes_;
  const ForwardMatch& forward_;
  const std::function<bool(int)>& keep_;
  Scene scene_;
  Axes axes_;
  std::unordered_set<int> from_dy_;

  Interpreter* interpreter_ = nullptr;
  std::optional<Reference> reference_;
  Dims x_dims_;
  Dim parameter_;
  BackwardMatch match_;
};

bool SameShape(const TensorInfo& a, const TensorInfo& b) {
  if (!IsFloat(a.dtype)) return false;
  if (!a.rank_known || !b.rank_known) return true;
  if (a.dims.size() != b.dims.size()) return false;
  for (size_t i = 0; i < a.dims.size(); ++i) {
    if (a.dims[i] >= 0 && b.dims[i] >= 0 && a.dims[i] != b.dims[i]) return false;
  }
  return true;
}

struct Candidate {
  TensorId dy;
  TensorId like;  // x, or the view of x, whose shape it has
};

// Tensors that are multiplied with x or with inner tensors of the forward, and came after it.
std::vector<Candidate> Candidates(const GraphView& view, const Shapes& shapes,
                                  const ForwardMatch& forward) {
  std::set<int> inner(forward.core.begin(), forward.core.end());
  std::vector<TensorId> near = {forward.x};
  for (int node : forward.core) near.push_back({node, 0});
  std::vector<TensorId> likes = {forward.x};
  for (int node : forward.core) {
    if (view.op(node) == "Reshape" && view.inputs(node)[0] == forward.x) likes.push_back({node, 0});
    if (view.op(node) == "Cast" && view.op(view.inputs(node)[0].node) == "Reshape") {
      likes.push_back({node, 0});
    }
  }
  std::vector<Candidate> found;
  const auto add = [&](TensorId tensor) {
    if (static_cast<int>(found.size()) == kMaxCandidates) return;
    for (const Candidate& candidate : found) {
      if (candidate.dy == tensor) return;
    }
    for (const TensorId& like : likes) {
      if (!SameShape(shapes.Get(tensor), shapes.Get(like))) continue;
      found.push_back({tensor, like});
      return;
    }
  };
  const auto consider = [&](TensorId other) {
    if (other == forward.x || inner.count(other.node) > 0) return;
    // dy behind its views; or behind the product with gamma, which comes first in RMS norms.
    TensorId behind = BehindViews(view, shapes, other);
    if (view.op(behind.node) == "Mul") {
      for (const TensorId& factor : view.inputs(behind.node)) {
        for (const TensorId& sibling : view.inputs(behind.node)) {
          const bool with_gamma =
              sibling != factor &&
              BehindViews(view, shapes, sibling) ==
                  BehindViews(view, shapes, forward.gamma.valid() ? forward.gamma : sibling);
          if (with_gamma && forward.gamma.valid()) add(BehindViews(view, shapes, factor));
          if (with_gamma && forward.gamma.valid()) add(factor);
        }
      }
    }
    const TensorId source = BehindViews(view, shapes, other, /*and_sums=*/true);
    add(source);
    add(behind);
    // Between its views: the innermost that has x's shape, which no cast has widened yet.
    std::vector<TensorId> views;
    for (TensorId at = other; at != source; at = view.inputs(at.node)[0]) views.push_back(at);
    for (auto at = views.rbegin(); at != views.rend(); ++at) add(*at);
  };
  for (const TensorId& tensor : near) {
    for (const Consumer& c : view.consumers(tensor)) {
      if (inner.count(c.node) > 0) continue;
      const std::string& op = view.op(c.node);
      if (IsProduct(op)) {
        for (const TensorId& input : view.inputs(c.node)) consider(input);
      } else if (ClassOf(op) == OpClass::kNormGrad) {
        consider(view.inputs(c.node)[0]);
      }
    }
  }
  return found;
}

// Of matches that replace the same node, the first. Where x is differentiated, what lacks dx
// belongs to another norm of the same x: sum(dy * xhat) knows no gamma.
std::vector<BackwardMatch> WithoutOverlap(const std::vector<BackwardMatch>& matches) {
  std::vector<BackwardMatch> kept;
  std::set<int> taken;
  const bool with_dx = std::any_of(matches.begin(), matches.end(),
                                   [](const BackwardMatch& m) { return m.dx.valid(); });
  for (const BackwardMatch& match : matches) {
    if (with_dx && !match.dx.valid()) continue;
    std::vector<int> outputs;
    for (TensorId tensor : {match.dx, match.dgamma, match.dbeta}) {
      if (tensor.valid()) outputs.push_back(tensor.node);
    }
    if (std::any_of(outputs.begin(), outputs.end(), [&](int n) { return taken.count(n) > 0; })) {
      continue;
    }
    taken.insert(match.core.begin(), match.core.end());
    taken.insert(outputs.begin(), outputs.end());
    kept.push_back(match);
  }
  return kept;
}

// The nodes that lead from x to a tensor.
std::vector<int> Between(const GraphView& view, TensorId x, TensorId to) {
  const std::unordered_set<int> from_x = Dependents(view, x, kMaxDescendants);
  std::vector<int> nodes;
  std::set<int> seen;
  std::vector<int> stack = {to.node};
  while (!stack.empty()) {
    const int node = stack.back();
    stack.pop_back();
    if (from_x.count(node) == 0 || !seen.insert(node).second) continue;
    nodes.push_back(node);
    for (const TensorId& input : view.inputs(node)) {
      if (input != x) stack.push_back(input.node);
    }
  }
  return nodes;
}

// What a tensor is multiplied with that may be a gamma: a tensor of known shape that no inner node
// gives.
std::vector<TensorId> MultipliedWith(const GraphView& view, const Shapes& shapes, TensorId tensor,
                                     const std::vector<int>& inner) {
  constexpr size_t kMaxGammas = 4;
  std::vector<TensorId> found;
  for (const Consumer& c : view.consumers(tensor)) {
    if (view.op(c.node) != "Mul") continue;
    const TensorId other = view.inputs(c.node)[1 - c.slot];
    const TensorInfo& info = shapes.Get(other);
    const bool known = info.rank_known && std::all_of(info.dims.begin(), info.dims.end(),
                                                      [](int64_t size) { return size >= 0; });
    if (known && found.size() < kMaxGammas && other != tensor &&
        std::find(inner.begin(), inner.end(), other.node) == inner.end() &&
        std::find(found.begin(), found.end(), other) == found.end()) {
      found.push_back(other);
    }
  }
  return found;
}

}  // namespace

bool HasGradient(const GraphView& view, TensorId anchor) {
  for (const Consumer& c : view.consumers(anchor.node)) {
    const std::string& op = view.op(c.node);
    if (op == "RsqrtGrad" || op == "SqrtGrad" || ClassOf(op) == OpClass::kNormGrad) return true;
  }
  return false;
}

std::vector<BackwardMatch> FindBackward(const GraphView& view, const Shapes& shapes,
                                        const ForwardMatch& forward,
                                        const std::function<bool(int)>& keep) {
  const auto score = [](const BackwardMatch& m) {
    return 3 * m.dx.valid() + m.dgamma.valid() + m.dbeta.valid();
  };
  const auto complete = [&](const BackwardMatch& m) {
    return m.dx.valid() && m.dgamma.valid() == forward.gamma.valid() &&
           m.dbeta.valid() == forward.beta.valid();
  };
  const auto depends = [&](TensorId a, TensorId b) {
    return view.DependsOn(a.node, {b.node}) || view.DependsOn(b.node, {a.node});
  };
  std::vector<BackwardMatch> found;
  for (const auto& [dy, like] : Candidates(view, shapes, forward)) {
    // Two gradients of one forward come from two losses; else it is one gradient, seen again.
    BackwardMatch* same = nullptr;
    for (BackwardMatch& other : found) {
      if (depends(dy, other.dy)) same = &other;
    }
    if (same != nullptr && complete(*same)) continue;
    const BackwardMatch match = BackwardSearch(view, shapes, forward, dy, like, keep).Run();
    if (!match.found()) continue;
    if (same == nullptr) {
      found.push_back(match);
    } else if (score(match) > score(*same)) {
      *same = match;
    }
  }
  return WithoutOverlap(found);
}

LoneGradient FindLoneGradient(const GraphView& view, const Shapes& shapes,
                              const Statistics& statistics, const std::function<bool(int)>& keep) {
  LoneGradient lone;
  if (!HasGradient(view, statistics.anchor) || !shapes.Get(statistics.x).rank_known) return lone;
  ForwardMatch& forward = lone.forward;
  forward.statistics = statistics;
  forward.x = statistics.x;
  forward.y = statistics.anchor;
  forward.lone = true;
  forward.subtract_mean = statistics.moment == Moment::kVariance;
  forward.core = Between(view, statistics.x, statistics.anchor);
  std::vector<TensorId> gammas = MultipliedWith(view, shapes, statistics.anchor, forward.core);
  for (const Candidate& candidate : Candidates(view, shapes, forward)) {
    for (TensorId gamma : MultipliedWith(view, shapes, candidate.dy, forward.core)) {
      if (std::find(gammas.begin(), gammas.end(), gamma) == gammas.end()) gammas.push_back(gamma);
    }
  }
  gammas.push_back(TensorId());  // none
  for (TensorId gamma : gammas) {
    forward.gamma = gamma;
    lone.gradients = FindBackward(view, shapes, forward, keep);
    if (!lone.gradients.empty() && lone.gradients[0].dx.valid()) {
      forward.problem = *lone.gradients[0].problem;
      return lone;
    }
  }
  lone.gradients.clear();
  return lone;
}

}  // namespace nv_norms
