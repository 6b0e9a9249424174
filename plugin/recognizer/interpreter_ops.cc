// What elementwise ops and reductions mean to the interpreter.
#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "plugin/recognizer/interpreter.h"
#include "plugin/recognizer/ops.h"

namespace nv_norms {
namespace {

using Unary = double (*)(double);
using Binary = double (*)(double, double);

Unary UnaryOf(const std::string& op) {
  static const auto* const kOps = new std::map<std::string, Unary>{
      {"Neg", [](double a) { return -a; }},
      {"Abs", [](double a) { return std::fabs(a); }},
      {"Square", [](double a) { return a * a; }},
      {"Sqrt", [](double a) { return std::sqrt(a); }},
      {"Rsqrt", [](double a) { return 1.0 / std::sqrt(a); }},
      {"Reciprocal", [](double a) { return 1.0 / a; }},
      {"Inv", [](double a) { return 1.0 / a; }},
      {"Exp", [](double a) { return std::exp(a); }},
      {"Log", [](double a) { return std::log(a); }},
  };
  auto found = kOps->find(op);
  return found == kOps->end() ? nullptr : found->second;
}

// MulNoNan and Xdivy are none of these: they give 0 where a NaN or an infinity would show.
Binary BinaryOf(const std::string& op) {
  static const auto* const kOps = new std::map<std::string, Binary>{
      {"Mul", [](double a, double b) { return a * b; }},
      {"Add", [](double a, double b) { return a + b; }},
      {"AddV2", [](double a, double b) { return a + b; }},
      {"AddN", [](double a, double b) { return a + b; }},
      {"Sub", [](double a, double b) { return a - b; }},
      {"RealDiv", [](double a, double b) { return a / b; }},
      {"Div", [](double a, double b) { return a / b; }},
      {"DivNoNan", [](double a, double b) { return b == 0.0 ? 0.0 : a / b; }},
      {"SquaredDifference", [](double a, double b) { return (a - b) * (a - b); }},
      {"Maximum", [](double a, double b) { return std::max(a, b); }},
      {"Minimum", [](double a, double b) { return std::min(a, b); }},
      {"Pow", [](double a, double b) { return std::pow(a, b); }},
      {"RsqrtGrad", [](double y, double dy) { return -0.5 * dy * y * y * y; }},
      {"SqrtGrad", [](double y, double dy) { return 0.5 * dy / y; }},
      {"ReciprocalGrad", [](double y, double dy) { return -dy * y * y; }},
      {"InvGrad", [](double y, double dy) { return -dy * y * y; }},
  };
  auto found = kOps->find(op);
  return found == kOps->end() ? nullptr : found->second;
}

}  // namespace

std::optional<Value> Interpreter::Elementwise(int node) {
  const std::string& op = view_.op(node);
  std::vector<const Value*> values;
  std::vector<const Dims*> dims;
  std::vector<size_t> unknown;
  std::vector<Value> made(view_.inputs(node).size());
  for (size_t i = 0; i < view_.inputs(node).size(); ++i) {
    values.push_back(Eval(view_.inputs(node)[i]));
    if (restart_) return std::nullopt;
    if (values.back() == nullptr) {
      unknown.push_back(i);
    } else {
      dims.push_back(&values.back()->dims);
    }
  }
  if (values.empty() || unknown.size() == values.size()) return std::nullopt;
  for (size_t i : unknown) {
    auto like = LikeOthers(view_.inputs(node)[i], dims);
    if (!like) return std::nullopt;
    values[i] = Keep(view_.inputs(node)[i], *std::move(like));
  }
  if (op == "BiasAdd" && !KnowsChannels(node)) return std::nullopt;
  if (op == "BiasAdd" && ChannelsFirst(view_, node) && values[0]->dims.size() > 2) {
    made[1] = *values[1];
    made[1].dims.resize(values[0]->dims.size() - 1);
    values[1] = &made[1];
  }
  dims.clear();
  for (const Value* value : values) dims.push_back(&value->dims);
  Value out;
  // Of these, the operands must have one shape.
  const bool one_shape = op == "AddN" || (op.size() > 4 && op.substr(op.size() - 4) == "Grad");
  const Certainty certainty = one_shape ? Certainty::kSure : Certainty::kUnlessOne;
  if (!Done(AlignForBroadcast(dims, certainty, axes_, &out.dims))) return std::nullopt;
  if (out.Flat().size() > kMaxAtoms) return std::nullopt;
  if (op == "_UnaryOpsComposition") {
    auto names = view_.def(node).attr().find("op_names");
    if (names == view_.def(node).attr().end()) return std::nullopt;
    out.numbers = values[0]->numbers;
    for (const auto& name : names->second.list().s()) {
      const Unary unary = UnaryOf(std::string(name));
      if (unary == nullptr) return std::nullopt;
      out.numbers = Map(out.numbers, unary);
    }
    return out;
  }
  if (const Unary unary = UnaryOf(op)) {
    out.numbers = Map(values[0]->numbers, unary);
    return out;
  }
  const Binary binary = BinaryOf(op == "BiasAdd" ? "AddV2" : op);
  if (binary == nullptr) return std::nullopt;
  // A clamp may be out of the draws' reach; max(variance, 0) and min(variance, inf) mean nothing.
  if ((op == "Maximum" || op == "Minimum") && !IsIdleClamp(node)) return std::nullopt;
  out.numbers = values[0]->numbers;
  for (size_t i = 1; i < values.size(); ++i) {
    out.numbers = Zip(out.numbers, values[i]->numbers, binary);
  }
  return out;
}

std::optional<std::vector<int>> Interpreter::AxisList(TensorId tensor, int rank) {
  const auto sizes = Sizes(tensor);
  if (!sizes) return std::nullopt;
  std::vector<int> axes;
  for (const Size& size : sizes->values) {
    if (!size.known()) return std::nullopt;
    const int64_t axis = size.coefficient() + (size.coefficient() < 0 ? rank : 0);
    if (axis < 0 || axis >= rank) return std::nullopt;
    axes.push_back(static_cast<int>(axis));
  }
  return axes;
}

// Where the rank is unknown, the second axis of a stand-in may be its last, which it is not later.
bool Interpreter::KnowsChannels(int node) const {
  return !ChannelsFirst(view_, node) || scene_.shapes->Get(view_.inputs(node)[0]).rank_known;
}

std::optional<std::vector<int>> Interpreter::ReducedAxes(int node, int rank) {
  if (view_.op(node) != "BiasAddGrad") return AxisList(view_.inputs(node)[1], rank);
  if (!KnowsChannels(node)) return std::nullopt;
  const int channel = ChannelsFirst(view_, node) ? 1 : rank - 1;
  std::vector<int> axes;
  for (int axis = 0; axis < rank; ++axis) {
    if (axis != channel) axes.push_back(axis);
  }
  return axes;
}

std::optional<Value> Interpreter::Reduction(int node) {
  const Value* input = Eval(view_.inputs(node)[0]);
  if (input == nullptr) return std::nullopt;
  const auto axes = ReducedAxes(node, static_cast<int>(input->dims.size()));
  if (!axes || restart_) return std::nullopt;
  // An axis that is named twice is an error when the graph runs.
  if (std::set<int>(axes->begin(), axes->end()).size() < axes->size()) return std::nullopt;
  Value out;
  Dim reduced;
  const bool keep = view_.GetBool(node, "keep_dims", false);
  for (size_t i = 0; i < input->dims.size(); ++i) {
    if (std::find(axes->begin(), axes->end(), static_cast<int>(i)) == axes->end()) {
      out.dims.push_back(input->dims[i]);
      continue;
    }
    reduced.insert(reduced.end(), input->dims[i].begin(), input->dims[i].end());
    if (keep) out.dims.push_back({});
  }
  out.numbers = MeanOver(input->numbers, reduced);
  if (SumsUp(view_.op(node))) {
    const double count = RealSize(axes_->size(reduced));
    for (double& v : out.numbers.data) v *= count;
  }
  return out;
}

}  // namespace nv_norms
