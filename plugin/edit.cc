#include "plugin/edit.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "plugin/edit_steps.h"
#include "plugin/graph/constants.h"
#include "plugin/recognizer/ops.h"
#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/node_def.pb.h"

namespace nv_norms {
namespace {

using tensorflow::DataType;
using tensorflow::NodeDef;

// An op's epsilon: high, and low in float64 beside it.
struct SplitEpsilon {
  explicit SplitEpsilon(double epsilon)
      : high(static_cast<float>(epsilon)), low(static_cast<float>(epsilon - double{high})) {}
  float high, low;
};

// Whether the op gets the epsilon that the graph has. TensorFlow's threads take float32 numbers
// below the normal ones for 0.
bool KeepsEpsilon(double epsilon, DataType x_type) {
  using Limits = std::numeric_limits<float>;
  if (epsilon == 0) return true;
  const double high = SplitEpsilon(epsilon).high;
  if (!(epsilon >= Limits::min()) || std::isinf(high)) return false;
  const double low = std::fabs(epsilon - high);
  // What is below the last bit of two floats is lost in any case.
  const bool low_matters = x_type == tensorflow::DT_DOUBLE && low > std::ldexp(epsilon, -48);
  return !low_matters || low >= Limits::min();
}

NodeDef FusedDef(const GraphView& view, const Shapes& shapes, const ForwardMatch& match,
                 TensorId gamma, TensorId beta, DataType parameter_type) {
  const DataType x_type = shapes.Get(match.x).dtype;
  NodeDef def;
  def.set_op(OpName(match));
  CopyPlacement(view.def(match.y.node), &def);
  SetType(&def, "T", x_type);
  SetType(&def, "P", parameter_type);
  SetType(&def, "out_type", shapes.Get(match.y).dtype);
  SetType(&def, "U",
          x_type == tensorflow::DT_DOUBLE ? tensorflow::DT_DOUBLE : tensorflow::DT_FLOAT);
  auto& attr = *def.mutable_attr();
  attr["num_scale"].set_i(gamma.valid() ? 1 : 0);
  attr["num_offset"].set_i(beta.valid() ? 1 : 0);
  const SplitEpsilon epsilon(match.statistics.epsilon);
  attr["epsilon"].set_f(epsilon.high);
  attr["epsilon_low"].set_f(epsilon.low);
  switch (match.problem.kind) {
    case Kind::kLayerNorm:
      attr["subtract_mean"].set_b(match.subtract_mean);
      [[fallthrough]];
    case Kind::kRmsNorm:
      for (int axis : match.problem.axes) attr["axis"].mutable_list()->add_i(axis);
      attr["per_sample"].set_b(match.problem.per_sample);
      break;
    case Kind::kGroupNorm:
      attr["groups"].set_i(match.problem.groups);
      [[fallthrough]];
    case Kind::kInstanceNorm:
      attr["data_format"].set_s(match.problem.data_format);
      attr["negative_slope"].set_f(1);
      attr["silu"].set_b(false);
      attr["per_sample"].set_b(match.problem.per_sample);
      break;
  }
  return def;
}

// y, mean and rstd of the op.
std::vector<TensorInfo> FusedOutputs(const TensorInfo& y, DataType x_type) {
  const bool wide = x_type == tensorflow::DT_DOUBLE;
  const TensorInfo statistics{wide ? tensorflow::DT_DOUBLE : tensorflow::DT_FLOAT, false, {}};
  return {y, statistics, statistics};
}

// x in the shape that the op takes, and what there is of gamma and beta.
std::vector<TensorId> FusedInputs(GraphView* view, Shapes* shapes, const ForwardMatch& match,
                                  TensorId gamma, TensorId beta, int like) {
  std::vector<TensorId> inputs = {match.x};
  if (!match.problem.merged_shape.empty()) {
    inputs[0] = AddReshape(view, shapes, match.x, match.problem.merged_shape, like, -1);
  }
  if (gamma.valid()) inputs.push_back(gamma);
  if (beta.valid()) inputs.push_back(beta);
  return inputs;
}

DataType Wider(DataType a, DataType b) {
  if (a == b) return a;
  if (a == tensorflow::DT_DOUBLE || b == tensorflow::DT_DOUBLE) return tensorflow::DT_DOUBLE;
  return tensorflow::DT_FLOAT;
}

}  // namespace

const char* OpName(const ForwardMatch& match) {
  switch (match.problem.kind) {
    case Kind::kLayerNorm:
      return "FusedLayerNorm";
    case Kind::kInstanceNorm:
      return "FusedInstanceNorm";
    case Kind::kGroupNorm:
      return "FusedGroupNorm";
    case Kind::kRmsNorm:
      return "FusedRMSNorm";
  }
  return "";
}

Reason CheckForward(const GraphView& view, const Shapes& shapes, const ForwardMatch& match) {
  for (TensorId tensor : {match.x, match.y, match.gamma, match.beta}) {
    if (tensor.valid() && !IsFloat(shapes.Get(tensor).dtype)) return Reason::kUnsupportedType;
  }
  if (!KeepsEpsilon(match.statistics.epsilon, shapes.Get(match.x).dtype)) {
    return Reason::kEpsilonOutOfRange;
  }
  // The mean of many equal numbers is rounded in the graph, which then gives some number where the
  // op gives NaN. That of squares is 0 in both or in neither.
  if (match.statistics.epsilon == 0 && match.statistics.moment != Moment::kMeanSquare) {
    return Reason::kNoEpsilon;
  }
  // Another match's gradient may have been the only reader.
  if (!view.alive(match.y.node)) return Reason::kNobodyReadsIt;
  const std::string& device = view.def(match.y.node).device();
  for (int node : match.core) {
    if (view.def(node).device() != device) return Reason::kOtherDevice;
  }
  return Reason::kNone;
}

int AddLoneForward(GraphView* view, Shapes* shapes, const ForwardMatch& match) {
  const TensorId gamma =
      match.gamma.valid() ? ParameterBehindViews(*view, match.gamma) : TensorId();
  const DataType parameter_type = gamma.valid() ? shapes->Get(gamma).dtype : tensorflow::DT_FLOAT;
  NodeDef def = FusedDef(*view, *shapes, match, gamma, TensorId(), parameter_type);
  TensorInfo y_info = shapes->Get(match.x);
  SetType(&def, "out_type", y_info.dtype);
  const int anchor = match.statistics.anchor.node;
  def.set_name(view->UniqueName(view->name(anchor) + "/" + OpName(match)));
  const auto inputs = FusedInputs(view, shapes, match, gamma, TensorId(), anchor);
  y_info = WithShapeOf(y_info, shapes->Get(inputs[0]));
  const std::vector<int> controls = ControlsOf(*view, match.core, {match.gamma}, inputs);
  const int fused = view->AddNode(def, inputs, controls, anchor);
  shapes->Set(fused, FusedOutputs(y_info, y_info.dtype));
  return fused;
}

int ApplyForward(GraphView* view, Shapes* shapes, const ForwardMatch& match,
                 const std::function<bool(int)>& keep) {
  TensorId gamma = match.gamma.valid() ? ParameterBehindViews(*view, match.gamma) : TensorId();
  TensorId beta = match.beta.valid() ? ParameterBehindViews(*view, match.beta) : TensorId();
  DataType parameter_type = tensorflow::DT_FLOAT;
  if (gamma.valid() && beta.valid()) {
    const DataType of_gamma = shapes->Get(gamma).dtype, of_beta = shapes->Get(beta).dtype;
    parameter_type = Wider(of_gamma, of_beta);
    const int like = match.y.node;
    if (of_gamma != parameter_type) gamma = AddCast(view, shapes, gamma, parameter_type, like);
    if (of_beta != parameter_type) beta = AddCast(view, shapes, beta, parameter_type, like);
  } else if (gamma.valid() || beta.valid()) {
    parameter_type = shapes->Get(gamma.valid() ? gamma : beta).dtype;
  }
  NodeDef def = FusedDef(*view, *shapes, match, gamma, beta, parameter_type);
  const auto inputs = FusedInputs(view, shapes, match, gamma, beta, match.y.node);

  // What the replaced nodes waited for, and what they read and may now be unread.
  const std::vector<int> controls =
      ControlsOf(*view, match.core, {match.gamma, match.beta}, inputs);
  std::vector<int> read;
  for (int node : match.core) {
    for (const TensorId& input : view->inputs(node)) read.push_back(input.node);
  }
  for (TensorId tensor : {match.gamma, match.beta}) {
    if (tensor.valid()) read.push_back(tensor.node);
  }

  const TensorInfo y_info = shapes->Get(match.y);
  const bool merged = !match.problem.merged_shape.empty();
  // What the op gives has the shape of the x that it reads; a Reshape or parts behind it make y's.
  TensorInfo op_info = y_info;
  if (merged || match.goes_on()) {
    op_info = WithShapeOf(op_info, shapes->Get(inputs[0]));
    // But for its samples, where a parameter may have more.
    if (match.open_samples && op_info.dims[0] < 0) op_info.dims[0] = -1;
  }
  const auto outputs = FusedOutputs(op_info, shapes->Get(match.x).dtype);
  int fused = match.y.node;
  if (!match.goes_on() && !merged) {
    view->ReplaceNode(match.y.node, def, inputs, controls);
    shapes->Set(fused, outputs);
  } else {
    def.set_name(view->UniqueName(view->name(match.y.node) + "/" + OpName(match)));
    fused = view->AddNode(def, inputs, controls, match.y.node);
    shapes->Set(fused, outputs);
    TensorId y{fused, 0};
    const int node = match.y.node;
    if (merged) {
      y = AddReshapeToSplit(view, shapes, y, match, node, match.goes_on() ? -1 : node);
    }
    const Part scale{match.scale, /*inverted=*/false};
    if (!match.parts.empty()) {
      if (match.scale.valid()) {
        y = AddFactor(view, shapes, y, scale, node);
        // Between x's shape and y's.
        const bool known = y_info.rank_known && y_info.dims == op_info.dims &&
                           std::count(y_info.dims.begin(), y_info.dims.end(), -1) == 0;
        if (!known) shapes->Set(y.node, {{y_info.dtype, false, {}}});
      }
      JoinParts(view, shapes, y, match.parts, match.parts_are_factors, node);
    } else if (match.scale.valid()) {
      JoinParts(view, shapes, y, {scale}, /*factors=*/true, node);
    }
    shapes->Set(match.y.node, {y_info});
  }
  RemoveUnread(view, read, keep);
  return fused;
}

}  // namespace nv_norms
