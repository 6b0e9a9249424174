#ifndef NV_NORMS_PLUGIN_RECOGNIZER_INTERPRETER_H_
#define NV_NORMS_PLUGIN_RECOGNIZER_INTERPRETER_H_

#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "plugin/graph/shapes.h"
#include "plugin/graph/view.h"
#include "plugin/recognizer/alignment.h"
#include "plugin/recognizer/axes.h"
#include "plugin/recognizer/size_tensor.h"
#include "plugin/recognizer/value.h"

namespace nv_norms {

// A neighbourhood to evaluate: the tensor that gets random values (x), the rank to give it if it
// has none, the nodes that depend on it and are to be followed, and, for gradients, dy: another
// tensor with random values, which has the shape of `dy_like`, x or a view of it.
struct Scene {
  const GraphView* view;
  const Shapes* shapes;
  std::vector<TensorId> roots;
  int rank_if_unknown = -1;
  std::unordered_set<int> dependents;
  double scale_of_last_draw = 1e-3;
  TensorId dy, dy_like;
  // If valid, dy is this tensor with its dimensions in `dy_order`.
  TensorId before_dy;
  std::vector<int64_t> dy_order;
  std::vector<TensorId> zeros;  // operands that are 0; all others never are
  TensorId number;              // an operand that is one number here, whatever its shape
};

// A number that the graph knows.
struct Known {
  double value;
  bool constant;  // not made of unknown sizes
};

// Evaluates tensors on a tiny model with random values, in float64: "random interpretation".
// Axes have tiny sizes; a Sum counts with the real ones, so that the constants 1 / N of the graph
// cancel as they do in reality. What is not a dependent of a root, or is not understood, is an
// operand with random values of its own. An identity that holds for all values holds for the real
// one; but operands are not 0 here, as they are divided by, so where one cancels it is to be tried
// with 0, too (OperandsOf, Scene::zeros).
class Interpreter {
 public:
  // The draws differ in values, in scale (from 1e-6 to 1e5; the scene's in the last one), in the
  // tiny sizes and in what is taken for the unknown ones.
  static constexpr int kNumDraws = 5;
  static constexpr size_t kMaxAtoms = 8;  // of a tensor: tiny arrays stay below 4^8 numbers
  // Of a draw, as its axes turn out to be finer.
  static constexpr int kMaxRestarts = 40;

  Interpreter(const Scene& scene, Axes* axes, int draw);

  // The value of a tensor; nullptr if it cannot be told, or if restart() has become true: then
  // the axes are finer now, and a new interpreter has to begin again.
  const Value* Eval(TensorId tensor);
  bool restart() const { return restart_; }

  // Operands met so far, in the order of their meeting. Constants are among them.
  const std::vector<TensorId>& operands() const { return operands_; }
  // The operands that a tensor's value came from, besides numbers and these parameters, of which
  // some may be absent: those that cancel in all draws, too. The nodes between go to `nodes`.
  std::vector<TensorId> OperandsOf(TensorId tensor, const std::vector<TensorId>& parameters,
                                   std::unordered_set<int>* nodes = nullptr) const;
  // Scalar constants met so far.
  const std::vector<double>& constants() const { return constants_; }
  // The operands that are numbers: constants and counts.
  const std::unordered_set<TensorId, TensorIdHash>& numbers() const { return numbers_; }

  MaybeSizes Sizes(TensorId tensor);        // an integer tensor, followed symbolically
  double RealSize(const Size& size) const;  // an unknown has one value in each draw

 private:
  bool IsRoot(TensorId tensor) const;
  const Value* Keep(TensorId tensor, Value value);
  std::optional<Value> Node(TensorId tensor);
  std::optional<Value> Elementwise(int node);
  // Whether max(a, b) is a for every x: b is a constant that is not positive, and a never negative;
  // or min(a, b): b is infinity.
  bool IsIdleClamp(int node);
  bool IsNeverPositive(TensorId tensor);
  bool IsInfinite(TensorId tensor);
  // relu(v) of a v that is never negative, and what is the gradient of v there, or in an idle
  // clamp.
  std::optional<Value> Clamp(int node);
  // `doubtful`: tensors of which it was not seen, from this depth on.
  using Doubtful = std::unordered_map<TensorId, int, TensorIdHash>;
  bool IsNeverNegative(TensorId tensor, int depth, Doubtful* doubtful);
  bool IsMoment(TensorId tensor);
  std::optional<Value> Reduction(int node);
  std::optional<std::vector<int>> ReducedAxes(int node, int rank);
  bool KnowsChannels(int node) const;
  std::optional<Value> View(int node);
  std::optional<Value> Broadcast(int node);
  std::optional<Value> Slice(int node, const Value& input);
  std::optional<Value> SliceGrad(int node);
  std::optional<Value> Norm(TensorId tensor);
  bool ReadsMomentsOfItsX(int gradient);
  std::optional<Value> NormGrad(TensorId tensor);
  std::optional<Value> Leaf(TensorId tensor, bool is_root);
  std::optional<Value> Operand(TensorId tensor);
  std::string Identify(TensorId tensor, int depth) const;
  std::optional<Value> LikeOthers(TensorId tensor, const std::vector<const Dims*>& others);
  std::optional<Value> Constant(TensorId tensor, double number);
  std::optional<Known> Number(TensorId tensor, int depth);
  std::optional<Known> CastNumber(int node, int depth);
  std::optional<Known> FunctionOfNumbers(int node, int depth);
  double Unrounded(int node, double constant);
  std::optional<std::vector<Size>> ShapeOf(TensorId tensor);
  MaybeSizes SizesOf(TensorId tensor, int depth);
  MaybeSizes SizesOfNode(TensorId tensor, int depth);
  MaybeSizes SizesFrom(TensorId tensor, const std::vector<SizeTensor>& inputs);
  MaybeSizes ShapeFollowed(TensorId tensor);
  std::optional<std::vector<int>> AxisList(TensorId tensor, int rank);
  bool Done(Alignment alignment);
  Numbers Random(TensorId tensor, const Dim& atoms, bool is_root) const;
  int TinySize() const;

  const Scene& scene_;
  const GraphView& view_;
  Axes* axes_;
  int draw_;
  bool restart_ = false;
  std::unordered_map<TensorId, std::optional<Value>, TensorIdHash> memo_;
  std::vector<TensorId> operands_;
  std::unordered_map<std::string, TensorId> identified_;
  std::vector<double> constants_;
  std::unordered_set<TensorId, TensorIdHash> numbers_;
};

// Which axes an op of class kNorm reduces; no value if the op is not what it looks like (a batch
// norm in inference, an activation inside).
std::optional<std::vector<bool>> NormAxes(const GraphView& view, int node, int rank);
// By its data_format, channels last without one.
bool ChannelsFirst(const GraphView& view, int node);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_RECOGNIZER_INTERPRETER_H_
