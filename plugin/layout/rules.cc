#include "plugin/layout/rules.h"

#include <algorithm>
#include <unordered_set>

#include "plugin/graph/constants.h"
#include "plugin/graph/fused_ops.h"
#include "plugin/layout/norm_rules.h"
#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/node_def.pb.h"

namespace nv_norms {
namespace {

bool IsElementwise(const std::string& op) {
  static const auto* const kOps = new std::unordered_set<std::string>{"Abs",
                                                                      "Add",
                                                                      "AddN",
                                                                      "AddV2",
                                                                      "Cast",
                                                                      "Ceil",
                                                                      "CheckNumerics",
                                                                      "ClipByValue",
                                                                      "Cos",
                                                                      "DivNoNan",
                                                                      "Elu",
                                                                      "EluGrad",
                                                                      "Equal",
                                                                      "Erf",
                                                                      "Erfc",
                                                                      "Exp",
                                                                      "Expm1",
                                                                      "Floor",
                                                                      "FloorDiv",
                                                                      "Greater",
                                                                      "GreaterEqual",
                                                                      "Identity",
                                                                      "Inv",
                                                                      "InvGrad",
                                                                      "IsFinite",
                                                                      "IsInf",
                                                                      "IsNan",
                                                                      "LeakyRelu",
                                                                      "LeakyReluGrad",
                                                                      "Less",
                                                                      "LessEqual",
                                                                      "Log",
                                                                      "Log1p",
                                                                      "LogicalAnd",
                                                                      "LogicalNot",
                                                                      "LogicalOr",
                                                                      "Maximum",
                                                                      "Minimum",
                                                                      "Mul",
                                                                      "MulNoNan",
                                                                      "Neg",
                                                                      "NotEqual",
                                                                      "OnesLike",
                                                                      "Pow",
                                                                      "PreventGradient",
                                                                      "RealDiv",
                                                                      "Reciprocal",
                                                                      "ReciprocalGrad",
                                                                      "Relu",
                                                                      "Relu6",
                                                                      "Relu6Grad",
                                                                      "ReluGrad",
                                                                      "Round",
                                                                      "Rsqrt",
                                                                      "RsqrtGrad",
                                                                      "SelectV2",
                                                                      "Selu",
                                                                      "SeluGrad",
                                                                      "Sigmoid",
                                                                      "SigmoidGrad",
                                                                      "Sign",
                                                                      "Sin",
                                                                      "Snapshot",
                                                                      "Softplus",
                                                                      "SoftplusGrad",
                                                                      "Softsign",
                                                                      "SoftsignGrad",
                                                                      "Sqrt",
                                                                      "SqrtGrad",
                                                                      "Square",
                                                                      "SquaredDifference",
                                                                      "StopGradient",
                                                                      "Sub",
                                                                      "Tanh",
                                                                      "TanhGrad",
                                                                      "TruncateDiv",
                                                                      "Xdivy",
                                                                      "Xlogy",
                                                                      "ZerosLike",
                                                                      "_UnaryOpsComposition"};
  return kOps->count(op) > 0;
}

bool IsReduction(const std::string& op) {
  return op == "Sum" || op == "Mean" || op == "Max" || op == "Min" || op == "Prod" || op == "All" ||
         op == "Any";
}

bool HasOneElement(const TensorInfo& info) {
  return info.rank_known &&
         std::all_of(info.dims.begin(), info.dims.end(), [](int64_t d) { return d == 1; });
}

class RuleFinder {
 public:
  RuleFinder(const GraphView& view, const Shapes& shapes, int node, Format now, int rank,
             Rule* rule)
      : view_(view), shapes_(shapes), node_(node), now_(now), rank_(rank), rule_(rule) {}

  bool Find(int part) {
    const std::string& op = view_.op(node_);
    const int count = static_cast<int>(view_.inputs(node_).size());
    if (IsElementwise(op)) {
      for (int slot = 0; slot < count; ++slot) {
        if (!Operand(slot)) return false;
      }
      return !rule_->inputs.empty() && Output(0);
    }
    if (op == "BiasAdd" || op == "BiasAddGrad") {
      const std::string format = view_.GetString(node_, "data_format", "NHWC");
      const bool last = format == "NHWC";
      if ((!last && format != "NCHW") || last != (now_ == Format::kLast)) return false;
      return Input(0) && (op == "BiasAddGrad" || Output(0));
    }
    if (IsReduction(op)) return count == 2 && Reduction();
    if (op == "ConcatV2") {
      for (int slot = 0; slot + 1 < count; ++slot) {
        if (!Input(slot)) return false;
      }
      return Axes(count - 1) && Output(0);
    }
    if (op == "Split") return Axes(0) && Input(1) && Outputs("num_split");
    if (op == "SplitV") return Input(0) && Axes(2) && Outputs("num_split");
    if (op == "Slice") return Input(0) && Vector(1) && Vector(2) && Output(0);
    if (op == "Tile") return Input(0) && Vector(1) && Output(0);
    if (op == "BroadcastTo") return Operand(0) && Vector(1) && Output(0);
    if (op == "Fill") return Vector(0) && Output(0);
    if (op == "Shape" || op == "ShapeN") return Input(part) && OutputVector(part);
    return false;
  }

 private:
  const TensorInfo& Of(int slot) const { return shapes_.Get(view_.inputs(node_)[slot]); }
  bool HasRank(const TensorInfo& info) const {
    return info.rank_known && static_cast<int>(info.dims.size()) == rank_;
  }

  bool Input(int slot) {
    if (!HasRank(Of(slot))) return false;
    rule_->inputs.push_back({slot, false});
    return true;
  }

  // An operand that is broadcast: of full rank, a single element, or a vector of channels.
  bool Operand(int slot) {
    const TensorInfo& info = Of(slot);
    if (HasRank(info)) return Input(slot);
    if (HasOneElement(info) && static_cast<int>(info.dims.size()) < rank_) return true;
    if (!info.rank_known || info.dims.size() != 1 || now_ != Format::kLast) return false;
    rule_->channel_slots.push_back(slot);
    return true;
  }

  // Sizes for each axis. Of rank 3 there are none but constants: no op permutes them.
  bool Vector(int slot) {
    const TensorId tensor = view_.inputs(node_)[slot];
    const TensorInfo& info = Of(slot);
    if (!info.rank_known || info.dims.size() != 1 || info.dims[0] != rank_) return false;
    if (rank_ == 3 && !IntConstant(view_, tensor.node)) return false;
    rule_->inputs.push_back({slot, true});
    return true;
  }

  bool Output(int port) {
    if (!HasRank(shapes_.Get({node_, port}))) return false;
    rule_->outputs.push_back({port, false});
    return true;
  }

  bool Outputs(const char* count) {
    for (int port = 0; port < view_.GetInt(node_, count, 0); ++port) {
      if (!Output(port)) return false;
    }
    return true;
  }

  bool OutputVector(int port) {
    if (rank_ == 3) return false;
    // Of what no fetch needs nothing is known.
    if (shapes_.Get({node_, port}).dtype == tensorflow::DT_INVALID) return false;
    rule_->outputs.push_back({port, true});
    return true;
  }

  bool Axes(int slot) {
    const TensorId tensor = view_.inputs(node_)[slot];
    const auto axes = IntConstant(view_, tensor.node);
    // Without a type it is of a part of the graph that nobody needs.
    if (!axes || shapes_.Get(tensor).dtype == tensorflow::DT_INVALID) return false;
    for (int64_t axis : axes->values) {
      if (axis < -rank_ || axis >= rank_) return false;
    }
    rule_->axes.push_back(slot);
    return true;
  }

  // Without kept axes, the result is the same if what is left comes in the same order.
  bool Reduction() {
    if (!Input(0) || !Axes(1)) return false;
    if (view_.GetBool(node_, "keep_dims", false)) return Output(0);
    std::vector<int> kept;
    const auto axes = IntConstant(view_, view_.inputs(node_)[1].node);
    for (int axis = 0; axis < rank_; ++axis) {
      const auto is = [&](int64_t a) { return a == axis || a == axis - rank_; };
      if (std::none_of(axes->values.begin(), axes->values.end(), is)) kept.push_back(axis);
    }
    return InSameOrder(kept, Other(now_), rank_);
  }

  const GraphView& view_;
  const Shapes& shapes_;
  const int node_;
  const Format now_;
  const int rank_;
  Rule* rule_;
};

}  // namespace

int PartOf(const GraphView& view, int node, int slot_or_port) {
  return view.op(node) == "ShapeN" ? slot_or_port : 0;
}

Reason FindRule(const GraphView& view, const Shapes& shapes, int node, int part, Format now,
                int rank, Rule* rule) {
  if (IsFusedNorm(view.op(node))) return FindNormRule(view, shapes, node, now, rank, rule);
  return RuleFinder(view, shapes, node, now, rank, rule).Find(part) ? Reason::kNone
                                                                    : Reason::kNotFree;
}

tensorflow::NodeDef InFormat(const GraphView& view, int node, Format to, int rank) {
  tensorflow::NodeDef def = view.def(node);
  auto& attr = *def.mutable_attr();
  attr.erase("_output_shapes");  // would contradict
  const bool last = to == Format::kLast;
  if (IsFusedNorm(def.op())) {
    if (attr.count("data_format") > 0) attr["data_format"].set_s(last ? "N...C" : "NC...");
    if (attr.count("axis") > 0) {
      std::vector<int> axes = NormalizedAxes(view, node, rank);
      for (int& axis : axes) axis = AxisIn(to, rank, axis) - rank;
      std::sort(axes.begin(), axes.end());
      attr["axis"].mutable_list()->clear_i();
      for (int axis : axes) attr["axis"].mutable_list()->add_i(axis);
    }
  } else if (def.op() == "BiasAdd" || def.op() == "BiasAddGrad") {
    attr["data_format"].set_s(last ? "NHWC" : "NCHW");
  }
  return def;
}

}  // namespace nv_norms
