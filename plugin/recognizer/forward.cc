#include "plugin/recognizer/forward.h"

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

constexpr int kMaxDependents = 400;
constexpr int kMaxVisited = 160;
constexpr int kMaxRestarts = 40;
constexpr size_t kMaxSubset = 6;
constexpr double kTolerance = 1e-6;

// A tensor that equals xhat * gamma + beta, then + or * parts.
struct Output {
  TensorId y;
  bool subtract_mean = true;
  TensorId gamma, beta;
  std::vector<Part> parts;
  bool parts_are_factors = false;
  std::vector<BagItem> core;  // the terms (or factors) whose sum (product) is xhat * gamma
  bool core_is_product = false;

  bool clean() const { return parts.empty(); }
};

class Search {
 public:
  Search(const GraphView& view, const Shapes& shapes, const Statistics& statistics,
         const std::function<bool(int)>& keep, std::set<int>* settled)
      : view_(view), shapes_(shapes), statistics_(statistics), keep_(keep), settled_(settled) {
    scene_ = Scene{&view,
                   &shapes,
                   {statistics.x},
                   statistics.rank_if_unknown,
                   Dependents(view, statistics.x, kMaxDependents)};
    if (statistics.epsilon > 0) scene_.scale_of_last_draw = std::sqrt(statistics.epsilon);
  }

  std::vector<ForwardMatch> Run(Reason* reason) {
    for (int attempt = 0; attempt < kMaxRestarts; ++attempt) {
      Interpreter interpreter(scene_, &axes_, /*draw=*/0);
      Prepare(&interpreter);
      if (!interpreter.restart() && ready_) Visit();
      if (!interpreter.restart()) {
        std::vector<ForwardMatch> matches;
        if (ready_) matches = Matches();
        if (interpreter.restart()) continue;
        *reason = matches.empty() ? reason_ : Reason::kNone;
        return matches;
      }
    }
    *reason = Reason::kNoOutput;
    return {};
  }

 private:
  struct Bases {
    Numbers centred, plain;  // (x - mean) * rstd, x * rstd
  };

  std::optional<Bases> BasesOf(Interpreter* interpreter, Dim* reduced) const {
    *reduced = ReducedAtoms(view_, statistics_, interpreter);
    const Value* x = interpreter->restart() ? nullptr : interpreter->Eval(statistics_.x);
    if (x == nullptr || reduced->empty()) return std::nullopt;
    const Numbers rstd = RstdOf(x->numbers, *reduced, statistics_.moment, statistics_.epsilon);
    const auto minus = [](double a, double b) { return a - b; };
    const auto times = [](double a, double b) { return a * b; };
    return Bases{Zip(Zip(x->numbers, MeanOf(x->numbers, *reduced), minus), rstd, times),
                 Zip(x->numbers, rstd, times)};
  }

  void Prepare(Interpreter* interpreter) {
    interpreter_ = interpreter;
    reason_ = Reason::kNoOutput;
    ready_ = false;
    outputs_.clear();
    all_.clear();
    depends_.clear();
    visited_.clear();
    auto bases = BasesOf(interpreter, &reduced_);
    if (!bases) return;
    bases_ = *std::move(bases);
    const Value* x = interpreter->Eval(statistics_.x);
    x_dims_ = x->dims;
    ready_ = !OverTheBatch();
    if (!ready_) reason_ = Reason::kBatchStatistics;
  }

  // Over the first axis but not over all: a batch norm, or the standardization of a kernel.
  bool OverTheBatch() const {
    if (x_dims_.empty() || x_dims_[0].empty()) return false;
    const auto reduced = [&](Atom atom) {
      return std::find(reduced_.begin(), reduced_.end(), atom) != reduced_.end();
    };
    bool first = false, others = true;
    for (Atom atom : x_dims_[0]) first = first || reduced(atom);
    for (const Dim& dim : x_dims_) {
      for (Atom atom : dim) others = others && reduced(atom);
    }
    return first && !others;
  }

  // Whether a tensor is computed from the anchor.
  bool FromAnchor(TensorId tensor) {
    if (tensor == statistics_.anchor) return true;
    if (scene_.dependents.count(tensor.node) == 0) return false;
    auto found = depends_.find(tensor.node);
    if (found != depends_.end()) return found->second;
    depends_[tensor.node] = false;
    bool from = false;
    for (const TensorId& input : view_.inputs(tensor.node)) from = from || FromAnchor(input);
    return depends_[tensor.node] = from;
  }

  bool FromX(TensorId tensor) const {
    return tensor == statistics_.x || scene_.dependents.count(tensor.node) > 0;
  }

  const Output* OutputAt(TensorId tensor) const {
    auto found = outputs_.find(tensor);
    return found == outputs_.end() ? nullptr : &all_[found->second];
  }

  bool MayBeParameter(TensorId tensor) {
    if (FromX(tensor)) return false;
    const Value* value = interpreter_->Eval(tensor);
    if (value == nullptr) return false;
    const Dim atoms = value->Flat();
    return !atoms.empty() &&
           FindProblem(axes_, x_dims_, reduced_, &atoms, statistics_.moment).has_value();
  }

  // Gamma and beta vary along the same axes.
  bool SameAxes(TensorId a, TensorId b) {
    const Value* va = interpreter_->Eval(a);
    const Value* vb = interpreter_->Eval(b);
    return va != nullptr && vb != nullptr && va->Flat() == vb->Flat();
  }

  Numbers Combine(const std::vector<BagItem>& items, bool product, Interpreter* interpreter,
                  bool* ok) const {
    Numbers total = Numbers::Scalar(product ? 1.0 : 0.0);
    for (const BagItem& item : items) {
      const Value* value = interpreter->Eval(item.tensor);
      if (value == nullptr) {
        *ok = false;
        return total;
      }
      const bool inverted = item.inverted;
      total = Zip(total, value->numbers, [&](double a, double b) {
        return product ? (inverted ? a / b : a * b) : (inverted ? a - b : a + b);
      });
    }
    return total;
  }

  // Whether the combined items are xhat, or xhat * gamma for an operand gamma; fills in the rest.
  bool IsNormalized(const std::vector<BagItem>& items, bool product, Output* output) {
    bool ok = true;
    const Numbers value = Combine(items, product, interpreter_, &ok);
    if (!ok || interpreter_->restart()) return false;
    for (bool centred : {true, false}) {
      if (centred && statistics_.moment == Moment::kMeanSquare) continue;
      const Numbers& base = centred ? bases_.centred : bases_.plain;
      output->subtract_mean = centred;
      output->gamma = TensorId();
      if (Close(value, base, kTolerance)) return true;
      const std::vector<TensorId> operands = interpreter_->operands();
      for (const TensorId& operand : operands) {
        const bool parameter = MayBeParameter(operand);
        if (interpreter_->restart()) return false;
        // Others are only looked at to say why a sum of few terms is refused.
        if (!parameter && items.size() > 2) continue;
        const Value* gamma = interpreter_->Eval(operand);
        if (gamma == nullptr || gamma->numbers.atoms.empty() ||
            !CloseToProduct(value, base, gamma->numbers, kTolerance)) {
          continue;
        }
        if (parameter) {
          output->gamma = operand;
          return true;
        }
        reason_ = Reason::kParameterVaries;
      }
    }
    return false;
  }

  void Add(const Output& output) {
    outputs_[output.y] = static_cast<int>(all_.size());
    all_.push_back(output);
  }

  // Takes beta out of the terms that do not come from the anchor; the others become parts.
  void TakeBeta(const std::vector<BagItem>& others, Output* output) {
    for (const BagItem& item : others) {
      const bool fits = !output->beta.valid() && !item.inverted && MayBeParameter(item.tensor) &&
                        (!output->gamma.valid() || SameAxes(output->gamma, item.tensor));
      if (fits) {
        output->beta = item.tensor;
      } else {
        output->parts.push_back({item.tensor, item.inverted});
      }
    }
    output->parts_are_factors = false;
  }

  void TakeGamma(const std::vector<BagItem>& others, Output* output) {
    for (const BagItem& item : others) {
      if (!output->gamma.valid() && !item.inverted && MayBeParameter(item.tensor)) {
        output->gamma = item.tensor;
      } else {
        output->parts.push_back({item.tensor, item.inverted});
      }
    }
    output->parts_are_factors = true;
  }

  // Both return whether to look further along.
  bool VisitSum(int node) {
    const auto terms = Terms(view_, node, [&](TensorId t) {
      return FromAnchor(t) && (OutputAt(t) == nullptr || !OutputAt(t)->clean());
    });
    std::vector<BagItem> core, others;
    for (const BagItem& term : terms) {
      (FromAnchor(term.tensor) ? core : others).push_back(term);
    }
    if (core.empty()) return false;
    Output output;
    output.y = {node, 0};
    if (core.size() == 1 && !core[0].inverted && OutputAt(core[0].tensor) != nullptr) {
      const Output& inner = *OutputAt(core[0].tensor);
      if (inner.beta.valid() || !inner.clean()) return false;
      output = inner;
      output.y = {node, 0};
      TakeBeta(others, &output);
      if (output.beta.valid()) Add(output);
      return output.clean() || !output.beta.valid();
    }
    if (IsNormalized(core, /*product=*/false, &output)) {
      output.core = core;
      TakeBeta(others, &output);
      Add(output);
      return output.clean() || !output.beta.valid();
    }
    if (core.size() < 3 || core.size() > kMaxSubset) return true;
    // Several norms of one x in one sum: some of the terms are one of them.
    for (unsigned mask = 1; mask + 1 < (1u << core.size()); ++mask) {
      std::vector<BagItem> some, rest = others;
      for (size_t i = 0; i < core.size(); ++i) {
        (mask >> i & 1 ? some : rest).push_back(core[i]);
      }
      if (!IsNormalized(some, /*product=*/false, &output)) continue;
      output.core = some;
      TakeBeta(rest, &output);
      Add(output);
      return output.clean() || !output.beta.valid();
    }
    return true;
  }

  bool VisitProduct(int node) {
    const auto factors = Factors(view_, node, [&](TensorId t) {
      return t != statistics_.x && FromX(t) && (OutputAt(t) == nullptr || !OutputAt(t)->clean());
    });
    std::vector<BagItem> core, others;
    std::vector<BagItem> numbers;
    for (const BagItem& factor : factors) {
      if (FromX(factor.tensor)) {
        core.push_back(factor);
      } else {
        const bool number = interpreter_->Eval(factor.tensor) != nullptr &&
                            interpreter_->numbers().count(factor.tensor) > 0;
        (number ? numbers : others).push_back(factor);
      }
    }
    Output output;
    output.y = {node, 0};
    // A number may belong to the statistics: sqrt(N), where the root is that of a sum.
    if (!numbers.empty() && statistics_.slope != 1) {
      core.insert(core.end(), numbers.begin(), numbers.end());
    } else {
      others.insert(others.end(), numbers.begin(), numbers.end());
    }
    if (core.size() == 1 && !core[0].inverted && OutputAt(core[0].tensor) != nullptr) {
      const Output& inner = *OutputAt(core[0].tensor);
      if (inner.gamma.valid() || inner.beta.valid() || !inner.clean()) return false;
      output = inner;
      output.y = {node, 0};
      TakeGamma(others, &output);
      if (!output.gamma.valid()) return false;
      Add(output);
      return output.clean();
    }
    if (IsNormalized(core, /*product=*/true, &output)) {
      output.core = core;
      output.core_is_product = true;
      TakeGamma(others, &output);
      Add(output);
      return output.clean();
    }
    return true;
  }

  // An op that holds a normalization: its own scale and offset may be constants 1 and 0.
  bool VisitNorm(int node) {
    Output output;
    output.y = {node, 0};
    output.core = {{output.y, false}};
    if (IsNormalized(output.core, /*product=*/false, &output)) {
      Add(output);
      return true;
    }
    const TensorId offset = view_.inputs(node)[2];
    output.core.push_back({offset, true});
    if (interpreter_->restart() || !MayBeParameter(offset) ||
        !IsNormalized(output.core, /*product=*/false, &output) ||
        (output.gamma.valid() && !SameAxes(output.gamma, offset))) {
      return true;
    }
    output.beta = offset;
    Add(output);
    return true;
  }

  // Once an output is found, what combines the anchor with tensors that come after that output is
  // its gradient; there is much of that, and nothing to find in it.
  bool MeetsLaterTensor(int node) const {
    int found = -1;
    for (const Output& output : all_) {
      const bool complete = output.subtract_mean || statistics_.moment == Moment::kMeanSquare;
      if (complete && found < 0) found = view_.order(output.y.node);
    }
    if (found < 0) return false;
    for (const TensorId& input : view_.inputs(node)) {
      if (visited_.count(input.node) == 0 && view_.order(input.node) > found) return true;
    }
    return false;
  }

  // A sum or product with an output that has its beta (its gamma) already adds nothing to it.
  bool OnlyUsesOutput(int node) {
    const bool sum = IsSum(view_.op(node));
    if (!sum && !IsProduct(view_.op(node))) return false;
    bool finished = false;
    for (const TensorId& input : view_.inputs(node)) {
      if (!FromAnchor(input)) continue;
      const Output* inner = OutputAt(input);
      if (inner == nullptr || finished) return false;
      finished = inner->beta.valid() || (!sum && inner->gamma.valid());
      if (!finished) return false;
    }
    return finished;
  }

  bool VisitNode(int node) {
    const std::string& op = view_.op(node);
    const TensorId tensor{node, 0};
    const OpClass op_class = ClassOf(op);
    if (op_class == OpClass::kNorm) return tensor == statistics_.anchor && VisitNorm(node);
    if (op_class != OpClass::kElementwise && op_class != OpClass::kView) return false;
    if (op.size() > 4 && op.compare(op.size() - 4, 4, "Grad") == 0) return false;
    if (MeetsLaterTensor(node) || OnlyUsesOutput(node)) return false;
    if (interpreter_->Eval(tensor) == nullptr) return false;
    if (op_class == OpClass::kView) {
      // What waits for others is not taken in: a step's results wait for its updates.
      if (!view_.control_inputs(node).empty()) return false;
      const Output* inner = OutputAt(view_.inputs(node)[0]);
      if (inner == nullptr) return FromAnchor(tensor);
      if (!inner->clean()) return false;
      Output output = *inner;
      output.y = tensor;
      Add(output);
      return true;
    }
    if (IsSum(op)) return VisitSum(node);
    if (IsProduct(op)) return VisitProduct(node);
    return op == "Neg" || op == "Reciprocal" || op == "Inv";
  }

  void Visit() {
    std::set<std::pair<int, int>> queue;
    std::set<int> seen;
    const auto push_consumers = [&](int node) {
      for (const Consumer& c : view_.consumers(node)) {
        if (scene_.dependents.count(c.node) > 0 && seen.insert(c.node).second) {
          queue.insert({view_.order(c.node), c.node});
        }
      }
    };
    const int anchor = statistics_.anchor.node;
    if (ClassOf(view_.op(anchor)) == OpClass::kNorm) {
      queue.insert({view_.order(anchor), anchor});
      seen.insert(anchor);
    } else {
      push_consumers(anchor);
    }
    for (int visited = 0; !queue.empty() && visited < kMaxVisited; ++visited) {
      const int node = queue.begin()->second;
      queue.erase(queue.begin());
      if (VisitNode(node)) {
        visited_.insert(node);
        push_consumers(node);
      }
      if (interpreter_->restart()) return;
    }
  }

  // Nodes between x and y.
  std::vector<int> CoreNodes(TensorId y) const {
    std::vector<int> nodes;
    std::set<int> seen;
    std::vector<int> stack = {y.node};
    while (!stack.empty()) {
      const int node = stack.back();
      stack.pop_back();
      if (scene_.dependents.count(node) == 0 || !seen.insert(node).second) continue;
      nodes.push_back(node);
      for (const TensorId& input : view_.inputs(node)) {
        if (input != statistics_.x) stack.push_back(input.node);
      }
    }
    return nodes;
  }

  bool HoldsInEveryDraw(const Output& output) {
    for (int draw = 1; draw < Interpreter::kNumDraws; ++draw) {
      Interpreter interpreter(scene_, &axes_, draw);
      Dim reduced;
      const auto bases = BasesOf(&interpreter, &reduced);
      if (!bases) return false;
      bool ok = true;
      const Numbers value = Combine(output.core, output.core_is_product, &interpreter, &ok);
      if (!ok) return false;
      // gamma was found as a factor of a product after the core, or as a factor within it.
      Numbers base = output.subtract_mean ? bases->centred : bases->plain;
      if (!Close(value, base, kTolerance)) {
        if (!output.gamma.valid()) return false;
        const Value* gamma = interpreter.Eval(output.gamma);
        if (gamma == nullptr) return false;
        base = Zip(base, gamma->numbers, [](double a, double b) { return a * b; });
        if (!Close(value, base, kTolerance)) return false;
      }
    }
    return statistics_.epsilon > 0 || HasNoSafeguard(output);
  }

  // Without an epsilon, x = 0 gives 0 / 0; a graph that gives something else has a safeguard.
  bool HasNoSafeguard(const Output& output) const {
    Scene scene = scene_;
    scene.scale_of_last_draw = 0;
    Axes axes = axes_;
    Interpreter interpreter(scene, &axes, Interpreter::kNumDraws - 1);
    bool ok = true;
    const Numbers value = Combine(output.core, output.core_is_product, &interpreter, &ok);
    return ok && std::none_of(value.data.begin(), value.data.end(),
                              [](double v) { return std::isfinite(v); });
  }

  bool Usable(const Output& output, ForwardMatch* match) {
    const Value* y = interpreter_->Eval(output.y);
    if (y == nullptr || y->dims != x_dims_) return false;
    Dim parameter;
    const TensorId affine = output.gamma.valid() ? output.gamma : output.beta;
    if (affine.valid()) parameter = interpreter_->Eval(affine)->Flat();
    auto problem = FindProblem(axes_, x_dims_, reduced_, affine.valid() ? &parameter : nullptr,
                               statistics_.moment);
    if (!problem) {
      reason_ = Reason::kNotExpressible;
      return false;
    }
    // Only the op for layer norms can leave the mean where it is.
    if (!output.subtract_mean && statistics_.moment == Moment::kVariance &&
        problem->kind != Kind::kLayerNorm) {
      reason_ = Reason::kNotExpressible;
      return false;
    }
    if (!ParametersSurelyFit(output, *problem)) {
      reason_ = Reason::kNotExpressible;
      return false;
    }
    // A transposed copy beside what others read: the layout pass made it, x is to be found nearer.
    for (TensorId at = output.y; ClassOf(view_.op(at.node)) == OpClass::kView;) {
      const TensorId before = view_.inputs(at.node)[0];
      if (view_.op(at.node) == "Transpose" && !ReadOnlyBy(before, at)) return false;
      at = before;
    }
    const std::vector<int> core = CoreNodes(output.y);
    if (!shapes_.Get(statistics_.x).rank_known &&
        ((problem->kind != Kind::kLayerNorm && problem->kind != Kind::kRmsNorm) ||
         !WriteAxesAsTheGraphDoes(core, affine.valid(), &*problem))) {
      reason_ = Reason::kNotExpressible;
      return false;
    }
    // The other outputs of an op that normalizes are not those of ours.
    for (const Consumer& c : view_.consumers(output.y.node)) {
      if (c.port != 0) return false;
    }
    if (!output.subtract_mean && statistics_.moment == Moment::kVariance &&
        IsTermOfMore(output.y)) {
      return false;
    }
    bool read = keep_(output.y.node);
    for (const Consumer& c : view_.consumers(output.y.node)) {
      read = read || (view_.live(c.node) && view_.op(c.node) != "Shape");
    }
    if (!read) {
      // Then nobody needs what leads to it either.
      settled_->insert(core.begin(), core.end());
      reason_ = Reason::kNobodyReadsIt;
      return false;
    }
    *match = ForwardMatch{
        statistics_, *problem,     output.subtract_mean,     statistics_.x, output.y, output.gamma,
        output.beta, output.parts, output.parts_are_factors, core};
    return true;
  }

  // A parameter of unknown size may have one element when the graph runs, and so may an argument
  // along normalized axes that its owner left open: either would broadcast in the graph. (Inside a
  // graph, a size is mostly unknown because inference does not follow an op.)
  bool ParametersSurelyFit(const Output& output, const Problem& problem) const {
    const TensorInfo& x = shapes_.Get(statistics_.x);
    const std::string& op = view_.op(statistics_.x.node);
    const bool argument = op == "_Arg" || op == "Placeholder" || op == "PlaceholderWithDefault";
    const auto is_known = [](int64_t size) { return size >= 0; };
    for (TensorId tensor : {output.gamma, output.beta}) {
      if (!tensor.valid()) continue;
      const TensorInfo& info = shapes_.Get(tensor);
      if (!info.rank_known || !std::all_of(info.dims.begin(), info.dims.end(), is_known)) {
        return false;
      }
      const bool over_axes = problem.kind == Kind::kLayerNorm || problem.kind == Kind::kRmsNorm;
      if (!x.rank_known || !over_axes || !argument) continue;
      for (int axis : problem.axes) {
        if (!is_known(x.dims[x.dims.size() + axis])) return false;
      }
    }
    return true;
  }

  // x / sqrt(var + epsilon) is an output of its own (Keras calls it rms_scaling), but mostly it is
  // the first of two terms.
  bool IsTermOfMore(TensorId tensor) {
    for (const Consumer& c : view_.consumers(tensor)) {
      if (!IsSum(view_.op(c.node))) continue;
      for (const TensorId& other : view_.inputs(c.node)) {
        if (other != tensor && FromAnchor(other)) return true;
      }
    }
    return false;
  }

  // A view after a complete output is taken in only if nobody else reads what comes before it.
  bool ReadOnlyBy(TensorId tensor, TensorId view_of_it) const {
    if (keep_(tensor.node)) return false;
    for (const Consumer& c : view_.consumers(tensor.node)) {
      if (c.node != view_of_it.node) return false;
    }
    return true;
  }

  // Narrowing to half and widening again would lose the rounding that the graph asks for.
  bool LosesRounding(TensorId y) const {
    int node = y.node;
    bool widened = false;
    while (ClassOf(view_.op(node)) == OpClass::kView) {
      if (view_.op(node) == "Cast") {
        const auto to = view_.GetType(node, "DstT");
        const bool narrow = to == tensorflow::DT_HALF || to == tensorflow::DT_BFLOAT16;
        if (narrow && widened) return true;
        widened = widened || !narrow;
      }
      node = view_.inputs(node)[0].node;
    }
    return false;
  }

  bool IsSettled(int node) const {
    while (settled_->count(node) == 0) {
      if (ClassOf(view_.op(node)) != OpClass::kView) return false;
      node = view_.inputs(node)[0].node;
    }
    return true;
  }

  // The node itself, or, for a view of an inner value that someone else reads, what it views.
  int BaseOf(int node, const std::vector<int>& core) const {
    int base = node;
    while (ClassOf(view_.op(base)) == OpClass::kView && view_.inputs(base)[0] != statistics_.x &&
           std::find(core.begin(), core.end(), base) == core.end()) {
      base = view_.inputs(base)[0].node;
    }
    return base;
  }

  // Without a known rank, axes are written as the graph writes them. False if it mixes the ways.
  bool WriteAxesAsTheGraphDoes(const std::vector<int>& core, bool has_parameters,
                               Problem* problem) const {
    bool negative = false, positive = false;
    for (int node : core) {
      if (ClassOf(view_.op(node)) != OpClass::kReduction) continue;
      const auto axes = IntConstant(view_, view_.inputs(node)[1].node);
      if (!axes) return false;
      for (int64_t axis : axes->values) (axis < 0 ? negative : positive) = true;
    }
    if (negative == positive) return false;
    // Parameters line up with the last axis, positive axes count from the first: with an unknown
    // rank nobody can tell whether they meet.
    if (positive && has_parameters) return false;
    if (positive) {
      for (int& axis : problem->axes) axis += static_cast<int>(x_dims_.size());
    }
    return true;
  }

  std::vector<ForwardMatch> Matches() {
    std::vector<std::pair<Output, ForwardMatch>> usable;
    for (const Output& output : all_) {
      const int node = output.y.node;
      if (LosesRounding(output.y) || IsSettled(node)) continue;
      if (ClassOf(view_.op(node)) == OpClass::kView &&
          !ReadOnlyBy(view_.inputs(node)[0], output.y) && UsableLayout(view_.inputs(node)[0])) {
        continue;
      }
      ForwardMatch match;
      const bool fits = Usable(output, &match);
      if (interpreter_->restart()) return {};
      if (fits && HoldsInEveryDraw(output)) usable.push_back({output, match});
    }
    // Where dy is 1 everywhere, xhat is summed to dgamma; that is the gradient's affair.
    const bool affine = std::any_of(usable.begin(), usable.end(), [](const auto& each) {
      return each.first.gamma.valid() || each.first.beta.valid();
    });
    const auto of_gradient = [&](const auto& each) {
      return affine && !each.first.gamma.valid() && !each.first.beta.valid() &&
             OnlySummed(each.first.y);
    };
    usable.erase(std::remove_if(usable.begin(), usable.end(), of_gradient), usable.end());
    // An output inside another's way from x is only a step of it.
    std::vector<ForwardMatch> matches;
    std::set<int> taken;
    for (size_t i = 0; i < usable.size(); ++i) {
      const int node = usable[i].second.y.node;
      bool inner = false;
      for (size_t j = 0; j < usable.size(); ++j) {
        if (i == j) continue;
        const std::vector<int>& core = usable[j].second.core;
        const int base = BaseOf(node, core);
        inner = inner || (base != usable[j].second.y.node &&
                          std::find(core.begin(), core.end(), base) != core.end());
      }
      if (inner || settled_->count(node) > 0) {
        settled_->insert(node);
      } else if (taken.insert(node).second) {
        matches.push_back(usable[i].second);
        for (int step : matches.back().core) {
          if (step != node) settled_->insert(step);
        }
      }
    }
    return matches;
  }

  // Whether nobody reads a tensor but sums over it.
  bool OnlySummed(TensorId tensor) const {
    const auto& consumers = view_.consumers(tensor.node);
    return !keep_(tensor.node) && !consumers.empty() &&
           std::all_of(consumers.begin(), consumers.end(),
                       [&](const Consumer& c) { return view_.op(c.node) == "Sum"; });
  }

  // Inner tensors shaped like x: where only their shape is read, x's will do.
  std::vector<int> ShapedLikeX(const std::vector<int>& core) {
    std::vector<int> nodes;
    for (int node : core) {
      const Value* value = interpreter_->Eval({node, 0});
      if (value != nullptr && value->dims == x_dims_) nodes.push_back(node);
    }
    return nodes;
  }

  bool UsableLayout(TensorId tensor) {
    const Value* value = interpreter_->Eval(tensor);
    return value != nullptr && value->dims == x_dims_ && OutputAt(tensor) != nullptr;
  }

  const GraphView& view_;
  const Shapes& shapes_;
  const Statistics& statistics_;
  const std::function<bool(int)>& keep_;
  std::set<int>* settled_;
  Scene scene_;
  Axes axes_;

  Interpreter* interpreter_ = nullptr;
  bool ready_ = false;
  Reason reason_ = Reason::kNoOutput;
  Dim reduced_;
  Dims x_dims_;
  Bases bases_;
  std::vector<Output> all_;
  std::map<TensorId, int> outputs_;
  std::map<int, bool> depends_;
  std::set<int> visited_;
};

}  // namespace

std::vector<ForwardMatch> FindForward(const GraphView& view, const Shapes& shapes,
                                      const Statistics& statistics,
                                      const std::function<bool(int)>& keep, std::set<int>* settled,
                                      Reason* reason) {
  return Search(view, shapes, statistics, keep, settled).Run(reason);
}

}  // namespace nv_norms
