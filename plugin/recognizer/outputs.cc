#include "plugin/recognizer/outputs.h"

#include <algorithm>
#include <utility>

#include "plugin/recognizer/open_sizes.h"
#include "plugin/recognizer/ops.h"

namespace nv_norms {
namespace {

constexpr int kMaxVisited = 160;
constexpr size_t kMaxSubset = 6;
constexpr int kMaxConditioning = 128;  // nodes of a network that computes a scale

}  // namespace

std::optional<Numbers> Combine(const std::vector<BagItem>& items, bool product,
                               Interpreter* interpreter) {
  Numbers total = Numbers::Scalar(product ? 1.0 : 0.0);
  for (const BagItem& item : items) {
    const Value* value = interpreter->Eval(item.tensor);
    if (value == nullptr) return std::nullopt;
    const bool inverted = item.inverted;
    total = Zip(total, value->numbers, [&](double a, double b) {
      return product ? (inverted ? a / b : a * b) : (inverted ? a - b : a + b);
    });
  }
  return total;
}

bool IsNormalizedX(const Output& output, const Normalized& x, const Statistics& statistics,
                   Interpreter* interpreter) {
  const auto value = Combine(output.core, output.core_is_product, interpreter);
  if (!value) return false;
  const Numbers& base = output.subtract_mean ? x.xhat : x.plain;
  if (Close(*value, base, statistics.tolerance)) return true;
  const TensorId factor = output.gamma.valid() ? output.gamma : output.scale;
  const Value* gamma = factor.valid() ? interpreter->Eval(factor) : nullptr;
  return gamma != nullptr && CloseToProduct(*value, base, gamma->numbers, statistics.tolerance);
}

bool MayBeOfSamples(const Neighbourhood& near, const Problem& problem, TensorId parameter) {
  const TensorId x = near.statistics.x;
  if (KnowsSamples(near.shapes, x, parameter)) return true;
  const Value* value = near.interpreter->Eval(parameter);
  return near.open_samples && !problem.merges_batch && value != nullptr &&
         KnowsChannels(near.shapes, x, near.x.dims, parameter, value->dims);
}

// Whether a tensor is computed from the anchor.
bool Outputs::FromAnchor(TensorId tensor) {
  if (tensor == near_.statistics.anchor) return true;
  if (near_.scene.dependents.count(tensor.node) == 0) return false;
  auto found = from_anchor_.find(tensor.node);
  if (found != from_anchor_.end()) return found->second;
  from_anchor_[tensor.node] = false;
  bool from = false;
  for (const TensorId& input : near_.view.inputs(tensor.node)) from = from || FromAnchor(input);
  return from_anchor_[tensor.node] = from;
}

bool Outputs::FromX(TensorId tensor) const {
  return tensor == near_.statistics.x || near_.scene.dependents.count(tensor.node) > 0;
}

const Output* Outputs::At(TensorId tensor) const {
  auto found = index_.find(tensor);
  return found == index_.end() ? nullptr : &all_[found->second];
}

std::optional<Problem> Outputs::ProblemWith(TensorId parameter) {
  if (FromX(parameter)) return std::nullopt;
  const Value* value = near_.interpreter->Eval(parameter);
  if (value == nullptr) return std::nullopt;
  const Dim atoms = value->Flat();
  if (atoms.empty()) return std::nullopt;
  auto problem =
      FindProblem(*near_.axes, near_.x.dims, near_.x.reduced, &atoms, near_.statistics.moment);
  if (problem && problem->per_sample && !MayBeOfSamples(near_, *problem, parameter)) {
    return std::nullopt;
  }
  return problem;
}

bool Outputs::MayBeParameter(TensorId tensor) { return ProblemWith(tensor).has_value(); }

// A layer norm and then a table of positions is that, not a group norm whose groups are positions.
bool Outputs::MayComeAfter(TensorId tensor) {
  const auto with = ProblemWith(tensor);
  if (!with || !with->merges_batch) return with.has_value();
  return !FindProblem(*near_.axes, near_.x.dims, near_.x.reduced, nullptr, near_.statistics.moment);
}

// Gamma and beta vary along the same axes.
bool Outputs::SameAxes(TensorId a, TensorId b) {
  const Value* va = near_.interpreter->Eval(a);
  const Value* vb = near_.interpreter->Eval(b);
  return va != nullptr && vb != nullptr && va->Flat() == vb->Flat();
}

// Whether a product with y is what it is within: of y's type, and broadcast along the same axes.
bool Outputs::MayBeScale(TensorId tensor, TensorId y) {
  const Dims& dims = near_.interpreter->Eval(tensor)->dims;
  const Dims& of_x = near_.x.dims;
  return near_.shapes.Get(tensor).dtype == near_.shapes.Get(y).dtype &&
         dims.size() <= of_x.size() &&
         std::equal(dims.rbegin(), dims.rend(), of_x.rbegin(),
                    [](const Dim& a, const Dim& b) { return a.empty() || a == b; });
}

// Whether the combined items are xhat, or xhat * gamma for an operand gamma, or, in a sum, for one
// that is no parameter; fills in the rest.
bool Outputs::IsNormalized(const std::vector<BagItem>& items, bool product, Output* output) {
  const auto value = Combine(items, product, near_.interpreter);
  if (!value || near_.interpreter->restart()) return false;
  TensorId scale;
  for (bool centred : {true, false}) {
    if (centred && near_.statistics.moment == Moment::kMeanSquare) continue;
    const Numbers& base = centred ? near_.x.xhat : near_.x.plain;
    output->subtract_mean = centred;
    output->gamma = TensorId();
    if (Close(*value, base, near_.statistics.tolerance)) return true;
    const std::vector<TensorId> operands = near_.interpreter->operands();
    for (const TensorId& operand : operands) {
      const bool parameter = MayBeParameter(operand);
      if (near_.interpreter->restart()) return false;
      // Others are only looked at to say why a sum of few terms is refused.
      if (!parameter && items.size() > 2) continue;
      const Value* gamma = near_.interpreter->Eval(operand);
      if (gamma == nullptr ||
          !CloseToProduct(*value, base, gamma->numbers, near_.statistics.tolerance)) {
        continue;
      }
      if (parameter) {
        output->gamma = operand;
        return true;
      }
      if (centred && !product && items.size() == 2 && MayBeScale(operand, output->y)) {
        scale = operand;
      }
      reason_ = Reason::kParameterVaries;
    }
  }
  output->subtract_mean = true;
  output->scale = scale;
  return scale.valid();
}

void Outputs::Add(const Output& output) {
  index_[output.y] = static_cast<int>(all_.size());
  all_.push_back(output);
}

// Takes beta out of the terms that do not come from the anchor; the others become parts. Behind a
// scale there is no beta.
void Outputs::TakeBeta(const std::vector<BagItem>& others, Output* output) {
  for (const BagItem& item : others) {
    const bool fits =
        !output->beta.valid() && !item.inverted && !output->scale.valid() &&
        (output->gamma.valid() ? SameAxes(output->gamma, item.tensor) && MayBeParameter(item.tensor)
                               : MayComeAfter(item.tensor));
    if (fits) {
      output->beta = item.tensor;
    } else {
      output->parts.push_back({item.tensor, item.inverted});
    }
  }
  output->parts_are_factors = false;
}

void Outputs::TakeGamma(const std::vector<BagItem>& others, Output* output) {
  for (const BagItem& item : others) {
    if (!output->gamma.valid() && !item.inverted && MayComeAfter(item.tensor)) {
      output->gamma = item.tensor;
    } else {
      output->parts.push_back({item.tensor, item.inverted});
    }
  }
  output->parts_are_factors = true;
}

bool Outputs::VisitSum(int node) {
  const auto terms = Terms(near_.view, node, [&](TensorId t) {
    return FromAnchor(t) && (At(t) == nullptr || !At(t)->clean());
  });
  std::vector<BagItem> core, others;
  for (const BagItem& term : terms) {
    (FromAnchor(term.tensor) ? core : others).push_back(term);
  }
  if (core.empty()) return false;
  Output output;
  output.y = {node, 0};
  if (core.size() == 1 && !core[0].inverted && At(core[0].tensor) != nullptr) {
    const Output& inner = *At(core[0].tensor);
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

// It may be along another axis than the last, so that it is no term of a sum.
bool Outputs::VisitBias(int node) {
  const Output* inner = At(near_.view.inputs(node)[0]);
  if (inner == nullptr || inner->beta.valid() || !inner->clean()) return false;
  Output output = *inner;
  output.y = {node, 0};
  TakeBeta({{near_.view.inputs(node)[1], false}}, &output);
  if (!output.beta.valid()) return false;
  Add(output);
  return output.clean();
}

bool Outputs::VisitProduct(int node) {
  const auto factors = Factors(near_.view, node, [&](TensorId t) {
    return t != near_.statistics.x && FromX(t) && (At(t) == nullptr || !At(t)->clean());
  });
  std::vector<BagItem> core, others;
  std::vector<BagItem> numbers;
  for (const BagItem& factor : factors) {
    if (FromX(factor.tensor)) {
      core.push_back(factor);
    } else {
      const bool number = near_.interpreter->Eval(factor.tensor) != nullptr &&
                          near_.interpreter->numbers().count(factor.tensor) > 0;
      (number ? numbers : others).push_back(factor);
    }
  }
  Output output;
  output.y = {node, 0};
  // A number may belong to the statistics: sqrt(N), where the root is that of a sum, or the 1 of
  // 1 / root, which Grappler has made an Rsqrt, and nobody inside XLA.
  const bool has_root = core.size() > 1;
  for (const BagItem& number : numbers) {
    const bool is_one =
        near_.interpreter->Eval(number.tensor)->numbers.data == std::vector<double>{1.0};
    (near_.statistics.slope != 1 || (has_root && is_one) ? core : others).push_back(number);
  }
  if (core.size() == 1 && !core[0].inverted && At(core[0].tensor) != nullptr) {
    const Output& inner = *At(core[0].tensor);
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
bool Outputs::VisitNorm(int node) {
  Output output;
  output.y = {node, 0};
  output.core = {{output.y, false}};
  near_.interpreter->Eval(output.y);
  const auto& operands = near_.interpreter->operands();
  if (std::find(operands.begin(), operands.end(), output.y) != operands.end()) {
    reason_ =
        Reason::kParameterVaries;  // scale or offset is no vector, and what that means unknown
    return false;
  }
  if (IsNormalized(output.core, /*product=*/false, &output)) {
    Add(output);
    return true;
  }
  const TensorId offset = near_.view.inputs(node)[2];
  output.core.push_back({offset, true});
  if (near_.interpreter->restart() || !MayBeParameter(offset) ||
      !IsNormalized(output.core, /*product=*/false, &output) ||
      (output.gamma.valid() && !SameAxes(output.gamma, offset))) {
    return true;
  }
  output.beta = offset;
  Add(output);
  return true;
}

// A division that gives 0 where 0 is divided by 0. It is not taken apart, so that without an
// epsilon this shows.
bool Outputs::VisitGuardedQuotient(int node) {
  Output output;
  output.y = {node, 0};
  output.core = {{output.y, false}};
  if (IsNormalized(output.core, /*product=*/false, &output)) Add(output);
  return true;
}

// x / sqrt(var + epsilon) is an output of its own (Keras calls it rms_scaling), but mostly it is
// the first of two terms.
bool Outputs::IsTermOfMore(TensorId tensor) {
  for (const Consumer& c : near_.view.consumers(tensor)) {
    if (!IsSum(near_.view.op(c.node))) continue;
    for (const TensorId& other : near_.view.inputs(c.node)) {
      if (other != tensor && FromAnchor(other)) return true;
    }
  }
  return false;
}

// Once an output is found, what combines the anchor with tensors that come after that output, and
// from it, is its gradient; there is much of that, and nothing to find in it. A scale may come
// later without being computed from anything here.
bool Outputs::MeetsLaterTensor(int node) {
  int found = -1;
  for (const Output& output : all_) {
    const bool complete = output.subtract_mean || near_.statistics.moment == Moment::kMeanSquare ||
                          !IsTermOfMore(output.y);
    if (complete && found < 0) found = near_.view.order(output.y.node);
  }
  if (found < 0) return false;
  for (const TensorId& input : near_.view.inputs(node)) {
    if (visited_.count(input.node) > 0 || near_.view.order(input.node) <= found) continue;
    const auto [entry, is_new] = depends_.insert({input.node, false});
    if (is_new) {
      entry->second =
          near_.view.DependsOn(input.node, {near_.statistics.anchor.node}, kMaxConditioning);
    }
    if (entry->second) return true;
  }
  return false;
}

// A sum or product with an output that has its beta (its gamma) already adds nothing to it.
bool Outputs::OnlyUsesOutput(int node) {
  const bool sum = IsSum(near_.view.op(node));
  if (!sum && !IsProduct(near_.view.op(node))) return false;
  bool finished = false;
  for (const TensorId& input : near_.view.inputs(node)) {
    if (!FromAnchor(input)) continue;
    const Output* inner = At(input);
    if (inner == nullptr || finished) return false;
    finished = inner->beta.valid() || (!sum && inner->gamma.valid());
    if (!finished) return false;
  }
  return finished;
}

bool Outputs::VisitNode(int node) {
  const std::string& op = near_.view.op(node);
  const TensorId tensor{node, 0};
  const OpClass op_class = ClassOf(op);
  if (op_class == OpClass::kNorm) return tensor == near_.statistics.anchor && VisitNorm(node);
  if (op == "Tile" || op == "BroadcastTo") {  // of a statistic
    return FromAnchor(tensor) && At(near_.view.inputs(node)[0]) == nullptr;
  }
  if (op_class != OpClass::kElementwise && op_class != OpClass::kView) return false;
  if (op.size() > 4 && op.compare(op.size() - 4, 4, "Grad") == 0) return false;
  if (MeetsLaterTensor(node) || OnlyUsesOutput(node)) return false;
  if (near_.interpreter->Eval(tensor) == nullptr) return false;
  if (op_class == OpClass::kView) {
    // What waits for others is not taken in: a step's results wait for its updates.
    if (!near_.view.control_inputs(node).empty()) return false;
    const Output* inner = At(near_.view.inputs(node)[0]);
    if (inner == nullptr) return FromAnchor(tensor);
    if (!inner->clean()) return false;
    Output output = *inner;
    output.y = tensor;
    Add(output);
    return true;
  }
  if (IsSum(op)) return VisitSum(node);
  if (op == "BiasAdd") return VisitBias(node);
  if (IsProduct(op)) return VisitProduct(node);
  if (op == "DivNoNan") return VisitGuardedQuotient(node);
  return op == "Neg" || op == "Reciprocal" || op == "Inv" || op == "Pow";
}

Reason Outputs::Find() {
  std::set<std::pair<int, int>> queue;
  std::set<int> seen;
  const auto push_consumers = [&](int node) {
    for (const Consumer& c : near_.view.consumers(node)) {
      if (near_.scene.dependents.count(c.node) > 0 && seen.insert(c.node).second) {
        queue.insert({near_.view.order(c.node), c.node});
      }
    }
  };
  const int anchor = near_.statistics.anchor.node;
  if (ClassOf(near_.view.op(anchor)) == OpClass::kNorm) {
    queue.insert({near_.view.order(anchor), anchor});
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
    if (near_.interpreter->restart()) break;
  }
  return reason_;
}

}  // namespace nv_norms
