#include "plugin/recognizer/statistics.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <optional>

#include "plugin/graph/constants.h"
#include "plugin/recognizer/clamp_ops.h"
#include "plugin/recognizer/interpreter.h"
#include "plugin/recognizer/moments.h"
#include "plugin/recognizer/ops.h"
#include "plugin/recognizer/reach.h"

namespace nv_norms {
namespace {

constexpr int kConeDepth = 16;
constexpr int kConeNodes = 160;
// From the input of a Mean or Sum out to x: casts, reshapes, transposes, weights of ones, squares.
constexpr int kStepsToX = 7;
// A root is tested before errors have added up.
constexpr double kShareOfTolerance = 0.3;

struct Cone {
  std::vector<int> nodes;  // by ascending order
  std::vector<int> reductions;
};

// What lies behind the anchor.
Cone ConeBehind(const GraphView& view, int anchor) {
  Cone cone;
  std::map<int, int> depth = {{anchor, 0}};
  std::deque<int> queue = {anchor};
  while (!queue.empty() && static_cast<int>(depth.size()) < kConeNodes) {
    const int node = queue.front();
    queue.pop_front();
    if (!IsFollowed(view, node) || depth[node] >= kConeDepth) continue;
    for (const TensorId& input : view.inputs(node)) {
      if (depth.emplace(input.node, depth[node] + 1).second) queue.push_back(input.node);
    }
  }
  for (const auto& [node, d] : depth) {
    cone.nodes.push_back(node);
    if (node != anchor && ClassOf(view.op(node)) == OpClass::kReduction) {
      cone.reductions.push_back(node);
    }
  }
  std::sort(cone.nodes.begin(), cone.nodes.end(),
            [&](int a, int b) { return view.order(a) < view.order(b); });
  std::sort(cone.reductions.begin(), cone.reductions.end(),
            [&](int a, int b) { return view.order(a) < view.order(b); });
  return cone;
}

// Whether x may move from the output of this node to its input: not past a loss of precision, not
// past a control edge (in a branch that is not taken it keeps the node from running), and not out
// of float64, in which the statistics would then be missing.
bool MayLookBehind(const GraphView& view, int node) {
  if (!view.control_inputs(node).empty()) return false;
  const std::string& op = view.op(node);
  if (op == "Cast") {
    return view.GetType(node, "SrcT") == view.GetType(node, "DstT") || IsWideningCast(view, node);
  }
  // Behind a sum of several tensors lies none that has the sum's moments.
  if (op == "BiasAdd") return false;
  if (op == "AddV2" || op == "Add" || op == "AddN") {
    return std::any_of(view.inputs(node).begin(), view.inputs(node).end(),
                       [&](TensorId input) { return view.op(input.node) == "Const"; });
  }
  // Nor past a clamp, which a draw may not have met.
  if (op == "Maximum" || op == "Minimum") return false;
  const OpClass op_class = ClassOf(op);
  return op_class == OpClass::kView || op_class == OpClass::kElementwise;
}

// The tensors that reductions read and what lies up to a few steps behind these, nearest first.
std::vector<TensorId> Candidates(const GraphView& view, const Shapes& shapes,
                                 const std::vector<TensorId>& reduced) {
  std::vector<TensorId> found;
  std::deque<std::pair<TensorId, int>> queue;
  for (const TensorId& tensor : reduced) queue.push_back({tensor, 0});
  while (!queue.empty()) {
    const auto [tensor, steps] = queue.front();
    queue.pop_front();
    if (std::find(found.begin(), found.end(), tensor) != found.end()) continue;
    if (!IsFloat(shapes.Get(tensor).dtype) || view.op(tensor.node) == "Const") continue;
    found.push_back(tensor);
    if (steps == kStepsToX || !MayLookBehind(view, tensor.node)) continue;
    for (const TensorId& input : view.inputs(tensor.node)) queue.push_back({input, steps + 1});
  }
  return found;
}

// The largest rank that anything near x has: what x with unknown rank is taken to have.
int RankNearby(const GraphView& view, const Shapes& shapes, TensorId x,
               const std::unordered_set<int>& dependents) {
  if (shapes.Get(x).rank_known) return -1;
  int rank = 2;  // a batch and an axis to reduce
  for (int node : dependents) {
    // BiasAddGrad names no axes.
    if (ClassOf(view.op(node)) == OpClass::kReduction && view.inputs(node).size() > 1) {
      const auto axes = IntConstant(view, view.inputs(node)[1].node);
      if (!axes) continue;
      for (int64_t axis : axes->values) {
        rank = std::max(rank, static_cast<int>(axis < 0 ? 1 - axis : axis + 1));
      }
    }
    if (ClassOf(view.op(node)) != OpClass::kElementwise) continue;
    for (const TensorId& input : view.inputs(node)) {
      const TensorInfo& info = shapes.Get(input);
      if (info.rank_known) rank = std::max(rank, static_cast<int>(info.dims.size()));
    }
  }
  return rank;
}

// The constant of the graph that an estimate stands for: the graph's own digits are better.
double Snap(double estimate, double scale, double tolerance, const std::vector<double>& constants) {
  for (double constant : constants) {
    if (std::isinf(constant)) continue;  // a clamp's
    if (std::fabs(constant - estimate) <= tolerance * std::fabs(constant) + 1e-12 * scale) {
      return constant;
    }
  }
  return std::fabs(estimate) <= 1e-12 * scale ? 0.0 : estimate;
}

struct Test {
  bool passed = false;
  double slope = 1;
  double epsilon = 0;
};

// 1 / r^2 = slope * (moment(x) + epsilon) in one draw (r^2 where the anchor is the root, not its
// inverse), with the same slope and epsilon everywhere, or the test fails. The slope is 1 in most
// graphs, and the number of elements where the graph takes a sum instead of a mean. 0: find it.
Test Epsilon(const Numbers& x, const Numbers& root, bool inverse, const Dim& reduced, Moment moment,
             double slope, double tolerance, const std::vector<double>& constants) {
  Test test;
  const Numbers mean = MeanOver(x, reduced);
  const Numbers squares = moment == Moment::kMeanSquare
                              ? Map(x, [](double a) { return a * a; })
                              : Zip(x, mean, [](double a, double b) { return (a - b) * (a - b); });
  const Numbers denominator = MeanOver(squares, reduced);
  Numbers square = Map(root, [&](double r) { return inverse ? 1.0 / (r * r) : r * r; });
  if (slope == 0) {
    slope = 1;
    const auto& d = denominator.data;
    const size_t low = std::min_element(d.begin(), d.end()) - d.begin();
    const size_t high = std::max_element(d.begin(), d.end()) - d.begin();
    if (square.data.size() == d.size() && d[high] > d[low]) {
      slope = (square.data[high] - square.data[low]) / (d[high] - d[low]);
      if (std::fabs(slope - 1) < 3 * tolerance) slope = 1;
    }
  }
  if (!(slope > 0) || !std::isfinite(slope)) return test;
  test.slope = slope;
  square = Map(square, [&](double q) { return q / slope; });
  const Numbers rest = Zip(square, denominator, [](double a, double b) { return a - b; });
  const double scale = MaxAbs(denominator);
  const auto [low, high] = std::minmax_element(rest.data.begin(), rest.data.end());
  const double size = std::max(scale, std::fabs(*low));
  test.passed = std::isfinite(*low) && std::isfinite(*high) &&
                *high - *low <= kShareOfTolerance * tolerance * size;
  if (test.passed) test.epsilon = Snap(0.5 * (*low + *high), scale, tolerance, constants);
  return test;
}

// Whether x is something minus its own mean: its mean square is meant as a variance.
bool IsCentred(const GraphView& view, TensorId x) {
  const auto behind_views = [&](TensorId tensor) {
    while (ClassOf(view.op(tensor.node)) == OpClass::kView) {
      tensor = view.inputs(tensor.node)[0];
    }
    return tensor;
  };
  const int node = behind_views(x).node;
  if (view.op(node) != "Sub") return false;
  const TensorId mean = behind_views(view.inputs(node)[1]);
  return view.op(mean.node) == "Mean" &&
         behind_views(view.inputs(mean.node)[0]) == behind_views(view.inputs(node)[0]);
}

// Where a StopGradient reads x, it is tried before x: an op that reads x has another gradient.
void PutStoppedFirst(const GraphView& view, std::vector<Statistics>* found) {
  std::stable_partition(found->begin(), found->end(), [&](const Statistics& each) {
    return view.op(each.x.node) == "StopGradient";
  });
}

// Whether a tensor goes on beside a norm of it: a norm and its gradient read it only in what leads
// to the root, and with other tensors in products and differences.
bool GoesOnBeside(const GraphView& view, TensorId x, const std::vector<int>& behind_root) {
  const auto consumers = view.consumers(x);
  return std::any_of(consumers.begin(), consumers.end(), [&](const Consumer& c) {
    if (std::count(behind_root.begin(), behind_root.end(), c.node) > 0) return false;
    const std::string& op = view.op(c.node);
    if (!IsProduct(op) && op != "Sub") return !ReadsShape(op);
    return view.op(view.inputs(c.node)[1 - c.slot].node) == "Const";
  });
}

// Where a number times x, or x and a number, goes on beside its norm, too (embeddings times the
// root of their size, in a transformer's first block), that is tried before x: its gradient is a
// sum, and the number comes behind it.
void PutSkipsFirst(const GraphView& view, const std::vector<int>& behind_root,
                   std::vector<Statistics>* found) {
  if (found->empty()) return;
  const Moment moment = found->front().moment;
  std::stable_partition(found->begin(), found->end(), [&](const Statistics& each) {
    const std::string& op = view.op(each.x.node);
    return each.moment == moment && (IsProduct(op) || IsSum(op)) &&
           GoesOnBeside(view, each.x, behind_root);
  });
}

enum class Outcome { kFailed, kPassed, kEpsilonVaries };

// Without an epsilon the inverse root of x = 0 is infinite; where the graph says otherwise, it
// holds a safeguard that the draws were too large to meet.
bool VanishesWithX(Scene scene, TensorId anchor, bool inverse, Axes* axes) {
  scene.scale_of_last_draw = 0;
  Interpreter interpreter(scene, axes, Interpreter::kNumDraws - 1);
  const Value* root = interpreter.Eval(anchor);
  if (root == nullptr) return false;
  return std::all_of(root->numbers.data.begin(), root->numbers.data.end(),
                     [&](double r) { return inverse ? !std::isfinite(r) : r == 0.0; });
}

// Ordinary draws tell the slope, the one with values near zero tells epsilon, and the last is
// one in which the moment is about as large as epsilon, so that max(moment, epsilon) shows. (The
// outputs are compared in all draws.)
Outcome TestCandidate(Scene* scene, TensorId anchor, bool inverse, Axes* axes, Moment moment,
                      double tolerance, double* slope, double* epsilon) {
  constexpr int kNearZero = 2;
  *slope = 0;
  double count_of_first_draw = 0;
  // One number does not tell a slope from an epsilon: it may be a vector's length, as optimizers
  // take that of weights, and nobody's norm.
  Outcome varies = Outcome::kFailed;
  for (int draw : {0, kNearZero, 1, Interpreter::kNumDraws - 1}) {
    std::optional<Test> test;
    double scale = 0;
    for (int attempt = 0; attempt < Interpreter::kMaxRestarts && !test; ++attempt) {
      Interpreter interpreter(*scene, axes, draw);
      const Value* root = interpreter.Eval(anchor);
      const Value* x = interpreter.restart() ? nullptr : interpreter.Eval(scene->roots[0]);
      if (interpreter.restart()) continue;
      if (root == nullptr || x == nullptr) return Outcome::kFailed;
      const auto reduced = ReducedBetween(x->numbers, root->numbers);
      if (!reduced) return Outcome::kFailed;
      const double count = interpreter.RealSize(axes->size(*reduced));
      if (draw == 0) count_of_first_draw = count;
      const bool is_count = std::fabs(*slope - count_of_first_draw) <= 3 * tolerance * *slope;
      const double ratio = is_count ? count / count_of_first_draw : 1.0;
      const bool is_one_number = root->numbers.data.size() == 1;
      varies = is_one_number ? Outcome::kFailed : Outcome::kEpsilonVaries;
      test = Epsilon(x->numbers, root->numbers, inverse, *reduced, moment, *slope * ratio,
                     tolerance, interpreter.constants());
      scale = MaxAbs(Map(x->numbers, [](double a) { return a * a; }));
    }
    if (!test || !test->passed) return Outcome::kFailed;
    if (draw == 0) {
      *slope = test->slope;
    } else if (draw == kNearZero) {
      *epsilon = test->epsilon;
      if (*epsilon > 0) scene->scale_of_last_draw = std::sqrt(*epsilon);
    } else if (std::fabs(test->epsilon - *epsilon) > 3 * tolerance * (scale + *epsilon)) {
      return varies;
    }
  }
  if (*epsilon == 0 && !VanishesWithX(*scene, anchor, inverse, axes)) return Outcome::kFailed;
  return *epsilon >= 0 ? Outcome::kPassed : varies;
}

}  // namespace

bool MayBeAnchor(const std::string& op) {
  return op == "Rsqrt" || op == "Sqrt" || op == "Pow" || op == "_UnaryOpsComposition" ||
         ClassOf(op) == OpClass::kNorm;
}

bool IsAnchor(const GraphView& view, int node) {
  const std::string& op = view.op(node);
  if (!MayBeAnchor(op)) return false;
  if (op == "Pow") {
    if (view.inputs(node).size() != 2) return false;
    const auto exponent = FloatSplat(view, view.inputs(node)[1].node);
    if (!exponent || std::fabs(*exponent) != 0.5) return false;
  }
  if (ClassOf(op) != OpClass::kNorm) {
    return !ConeBehind(view, node).reductions.empty();
  }
  // TensorFlow's remapper makes these out of instance norms, and of some graphs that are none,
  // which nothing tells any more. On a CPU they run as they are, though ours takes less time: 76 us
  // for 189 us at (2, 32, 32, 16), 3.64 ms for 3.81 ms at (2, 16, 64, 64, 32), on two cores. On a
  // GPU they have no kernel.
  if (op == "_MklFusedInstanceNorm" && view.def(node).device().find("GPU") == std::string::npos) {
    return false;
  }
  return view.GetBool(node, "is_training", true);
}

namespace {

// TensorFlow's remapper makes _MklLayerNorm of tf.nn.batch_normalization over a row's moments, too,
// and gives it 0.001 whatever the graph's epsilon was. Only the name, which is the replaced node's,
// tells it from the norms of tf_keras, whose epsilon is kept. Where that op runs, ours does the
// same; where it has no kernel, a silent error must not take the place of a loud one.
bool EpsilonIsLost(const GraphView& view, int node) {
  const std::string& name = view.def(node).name();
  const size_t scope = name.rfind("batchnorm");
  const bool runs = view.def(node).device().find("GPU") == std::string::npos &&
                    view.GetType(node, "T") != tensorflow::DT_DOUBLE;
  return view.op(node) == "_MklLayerNorm" && !runs && scope != std::string::npos &&
         name.find("/add_1", scope) != std::string::npos &&
         view.GetFloat(node, "epsilon", 0.001f) == 0.001f;
}

}  // namespace

std::vector<Statistics> FindStatistics(const GraphView& view, const Shapes& shapes, int anchor,
                                       Reason* reason) {
  *reason = Reason::kNotANormalization;
  std::vector<Statistics> found;
  const TensorId output{anchor, 0};
  if (ClassOf(view.op(anchor)) == OpClass::kNorm) {
    if (EpsilonIsLost(view, anchor)) {
      *reason = Reason::kEpsilonLost;
      return found;
    }
    std::vector<TensorId> candidates = Candidates(view, shapes, {view.inputs(anchor)[0]});
    // The op reads x itself, in another shape or type.
    for (auto it = candidates.rbegin(); it != candidates.rend(); ++it) {
      int rank = RankNearby(view, shapes, *it, Dependents(view, *it, 40));
      found.push_back({output, *it, Moment::kVariance,
                       static_cast<double>(view.GetFloat(anchor, "epsilon", 0.001f)), rank, 1.0});
    }
    // A FusedBatchNorm is a batch norm's, mostly.
    if (!found.empty() && view.op(anchor).rfind("_Mkl", 0) == 0) *reason = Reason::kNoOutput;
    return found;
  }
  const Cone cone = ConeBehind(view, anchor);
  if (cone.reductions.empty()) return found;
  std::vector<TensorId> reduced;
  for (int node : cone.reductions) reduced.push_back(view.inputs(node)[0]);
  const std::vector<TensorId> candidates = Candidates(view, shapes, reduced);
  bool epsilon_varies = false, centred = false;
  for (const Moment moment : {Moment::kVariance, Moment::kMeanSquare}) {
    for (auto it = candidates.rbegin(); it != candidates.rend(); ++it) {
      Scene scene{&view, &shapes, {*it}, -1, {}};
      for (int node : cone.nodes) {
        // Moments of a rounded x are not those of x, where its mean is large.
        if (IsRoundingOf(view, node, shapes.Get(*it).dtype)) continue;
        for (const TensorId& input : view.inputs(node)) {
          if (input == *it || scene.dependents.count(input.node) > 0) {
            scene.dependents.insert(node);
            break;
          }
        }
      }
      if (scene.dependents.count(anchor) == 0) continue;
      if (scene.dependents.count(it->node) > 0) continue;
      scene.rank_if_unknown = RankNearby(view, shapes, *it, Dependents(view, *it, 40));
      Axes axes;
      Statistics statistics{output, *it, moment, 0.0, scene.rank_if_unknown, 1.0};
      if (shapes.Get(*it).dtype == tensorflow::DT_DOUBLE) {
        statistics.tolerance = kFormulaToleranceOfFloat64;
      }
      for (bool inverse : {true, false}) {
        const Outcome outcome =
            TestCandidate(&scene, output, inverse, &axes, moment, statistics.tolerance,
                          &statistics.slope, &statistics.epsilon);
        if (outcome == Outcome::kEpsilonVaries) epsilon_varies = true;
        if (outcome != Outcome::kPassed) continue;
        if (moment == Moment::kMeanSquare && IsCentred(view, *it)) {
          centred = true;  // over other axes, or it would be a variance
        } else {
          found.push_back(statistics);
        }
        break;
      }
    }
  }
  PutSkipsFirst(view, cone.nodes, &found);
  PutStoppedFirst(view, &found);
  if (!found.empty()) {
    *reason = Reason::kNoOutput;
  } else if (epsilon_varies) {
    *reason = Reason::kEpsilonNotConstant;
  } else if (centred) {
    *reason = Reason::kMomentsDiffer;
  }
  return found;
}

}  // namespace nv_norms
