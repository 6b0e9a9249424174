#include "plugin/edit.h"

#include <algorithm>
#include <deque>
#include <set>

#include "plugin/graph/constants.h"
#include "plugin/recognizer/ops.h"
#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/framework/tensor.pb.h"
#include "tensorflow/core/framework/tensor_shape.pb.h"

namespace nv_norms {
namespace {

using tensorflow::DataType;
using tensorflow::NodeDef;

bool IsView(const std::string& op) {
  return op == "Reshape" || op == "ExpandDims" || op == "Squeeze" || op == "Identity";
}

bool IsHalf(DataType dtype) {
  return dtype == tensorflow::DT_HALF || dtype == tensorflow::DT_BFLOAT16;
}

// The op takes a parameter in any shape, and widens it itself: look behind such views.
TensorId BehindViews(const GraphView& view, TensorId tensor) {
  while (true) {
    const int node = tensor.node;
    if (!view.control_inputs(node).empty()) return tensor;
    const bool widens = view.op(node) == "Cast" && IsHalf(view.GetType(node, "SrcT")) &&
                        view.GetType(node, "DstT") == tensorflow::DT_FLOAT;
    if (!widens && !IsView(view.op(node))) return tensor;
    tensor = view.inputs(node)[0];
  }
}

// Attributes that say where and how a node runs, not what it computes.
void CopyPlacement(const NodeDef& from, NodeDef* to) {
  to->set_device(from.device());
  for (const auto& [name, value] : from.attr()) {
    if (!name.empty() && name[0] == '_' && name != "_output_shapes" &&
        name.rfind("_grappler", 0) != 0) {
      (*to->mutable_attr())[name] = value;
    }
  }
}

void SetType(NodeDef* def, const char* attr, DataType type) {
  (*def->mutable_attr())[attr].set_type(type);
}

// Removes nodes of `start` and behind it that nobody reads. Whoever waited for one waits for what
// it waited for.
void RemoveUnread(GraphView* view, const std::vector<int>& start,
                  const std::function<bool(int)>& keep) {
  std::deque<int> queue(start.begin(), start.end());
  while (!queue.empty()) {
    const int node = queue.front();
    queue.pop_front();
    if (!view->alive(node) || keep(node) || !view->consumers(node).empty() ||
        !IsPure(view->op(node))) {
      continue;
    }
    std::set<int> inputs;
    for (const TensorId& input : view->inputs(node)) inputs.insert(input.node);
    for (int control : view->control_inputs(node)) inputs.insert(control);
    if (!view->control_consumers(node).empty()) {
      // A Switch has no control edge of its own branch to give; such a node stays.
      const bool branches = std::any_of(inputs.begin(), inputs.end(), [&](int input) {
        const std::string& op = view->op(input);
        return op == "Switch" || op == "RefSwitch" || op == "Merge" || op == "RefMerge";
      });
      if (branches) continue;
      const std::vector<int> waiting = view->control_consumers(node);
      for (int waiter : waiting) {
        for (int input : inputs) view->AddControlInput(waiter, input);
      }
      view->DropControlConsumers(node);
    }
    view->RemoveNode(node);
    for (int input : inputs) queue.push_back(input);
  }
}

void ReadShapeOf(GraphView* view, TensorId tensor, DataType type, int shape_node) {
  NodeDef def = view->def(shape_node);
  SetType(&def, "T", type);
  view->ReplaceNode(shape_node, def, {tensor}, view->control_inputs(shape_node));
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
  const float epsilon = static_cast<float>(match.statistics.epsilon);
  attr["epsilon"].set_f(epsilon);
  attr["epsilon_low"].set_f(static_cast<float>(match.statistics.epsilon - double{epsilon}));
  switch (match.problem.kind) {
    case Kind::kLayerNorm:
      attr["subtract_mean"].set_b(match.subtract_mean);
      [[fallthrough]];
    case Kind::kRmsNorm:
      for (int axis : match.problem.axes) attr["axis"].mutable_list()->add_i(axis);
      break;
    case Kind::kGroupNorm:
      attr["groups"].set_i(match.problem.groups);
      [[fallthrough]];
    case Kind::kInstanceNorm:
      attr["data_format"].set_s(match.problem.data_format);
      break;
  }
  return def;
}

// Brings a parameter to the wider type where gamma's and beta's differ.
TensorId CastTo(GraphView* view, Shapes* shapes, TensorId tensor, DataType from, DataType to,
                const ForwardMatch& match) {
  NodeDef def;
  def.set_op("Cast");
  def.set_name(view->UniqueName(view->name(match.y.node) + "/cast_parameter"));
  def.set_device(view->def(match.y.node).device());
  SetType(&def, "SrcT", from);
  SetType(&def, "DstT", to);
  (*def.mutable_attr())["Truncate"].set_b(false);
  const TensorInfo info = shapes->Get(tensor);
  const TensorId cast{view->AddNode(def, {tensor}, {}, match.y.node), 0};
  shapes->Set(cast.node, {{to, info.rank_known, info.dims}});
  return cast;
}

// Reshapes to a constant shape. The constant waits for the tensor: in a loop it has to be in the
// loop's frame.
TensorId ReshapeTo(GraphView* view, Shapes* shapes, TensorId tensor,
                   const std::vector<int64_t>& shape, const ForwardMatch& match, int in_place_of) {
  const std::string base = view->name(match.y.node);
  const std::string& device = view->def(match.y.node).device();
  NodeDef constant;
  constant.set_op("Const");
  constant.set_name(view->UniqueName(base + "/shape"));
  constant.set_device(device);
  SetType(&constant, "dtype", tensorflow::DT_INT32);
  auto* value = (*constant.mutable_attr())["value"].mutable_tensor();
  value->set_dtype(tensorflow::DT_INT32);
  value->mutable_tensor_shape()->add_dim()->set_size(static_cast<int64_t>(shape.size()));
  for (int64_t size : shape) value->add_int_val(static_cast<int>(size));
  const TensorId shape_tensor{view->AddNode(constant, {}, {match.x.node}, match.y.node), 0};
  NodeDef reshape;
  reshape.set_op("Reshape");
  CopyPlacement(view->def(match.y.node), &reshape);
  const DataType type = shapes->Get(tensor).dtype;
  SetType(&reshape, "T", type);
  SetType(&reshape, "Tshape", tensorflow::DT_INT32);
  int node = in_place_of;
  if (node >= 0) {
    view->ReplaceNode(node, reshape, {tensor, shape_tensor}, {});
  } else {
    reshape.set_name(view->UniqueName(base + "/reshape"));
    node = view->AddNode(reshape, {tensor, shape_tensor}, {}, match.y.node);
  }
  shapes->Set(node, {{type, true, shape}});
  return {node, 0};
}

DataType Wider(DataType a, DataType b) {
  if (a == b) return a;
  if (a == tensorflow::DT_DOUBLE || b == tensorflow::DT_DOUBLE) return tensorflow::DT_DOUBLE;
  return tensorflow::DT_FLOAT;
}

}  // namespace

bool IsPure(const std::string& op) {
  static const auto* const kShapeOps = new std::set<std::string>{"Const",
                                                                 "Shape",
                                                                 "Pack",
                                                                 "StridedSlice",
                                                                 "GatherV2",
                                                                 "Prod",
                                                                 "Fill",
                                                                 "ConcatV2",
                                                                 "Size",
                                                                 "BroadcastGradientArgs",
                                                                 "DataFormatDimMap",
                                                                 "DataFormatVecPermute",
                                                                 "Range",
                                                                 "FloorDiv"};
  return ClassOf(op) != OpClass::kOpaque || kShapeOps->count(op) > 0;
}

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
  const std::string& device = view.def(match.y.node).device();
  for (int node : match.core) {
    if (view.def(node).device() != device) return Reason::kOtherDevice;
  }
  const std::string& x_device = view.def(match.x.node).device();
  if (!x_device.empty() && !device.empty() && x_device != device) return Reason::kOtherDevice;
  return Reason::kNone;
}

int ApplyForward(GraphView* view, Shapes* shapes, const ForwardMatch& match,
                 const std::function<bool(int)>& keep) {
  TensorId gamma = match.gamma.valid() ? BehindViews(*view, match.gamma) : TensorId();
  TensorId beta = match.beta.valid() ? BehindViews(*view, match.beta) : TensorId();
  DataType parameter_type = tensorflow::DT_FLOAT;
  if (gamma.valid() && beta.valid()) {
    const DataType of_gamma = shapes->Get(gamma).dtype, of_beta = shapes->Get(beta).dtype;
    parameter_type = Wider(of_gamma, of_beta);
    if (of_gamma != parameter_type) {
      gamma = CastTo(view, shapes, gamma, of_gamma, parameter_type, match);
    }
    if (of_beta != parameter_type) {
      beta = CastTo(view, shapes, beta, of_beta, parameter_type, match);
    }
  } else if (gamma.valid() || beta.valid()) {
    parameter_type = shapes->Get(gamma.valid() ? gamma : beta).dtype;
  }
  NodeDef def = FusedDef(*view, *shapes, match, gamma, beta, parameter_type);
  const bool merged = !match.problem.merged_shape.empty();
  std::vector<TensorId> inputs = {match.x};
  if (merged) {
    inputs[0] = ReshapeTo(view, shapes, match.x, match.problem.merged_shape, match, -1);
  }
  if (gamma.valid()) inputs.push_back(gamma);
  if (beta.valid()) inputs.push_back(beta);

  // A gradient reads the shapes of inner tensors: x's are the same, and inner tensors can go.
  for (int node : match.shaped_like_x) {
    if (node == match.y.node) continue;
    for (const Consumer& c : view->consumers(TensorId{node, 0})) {
      if (view->op(c.node) == "Shape")
        ReadShapeOf(view, match.x, shapes->Get(match.x).dtype, c.node);
    }
  }

  // What the replaced nodes waited for, and what they read and may now be unread.
  std::vector<int> controls, read;
  for (int node : match.core) {
    for (int control : view->control_inputs(node)) {
      if (std::find(controls.begin(), controls.end(), control) == controls.end()) {
        controls.push_back(control);
      }
    }
    for (const TensorId& input : view->inputs(node)) read.push_back(input.node);
  }
  for (TensorId tensor : {match.gamma, match.beta}) {
    if (tensor.valid()) read.push_back(tensor.node);
  }

  const TensorInfo y_info = shapes->Get(match.y);
  const TensorInfo statistics_info{shapes->Get(match.x).dtype == tensorflow::DT_DOUBLE
                                       ? tensorflow::DT_DOUBLE
                                       : tensorflow::DT_FLOAT,
                                   false,
                                   {}};
  const std::vector<TensorInfo> outputs = {y_info, statistics_info, statistics_info};
  int fused = match.y.node;
  if (match.parts.empty() && !merged) {
    view->ReplaceNode(match.y.node, def, inputs, controls);
  } else {
    def.set_name(view->UniqueName(view->name(match.y.node) + "/" + OpName(match)));
    fused = view->AddNode(def, inputs, controls, match.y.node);
    shapes->Set(fused, outputs);
    TensorId sum{fused, 0};
    if (merged) {
      sum = ReshapeTo(view, shapes, sum, match.problem.split_shape, match,
                      match.parts.empty() ? match.y.node : -1);
    }
    for (size_t i = 0; i < match.parts.size(); ++i) {
      const Part& part = match.parts[i];
      NodeDef join;
      join.set_op(match.parts_are_factors ? (part.inverted ? "RealDiv" : "Mul")
                                          : (part.inverted ? "Sub" : "AddV2"));
      CopyPlacement(view->def(match.y.node), &join);
      SetType(&join, "T", y_info.dtype);
      if (i + 1 == match.parts.size()) {
        view->ReplaceNode(match.y.node, join, {sum, part.tensor}, {});
      } else {
        join.set_name(view->UniqueName(view->name(match.y.node) + "/part"));
        sum = {view->AddNode(join, {sum, part.tensor}, {}, match.y.node), 0};
        shapes->Set(sum.node, {{y_info.dtype, false, {}}});
      }
    }
  }
  shapes->Set(fused, outputs);
  if (fused != match.y.node) shapes->Set(match.y.node, {y_info});
  RemoveUnread(view, read, keep);
  return fused;
}

}  // namespace nv_norms
