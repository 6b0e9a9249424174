#include "plugin/activations/silu.h"

#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <string>

#include "plugin/graph/constants.h"
#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/framework/tensor.pb.h"

namespace nv_norms {
namespace {

constexpr size_t kMostFunctions = 32;
constexpr double kTolerance = 1e-12;

// Where functions are compared. Those that the ops below can make of so few nodes and are equal at
// all of these are equal.
constexpr std::array<double, 16> kPoints = {-9.1, -6.3, -4.7, -3.2, -2.4, -1.7, -1.1, -0.4,
                                            0.0,  0.3,  0.9,  1.6,  2.2,  3.7,  5.3,  8.9};
using Values = std::array<double, kPoints.size()>;

double Sigmoid(double t) { return 1 / (1 + std::exp(-t)); }
double Silu(double t) { return t * Sigmoid(t); }
double SiluDerivative(double t) { return Sigmoid(t) * (1 + t * (1 - Sigmoid(t))); }

bool Is(const Values& values, double (*function)(double)) {
  for (size_t i = 0; i < kPoints.size(); ++i) {
    const double expected = function(kPoints[i]);
    if (!(std::fabs(values[i] - expected) <= kTolerance * (1 + std::fabs(expected)))) return false;
  }
  return true;
}

std::optional<Values> Apply(const std::string& op, const std::vector<Values>& inputs) {
  const auto each = [&](const auto& function) {
    Values out;
    for (size_t i = 0; i < out.size(); ++i) out[i] = function(i);
    return out;
  };
  if (inputs.size() == 1) {
    const Values& a = inputs[0];
    if (op == "Sigmoid") return each([&](size_t i) { return Sigmoid(a[i]); });
    if (op == "Neg") return each([&](size_t i) { return -a[i]; });
    if (op == "Square") return each([&](size_t i) { return a[i] * a[i]; });
  } else if (inputs.size() == 2) {
    const Values& a = inputs[0];
    const Values& b = inputs[1];
    if (op == "Mul") return each([&](size_t i) { return a[i] * b[i]; });
    if (op == "Sub") return each([&](size_t i) { return a[i] - b[i]; });
    if (op == "Add" || op == "AddV2") return each([&](size_t i) { return a[i] + b[i]; });
  }
  return std::nullopt;
}

// A constant of no axes, beside which a tensor keeps its shape; behind a Cast one that every type
// has.
std::optional<double> Scalar(const GraphView& view, TensorId tensor) {
  const bool cast = view.op(tensor.node) == "Cast";
  const int node = cast ? view.inputs(tensor.node)[0].node : tensor.node;
  const auto value = FloatSplat(view, node);
  if (!value || (cast && *value != 0 && std::fabs(*value) != 1)) return std::nullopt;
  const auto& attr = view.def(node).attr().at("value");
  if (attr.tensor().tensor_shape().dim_size() != 0) return std::nullopt;
  return value;
}

class Follower {
 public:
  Follower(const GraphView& view, const std::set<TensorId>& y,
           const std::function<bool(int)>& usable)
      : view_(view), usable_(usable) {
    for (const TensorId& tensor : y) known_[tensor] = kPoints;
  }

  SiluNodes Run() {
    for (size_t before = 0; before != known_.size() + seen_.size();) {
      before = known_.size() + seen_.size();
      const std::map<TensorId, Values> known = known_;
      for (const auto& entry : known) {
        for (const Consumer& c : view_.consumers(entry.first)) Look(c.node);
      }
    }
    return found_;
  }

 private:
  void Look(int node) {
    if (seen_.count(node) > 0 || seen_.size() == kMostFunctions || !view_.live(node) ||
        !usable_(node)) {
      return;
    }
    std::vector<Values> inputs;
    for (const TensorId& input : view_.inputs(node)) {
      const auto known = known_.find(input);
      if (known != known_.end()) {
        inputs.push_back(known->second);
      } else if (const auto scalar = Scalar(view_, input)) {
        inputs.emplace_back().fill(*scalar);
      } else {
        return;  // or not yet known
      }
    }
    const auto values = Apply(view_.op(node), inputs);
    if (!values) return;
    seen_.insert(node);
    found_.functions.push_back(node);
    if (Is(*values, Silu)) {
      found_.several = found_.silu >= 0;
      found_.silu = node;
    } else if (Is(*values, SiluDerivative)) {
      found_.derivatives.push_back(node);
    } else {
      known_[{node, 0}] = *values;
    }
  }

  const GraphView& view_;
  const std::function<bool(int)>& usable_;
  std::map<TensorId, Values> known_;  // y and functions of it
  std::set<int> seen_;
  SiluNodes found_;
};

}  // namespace

SiluNodes FindSilu(const GraphView& view, const std::set<TensorId>& y,
                   const std::function<bool(int)>& usable) {
  return Follower(view, y, usable).Run();
}

}  // namespace nv_norms
