#include "plugin/recognizer/interpreter.h"

#include <algorithm>
#include <cmath>

#include "plugin/graph/constants.h"
#include "plugin/recognizer/clamp_ops.h"
#include "plugin/recognizer/ops.h"
#include "plugin/recognizer/reach.h"
#include "tensorflow/core/framework/numeric_types.h"

namespace nv_norms {
namespace {

constexpr int kMaxNumberDepth = 8;  // constants and counts are near

// SplitMix64 (Steele, Lea, Flood 2014): one step of a counter-based generator.
uint64_t Mix(uint64_t z) {
  z += 0x9e3779b97f4a7c15ULL;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

double Uniform(uint64_t bits) { return static_cast<double>(bits >> 11) / 9007199254740992.0; }

// Scale and mean of a root's values, by draw: ordinary; large and off centre; so small that
// nothing but epsilon is left of the variance, and a clamp would show; so large that epsilon is
// nothing.
constexpr double kScale[Interpreter::kNumDraws - 1] = {1.0, 3.0, 1e-6, 1e5};
constexpr double kMean[Interpreter::kNumDraws] = {0.3, -2.0, 0.0, 1e4, 0.0};

double Rounded(double value, tensorflow::DataType dtype) {
  const float wide = static_cast<float>(value);
  if (dtype == tensorflow::DT_HALF) return static_cast<float>(Eigen::half(wide));
  if (dtype == tensorflow::DT_BFLOAT16) return static_cast<float>(Eigen::bfloat16(wide));
  return dtype == tensorflow::DT_FLOAT ? wide : value;
}

// What arithmetic on constants gives in the graph's type. Half precision's reciprocals stay as they
// are (see Unrounded), unless nothing is left of them.
double Kept(double value, tensorflow::DataType dtype, bool sum) {
  const double rounded = Rounded(value, dtype);
  return !IsNarrow(dtype) || sum || rounded == 0 || std::isinf(rounded) ? rounded : value;
}

}  // namespace

Interpreter::Interpreter(const Scene& scene, Axes* axes, int draw)
    : scene_(scene), view_(*scene.view), axes_(axes), draw_(draw) {
  for (const TensorId& root : scene.roots) identified_.emplace(Identify(root, 0), root);
}

// Not 2: a layer norm of two numbers is 1 and -1, and its gradient 0.
int Interpreter::TinySize() const { return 3 + draw_ % 2; }

double Interpreter::RealSize(const Size& size) const {
  double real = static_cast<double>(size.coefficient());
  for (int64_t symbol : size.symbols()) {
    real *= 3.0 + 40.0 * Uniform(Mix(Mix(static_cast<uint64_t>(symbol)) + draw_));
  }
  return real;
}

Numbers Interpreter::Random(TensorId tensor, const Dim& atoms, bool is_root) const {
  Numbers numbers;
  numbers.atoms = atoms;
  std::sort(numbers.atoms.begin(), numbers.atoms.end());
  numbers.sizes.assign(numbers.atoms.size(), TinySize());
  int count = 1;
  for (int size : numbers.sizes) count *= size;
  const double scale = draw_ < kNumDraws - 1 ? kScale[draw_] : scene_.scale_of_last_draw;
  if (std::find(scene_.zeros.begin(), scene_.zeros.end(), tensor) != scene_.zeros.end()) {
    numbers.data.assign(count, 0.0);
    return numbers;
  }
  uint64_t state = Mix((static_cast<uint64_t>(tensor.node) << 20) ^ (tensor.port << 8) ^ draw_);
  for (int i = 0; i < count; ++i) {
    state = Mix(state);
    const double u = 2.0 * Uniform(state) - 1.0;
    // Operands stay away from zero: some are divided by.
    numbers.data.push_back(is_root ? kMean[draw_] + scale * u : u + std::copysign(0.5, u));
  }
  return numbers;
}

bool Interpreter::IsRoot(TensorId tensor) const {
  return std::find(scene_.roots.begin(), scene_.roots.end(), tensor) != scene_.roots.end();
}

const Value* Interpreter::Keep(TensorId tensor, Value value) {
  auto& kept = memo_[tensor];
  kept = std::move(value);
  return &*kept;
}

bool Interpreter::Done(Alignment alignment) {
  if (alignment == Alignment::kRestart) restart_ = true;
  return alignment == Alignment::kDone;
}

const Value* Interpreter::Eval(TensorId tensor) {
  if (restart_) return nullptr;
  auto found = memo_.find(tensor);
  if (found != memo_.end()) return found->second ? &*found->second : nullptr;
  // What comes back to itself ends here: a cycle, or a dy that the tensor of its shape depends on.
  memo_[tensor] = std::nullopt;
  if (GivesReference(view_.op(tensor.node))) return nullptr;
  std::optional<Value> value;
  if (IsRoot(tensor)) {
    value = Leaf(tensor, true);
  } else if (tensor == scene_.dy) {
    const Value* like = Eval(scene_.dy_like);
    if (like == nullptr) return nullptr;
    value = Value{like->dims, Random(tensor, like->Flat(), false)};
  } else if (tensor == scene_.before_dy) {
    const Value* dy = Eval(scene_.dy);
    if (dy == nullptr || dy->dims.size() != scene_.dy_order.size()) return nullptr;
    value = *dy;
    for (size_t i = 0; i < dy->dims.size(); ++i) value->dims[scene_.dy_order[i]] = dy->dims[i];
  } else {
    if (scene_.dependents.count(tensor.node) > 0) value = Node(tensor);
    if (!value && !restart_) value = Operand(tensor);
  }
  if (restart_) return nullptr;
  if (!value) return nullptr;
  return Keep(tensor, *std::move(value));
}

std::optional<Value> Interpreter::Node(TensorId tensor) {
  for (const TensorId& input : view_.inputs(tensor.node)) {
    if (RunsAfterAssignment(view_, tensor.node, input)) return std::nullopt;
  }
  switch (ClassOf(view_.op(tensor.node))) {
    case OpClass::kElementwise:
      return Elementwise(tensor.node);
    case OpClass::kReduction:
      return Reduction(tensor.node);
    case OpClass::kView:
      return View(tensor.node);
    case OpClass::kBroadcast:
      return Broadcast(tensor.node);
    case OpClass::kNorm:
      return Norm(tensor);
    case OpClass::kNormGrad:
      return NormGrad(tensor);
    case OpClass::kOpaque:
      return IsClampAtRoot(view_, tensor.node) ? Clamp(tensor.node) : std::nullopt;
  }
  return std::nullopt;
}

std::optional<std::vector<Size>> Interpreter::ShapeOf(TensorId tensor) {
  const TensorInfo& info = scene_.shapes->Get(tensor);
  if (!info.rank_known && !(IsRoot(tensor) && scene_.rank_if_unknown >= 0)) return std::nullopt;
  std::vector<Size> shape;
  const int rank = info.rank_known ? static_cast<int>(info.dims.size()) : scene_.rank_if_unknown;
  for (int i = 0; i < rank; ++i) {
    const int64_t dim = info.rank_known ? info.dims[i] : -1;
    if (dim >= 0) {
      shape.push_back(Size(dim));
    } else {
      shape.push_back(axes_->Resolve(Size::Unknown(dim == -1 ? axes_->SymbolFor(tensor, i) : dim)));
    }
  }
  return shape;
}

std::optional<Value> Interpreter::Leaf(TensorId tensor, bool is_root) {
  if (!IsFloat(scene_.shapes->Get(tensor).dtype)) return std::nullopt;
  const auto shape = ShapeOf(tensor);
  if (!shape) return std::nullopt;
  const TensorId root = scene_.roots[0];
  const auto of_root = ShapeOf(root);
  Value value;
  std::optional<bool> follows;  // whether it is computed from the root, which is long to find out
  for (size_t i = 0; i < shape->size(); ++i) {
    const Size& size = (*shape)[i];
    const bool own = of_root && std::find(of_root->begin(), of_root->end(), size) == of_root->end();
    if (own && size.symbols().size() == 1 && !axes_->Trusts(size.symbols()[0])) {
      if (!follows) follows = view_.DependsOn(tensor.node, {root.node});
      if (*follows) axes_->Trust(size.symbols()[0]);
    }
    value.dims.push_back(axes_->ForDimension(tensor, static_cast<int>(i), size, is_root));
  }
  const Dim atoms = value.Flat();
  if (atoms.size() > kMaxAtoms || HasAtomTwice(value.dims)) return std::nullopt;
  value.numbers = Random(tensor, atoms, is_root);
  if (!is_root) operands_.push_back(tensor);
  return value;
}

// What a tensor holds, in words: two tensors with the same words have the same value. A layer's
// variable is often read, cast and reshaped once for each use.
std::string Interpreter::Identify(TensorId tensor, int depth) const {
  const int node = tensor.node;
  const std::string& op = view_.op(node);
  constexpr int kMaxDepth = 6;
  if (depth < kMaxDepth && !view_.inputs(node).empty()) {
    const TensorId input = view_.inputs(node)[0];
    if (GivesReference(view_.op(input.node)) || RunsAfterAssignment(view_, node, input)) {
      return view_.name(tensor);
    }
    // A read that waits for nothing comes before all assignments.
    if (op == "ReadVariableOp" && view_.control_inputs(node).empty()) {
      return "read " + view_.name(input);
    }
    if (op == "Identity" || op == "Snapshot") return Identify(input, depth + 1);
    if (op == "Cast") {
      return "cast " + std::to_string(view_.GetType(node, "DstT")) + " " +
             Identify(input, depth + 1);
    }
    if (op == "Reshape" || op == "Transpose") {
      if (const auto shape = IntConstant(view_, view_.inputs(node)[1].node)) {
        std::string words = op;
        for (int64_t size : shape->values) words += " " + std::to_string(size);
        return words + " of " + Identify(input, depth + 1);
      }
    }
  }
  return view_.name(tensor);
}

std::optional<Value> Interpreter::Operand(TensorId tensor) {
  if (const auto number = Number(tensor, 0)) return Constant(tensor, number->value);
  const TensorId same = identified_.emplace(Identify(tensor, 0), tensor).first->second;
  if (same != tensor) {
    const Value* value = Eval(same);
    if (value == nullptr) return std::nullopt;
    return *value;
  }
  if (tensor == scene_.number) {
    operands_.push_back(tensor);
    return Value{{}, Random(tensor, {}, false)};
  }
  return Leaf(tensor, false);
}

std::vector<TensorId> Interpreter::OperandsOf(TensorId tensor,
                                              const std::vector<TensorId>& parameters,
                                              std::unordered_set<int>* nodes) const {
  std::vector<TensorId> found, queue = {tensor};
  std::unordered_set<TensorId, TensorIdHash> seen = {tensor};
  const std::unordered_set<TensorId, TensorIdHash> operands(operands_.begin(), operands_.end());
  const auto is_parameter = [&](const std::string& words) {
    return std::any_of(parameters.begin(), parameters.end(), [&](TensorId parameter) {
      return parameter.valid() && Identify(parameter, 0) == words;
    });
  };
  while (!queue.empty()) {
    TensorId at = queue.back();
    queue.pop_back();
    const std::string words = Identify(at, 0);
    const auto same = identified_.find(words);
    if (same != identified_.end()) at = same->second;
    if (numbers_.count(at) > 0 || IsRoot(at) || at == scene_.dy || at == scene_.before_dy) continue;
    if (operands.count(at) > 0 || scene_.dependents.count(at.node) == 0) {
      if (!is_parameter(words)) found.push_back(at);
      continue;
    }
    if (nodes != nullptr) nodes->insert(at.node);
    for (const TensorId& input : view_.inputs(at.node)) {
      // What was not evaluated is axes and shapes.
      if ((memo_.count(input) > 0 || operands.count(input) > 0) && seen.insert(input).second) {
        queue.push_back(input);
      }
    }
  }
  return found;
}

std::optional<Value> Interpreter::Constant(TensorId tensor, double number) {
  Value value;
  if (const auto shape = ShapeOf(tensor)) {
    for (size_t i = 0; i < shape->size(); ++i) {
      value.dims.push_back(axes_->ForDimension(tensor, static_cast<int>(i), (*shape)[i], false));
    }
  }
  value.numbers = Numbers::Scalar(number);
  constants_.push_back(number);
  numbers_.insert(tensor);
  operands_.push_back(tensor);
  return value;
}

// An operand of unknown rank next to others: it has the shape of the whole.
std::optional<Value> Interpreter::LikeOthers(TensorId tensor,
                                             const std::vector<const Dims*>& others) {
  const TensorInfo& info = scene_.shapes->Get(tensor);
  if (info.rank_known || !IsFloat(info.dtype) || GivesReference(view_.op(tensor.node))) {
    return std::nullopt;
  }
  Value value;
  const Alignment alignment = AlignForBroadcast(others, Certainty::kUnlessOne, axes_, &value.dims);
  if (!Done(alignment)) return std::nullopt;
  value.numbers = Random(tensor, value.Flat(), false);
  operands_.push_back(tensor);
  return value;
}

// Half precision holds no 1 / 15. What a graph multiplies with there in place of dividing by a
// count of elements is the reciprocal of a product of the root's sizes (or twice that), rounded.
double Interpreter::Unrounded(int node, double constant) {
  const tensorflow::DataType dtype = view_.GetType(node, "dtype");
  if (!IsNarrow(dtype)) return constant;
  const Value* root = Eval(scene_.roots[0]);
  if (root == nullptr) return constant;
  std::vector<double> counts = {1.0};
  for (Atom atom : root->Flat()) {
    const Size size = axes_->Resolve(axes_->size(atom));
    if (!size.known()) continue;
    for (size_t i = 0, end = counts.size(); i < end; ++i) {
      counts.push_back(counts[i] * static_cast<double>(size.coefficient()));
    }
  }
  for (double count : counts) {
    for (double factor : {1.0, 2.0}) {
      if (constant == Rounded(factor / Rounded(count, dtype), dtype)) return factor / count;
    }
  }
  return constant;
}

// A number that the graph knows: a constant whose elements are equal, a count computed from
// shapes, or arithmetic on such.
std::optional<Known> Interpreter::Number(TensorId tensor, int depth) {
  const int node = tensor.node;
  const std::string& op = view_.op(node);
  if (depth > kMaxNumberDepth) return std::nullopt;
  // Zeros or ones of nobody knows how many axes are more than a number.
  const bool shaped =
      op == "OnesLike" || op == "ZerosLike" || op == "Fill" || op == "BroadcastTo" || op == "Tile";
  if (shaped && !scene_.shapes->Get(tensor).rank_known) return std::nullopt;
  if (op == "Const") {
    const auto constant = FloatSplat(view_, node);
    if (!constant) return std::nullopt;
    return Known{Unrounded(node, *constant), true};
  }
  const auto input = [&](int i) { return Number(view_.inputs(node)[i], depth + 1); };
  if (op == "Cast") return CastNumber(node, depth);
  if (op == "Identity" || op == "Snapshot" || op == "Reshape" || op == "Reciprocal" ||
      op == "Sqrt" || op == "Rsqrt" || op == "Neg" || op == "ExpandDims" || op == "BroadcastTo" ||
      op == "Tile" || (op == "Enter" && view_.GetBool(node, "is_constant", false))) {
    const auto a = input(0);
    if (!a) return std::nullopt;
    const auto known = [&](double value) {
      return Known{a->constant ? Kept(value, view_.GetType(node, "T"), false) : value, a->constant};
    };
    if (op == "Reciprocal") return known(1.0 / a->value);
    if (op == "Sqrt") return known(std::sqrt(a->value));
    if (op == "Rsqrt") return known(1.0 / std::sqrt(a->value));
    if (op == "Neg") return Known{-a->value, a->constant};
    return a;
  }
  if (op == "Square" || op == "Abs" || op == "Exp" || op == "Pow") {
    return FunctionOfNumbers(node, depth);
  }
  if (op == "Fill") return input(1);
  if (op == "OnesLike") return Known{1.0, true};
  if (op == "ZerosLike") return Known{0.0, true};
  if (op == "Mul" || op == "RealDiv" || op == "AddV2" || op == "Sub" || op == "Maximum") {
    const auto a = input(0);
    if (!a) return std::nullopt;
    const auto b = input(1);
    if (!b) return std::nullopt;
    const bool constant = a->constant && b->constant;
    const auto known = [&](double value, bool sum) {
      return Known{constant ? Kept(value, view_.GetType(node, "T"), sum) : value, constant};
    };
    if (op == "Mul") return known(a->value * b->value, false);
    if (op == "RealDiv") return known(a->value / b->value, false);
    if (op == "AddV2") return known(a->value + b->value, true);
    if (op == "Sub") return known(a->value - b->value, true);
    // Which of them is larger hangs on the size, and the draws may not tell.
    if (constant) return Known{std::max(a->value, b->value), true};
  }
  return std::nullopt;
}

// Of constants, as a program may write its epsilon. Grappler folds them; nothing does before XLA.
std::optional<Known> Interpreter::FunctionOfNumbers(int node, int depth) {
  std::vector<double> values;
  for (const TensorId& input : view_.inputs(node)) {
    const auto number = Number(input, depth + 1);
    if (!number || !number->constant) return std::nullopt;
    values.push_back(number->value);
  }
  const std::string& op = view_.op(node);
  const double a = values[0];
  const double value = op == "Square" ? a * a
                       : op == "Abs"  ? std::fabs(a)
                       : op == "Exp"  ? std::exp(a)
                                      : std::pow(a, values[1]);
  const double kept = Rounded(value, view_.GetType(node, "T"));
  return std::isfinite(kept) ? std::make_optional(Known{kept, true}) : std::nullopt;
}

std::optional<Known> Interpreter::CastNumber(int node, int depth) {
  const TensorId input = view_.inputs(node)[0];
  const tensorflow::DataType from = view_.GetType(node, "SrcT");
  const tensorflow::DataType to = view_.GetType(node, "DstT");
  if (!IsFloat(to)) return std::nullopt;
  if (IsInt(from)) {
    const auto sizes = Sizes(input);
    if (!sizes || sizes->values.size() != 1) return std::nullopt;
    const Size size = axes_->Resolve(sizes->values[0]);
    return Known{RealSize(size), size.known()};
  }
  if (!IsFloat(from)) return std::nullopt;
  auto number = Number(input, depth + 1);
  // The narrower type does not hold every number, and the wider one does not bring it back.
  const bool widens = from != to && (IsNarrow(from) || to == tensorflow::DT_DOUBLE);
  if (number && number->constant && !widens) number->value = Kept(number->value, to, false);
  if (!number || !widens) return number;
  if (!number->constant) return std::nullopt;
  return Known{Rounded(number->value, from), true};
}

}  // namespace nv_norms
