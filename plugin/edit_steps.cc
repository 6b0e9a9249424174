#include "plugin/edit_steps.h"

#include <algorithm>
#include <deque>
#include <set>

#include "plugin/recognizer/ops.h"
#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/tensor.pb.h"
#include "tensorflow/core/framework/tensor_shape.pb.h"

namespace nv_norms {

using tensorflow::DataType;
using tensorflow::NodeDef;

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
                                                                 "Range",
                                                                 "FloorDiv",
                                                                 "BroadcastGradientArgs",
                                                                 "DataFormatDimMap",
                                                                 "DataFormatVecPermute"};
  return ClassOf(op) != OpClass::kOpaque || kShapeOps->count(op) > 0;
}

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

TensorId AddReshape(GraphView* view, Shapes* shapes, TensorId tensor,
                    const std::vector<int64_t>& shape, int like, int in_place_of) {
  NodeDef constant;
  constant.set_op("Const");
  constant.set_name(view->UniqueName(view->name(like) + "/shape"));
  constant.set_device(view->def(like).device());
  SetType(&constant, "dtype", tensorflow::DT_INT64);
  auto* value = (*constant.mutable_attr())["value"].mutable_tensor();
  value->set_dtype(tensorflow::DT_INT64);
  value->mutable_tensor_shape()->add_dim()->set_size(static_cast<int64_t>(shape.size()));
  for (int64_t size : shape) value->add_int64_val(size < 0 ? -1 : size);
  // The constant waits for the tensor: in a loop it has to be in the loop's frame.
  const TensorId shape_tensor{view->AddNode(constant, {}, {tensor.node}, like), 0};
  NodeDef reshape;
  reshape.set_op("Reshape");
  CopyPlacement(view->def(like), &reshape);
  const DataType type = shapes->Get(tensor).dtype;
  SetType(&reshape, "T", type);
  SetType(&reshape, "Tshape", tensorflow::DT_INT64);
  int node = in_place_of;
  if (node >= 0) {
    view->ReplaceNode(node, reshape, {tensor, shape_tensor}, {});
  } else {
    reshape.set_name(view->UniqueName(view->name(like) + "/reshape"));
    node = view->AddNode(reshape, {tensor, shape_tensor}, {}, like);
  }
  shapes->Set(node, {{type, true, shape}});
  return {node, 0};
}

TensorId AddReshapeLike(GraphView* view, Shapes* shapes, TensorId tensor, TensorId shaped,
                        int like) {
  NodeDef shape;
  shape.set_op("Shape");
  shape.set_name(view->UniqueName(view->name(like) + "/shape"));
  shape.set_device(view->def(like).device());
  const TensorInfo info = shapes->Get(shaped);
  SetType(&shape, "T", info.dtype);
  SetType(&shape, "out_type", tensorflow::DT_INT32);
  const TensorId shape_tensor{view->AddNode(shape, {shaped}, {}, like), 0};
  NodeDef reshape;
  reshape.set_op("Reshape");
  reshape.set_name(view->UniqueName(view->name(like) + "/reshape"));
  CopyPlacement(view->def(like), &reshape);
  const DataType type = shapes->Get(tensor).dtype;
  SetType(&reshape, "T", type);
  SetType(&reshape, "Tshape", tensorflow::DT_INT32);
  const int node = view->AddNode(reshape, {tensor, shape_tensor}, {}, like);
  shapes->Set(node, {{type, info.rank_known, info.dims}});
  return {node, 0};
}

TensorId AddCast(GraphView* view, Shapes* shapes, TensorId tensor, DataType to, int like) {
  NodeDef def;
  def.set_op("Cast");
  def.set_name(view->UniqueName(view->name(like) + "/cast"));
  def.set_device(view->def(like).device());
  const TensorInfo info = shapes->Get(tensor);
  SetType(&def, "SrcT", info.dtype);
  SetType(&def, "DstT", to);
  (*def.mutable_attr())["Truncate"].set_b(false);
  const TensorId cast{view->AddNode(def, {tensor}, {}, like), 0};
  shapes->Set(cast.node, {{to, info.rank_known, info.dims}});
  return cast;
}

void JoinParts(GraphView* view, Shapes* shapes, TensorId first, const std::vector<Part>& parts,
               bool factors, int in_place_of) {
  const TensorInfo info = shapes->Get(TensorId{in_place_of, 0});
  TensorId sum = first;
  for (size_t i = 0; i < parts.size(); ++i) {
    NodeDef join;
    join.set_op(factors ? (parts[i].inverted ? "RealDiv" : "Mul")
                        : (parts[i].inverted ? "Sub" : "AddV2"));
    CopyPlacement(view->def(in_place_of), &join);
    SetType(&join, "T", info.dtype);
    if (i + 1 == parts.size()) {
      view->ReplaceNode(in_place_of, join, {sum, parts[i].tensor}, {});
    } else {
      join.set_name(view->UniqueName(view->name(in_place_of) + "/part"));
      sum = {view->AddNode(join, {sum, parts[i].tensor}, {}, in_place_of), 0};
      shapes->Set(sum.node, {{info.dtype, false, {}}});
    }
  }
  shapes->Set(in_place_of, {info});
}

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

}  // namespace nv_norms
