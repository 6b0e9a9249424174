#include "plugin/edit_steps.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <set>
#include <unordered_set>
#include <utility>

#include "plugin/recognizer/ops.h"
#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/tensor.pb.h"
#include "tensorflow/core/framework/tensor_shape.pb.h"

namespace nv_norms {

using tensorflow::DataType;
using tensorflow::NodeDef;

void CopyPlacement(const NodeDef& from, NodeDef* to) {
  to->set_device(from.device());
  for (const auto& [name, value] : from.attr()) {
    if (!name.empty() && name[0] == '_' && name != "_output_shapes" && name != "_kernel" &&
        name.rfind("_grappler", 0) != 0) {
      (*to->mutable_attr())[name] = value;
    }
  }
}

void SetType(NodeDef* def, const char* attr, DataType type) {
  (*def->mutable_attr())[attr].set_type(type);
}

void SetInput(GraphView* view, int node, int slot, TensorId tensor) {
  const NodeDef def = view->def(node);
  std::vector<TensorId> inputs = view->inputs(node);
  inputs[slot] = tensor;
  view->ReplaceNode(node, def, inputs, view->control_inputs(node));
}

void ReadShapeOf(GraphView* view, int node, TensorId tensor, DataType type) {
  SetType(view->mutable_def(node), "T", type);
  SetInput(view, node, 0, tensor);
}

TensorId ParameterBehindViews(const GraphView& view, TensorId tensor) {
  while (true) {
    const int node = tensor.node;
    if (!view.control_inputs(node).empty()) return tensor;
    if (HasOwnGradient(view, node)) return tensor;
    if (!IsWideningCast(view, node) && !IsPlainView(view.op(node))) return tensor;
    tensor = view.inputs(node)[0];
  }
}

namespace {

NodeDef ReshapeDef(const NodeDef& like, DataType type, DataType shape_type) {
  NodeDef def;
  def.set_op("Reshape");
  CopyPlacement(like, &def);
  SetType(&def, "T", type);
  SetType(&def, "Tshape", shape_type);
  return def;
}

TensorId PutReshape(GraphView* view, Shapes* shapes, TensorId tensor, TensorId shape_tensor,
                    DataType shape_type, const TensorInfo& info, int like, int in_place_of) {
  NodeDef reshape = ReshapeDef(view->def(like), info.dtype, shape_type);
  int node = in_place_of;
  if (node >= 0) {
    view->ReplaceNode(node, reshape, {tensor, shape_tensor}, {});
  } else {
    reshape.set_name(view->UniqueName(view->name(like) + "/reshape"));
    node = view->AddNode(reshape, {tensor, shape_tensor}, {}, like);
  }
  shapes->Set(node, {info});
  return {node, 0};
}

// Of a node that goes where the node `like` is, and is named after it.
NodeDef DefBeside(const GraphView& view, const char* op, const char* suffix, int like) {
  NodeDef def;
  def.set_op(op);
  def.set_name(view.UniqueName(view.name(like) + suffix));
  def.set_device(view.def(like).device());
  return def;
}

TensorId AddShape(GraphView* view, Shapes* shapes, TensorId tensor, int like) {
  NodeDef shape = DefBeside(*view, "Shape", "/shape", like);
  const TensorInfo info = shapes->Get(tensor);
  SetType(&shape, "T", info.dtype);
  SetType(&shape, "out_type", tensorflow::DT_INT32);
  const int node = view->AddNode(shape, {tensor}, {}, like);
  const int64_t rank = info.rank_known ? static_cast<int64_t>(info.dims.size()) : -1;
  shapes->Set(node, {{tensorflow::DT_INT32, true, {rank}}});
  return {node, 0};
}

// A sum, or a product, with a part; without a name.
NodeDef JoinDef(const GraphView& view, const Part& part, bool factors, DataType type, int like) {
  NodeDef join;
  join.set_op(factors ? (part.inverted ? "RealDiv" : "Mul") : (part.inverted ? "Sub" : "AddV2"));
  CopyPlacement(view.def(like), &join);
  SetType(&join, "T", type);
  return join;
}

}  // namespace

void AddControls(const GraphView& view, int node, std::vector<int>* controls) {
  for (int control : view.control_inputs(node)) {
    if (std::find(controls->begin(), controls->end(), control) == controls->end()) {
      controls->push_back(control);
    }
  }
}

std::vector<int> ControlsOf(const GraphView& view, const std::vector<int>& core,
                            const std::vector<TensorId>& parameters,
                            const std::vector<TensorId>& kept) {
  constexpr int kMostHops = 8;
  std::vector<int> controls;
  std::unordered_set<int> seen;
  for (TensorId tensor : kept) seen.insert(tensor.node);
  std::vector<int> level;
  for (TensorId tensor : parameters) {
    if (tensor.valid()) level.push_back(tensor.node);
  }
  for (int node : core) {
    AddControls(view, node, &controls);
    for (const TensorId& input : view.inputs(node)) level.push_back(input.node);
  }
  for (int hop = 0; hop < kMostHops && !level.empty(); ++hop) {
    std::vector<int> next;
    for (int node : level) {
      if (!IsPure(view.op(node)) || !seen.insert(node).second) continue;
      AddControls(view, node, &controls);
      for (const TensorId& input : view.inputs(node)) next.push_back(input.node);
    }
    level = std::move(next);
  }
  return controls;
}

TensorId AddConstant(GraphView* view, Shapes* shapes, const IntTensor& ints, DataType type,
                     const std::string& name, const std::string& device, int like,
                     std::vector<int> waits_for) {
  NodeDef def;
  def.set_op("Const");
  def.set_name(view->UniqueName(name));
  def.set_device(device);
  SetType(&def, "dtype", type);
  auto* tensor = (*def.mutable_attr())["value"].mutable_tensor();
  tensor->set_dtype(type);
  tensor->mutable_tensor_shape();
  const int64_t count = static_cast<int64_t>(ints.values.size());
  if (!ints.scalar) tensor->mutable_tensor_shape()->add_dim()->set_size(count);
  for (int64_t value : ints.values) {
    if (type == tensorflow::DT_INT32) {
      tensor->add_int_val(static_cast<int32_t>(value));
    } else {
      tensor->add_int64_val(value);
    }
  }
  const int node = view->AddNode(def, {}, waits_for, like);
  shapes->Set(node, {{type, true, ints.scalar ? std::vector<int64_t>{} : std::vector{count}}});
  return {node, 0};
}

TensorInfo WithShapeOf(TensorInfo info, const TensorInfo& shaped) {
  info.rank_known = shaped.rank_known;
  info.dims = shaped.dims;
  return info;
}

TensorId AddReshape(GraphView* view, Shapes* shapes, TensorId tensor,
                    const std::vector<int64_t>& shape, int like, int in_place_of) {
  // The constant waits for the tensor: in a loop it has to be in the loop's frame. Its type is that
  // of TensorFlow's own shapes, which are on the host of a GPU, where the sizes fit.
  IntTensor sizes{/*scalar=*/false, shape};
  DataType of_sizes = tensorflow::DT_INT32;
  for (int64_t& size : sizes.values) {
    size = std::max<int64_t>(size, -1);
    if (size > std::numeric_limits<int32_t>::max()) of_sizes = tensorflow::DT_INT64;
  }
  const TensorId shape_tensor =
      AddConstant(view, shapes, sizes, of_sizes, view->name(like) + "/shape",
                  view->def(like).device(), like, {tensor.node});
  const DataType type = shapes->Get(tensor).dtype;
  return PutReshape(view, shapes, tensor, shape_tensor, of_sizes, {type, true, shape}, like,
                    in_place_of);
}

TensorId AddReshapeLike(GraphView* view, Shapes* shapes, TensorId tensor, TensorId shaped, int like,
                        int in_place_of) {
  const TensorInfo info = shapes->Get(shaped);
  const TensorId shape_tensor = AddShape(view, shapes, shaped, like);
  const DataType type = shapes->Get(tensor).dtype;
  return PutReshape(view, shapes, tensor, shape_tensor, tensorflow::DT_INT32,
                    {type, info.rank_known, info.dims}, like, in_place_of);
}

TensorId AddSumLike(GraphView* view, Shapes* shapes, TensorId tensor, TensorId shaped, int like,
                    int in_place_of) {
  const TensorId small = AddShape(view, shapes, shaped, like);
  const TensorId large = AddShape(view, shapes, tensor, like);
  NodeDef axes = DefBeside(*view, "BroadcastGradientArgs", "/axes", like);
  SetType(&axes, "T", tensorflow::DT_INT32);
  const TensorId axes_tensor{view->AddNode(axes, {small, large}, {}, like), 0};
  const TensorInfo some{tensorflow::DT_INT32, true, {-1}};
  shapes->Set(axes_tensor.node, {some, some});
  NodeDef sum = DefBeside(*view, "Sum", "/sum", like);
  CopyPlacement(view->def(like), &sum);
  const DataType type = shapes->Get(tensor).dtype;
  SetType(&sum, "T", type);
  SetType(&sum, "Tidx", tensorflow::DT_INT32);
  (*sum.mutable_attr())["keep_dims"].set_b(false);
  const TensorId summed{view->AddNode(sum, {tensor, axes_tensor}, {}, like), 0};
  shapes->Set(summed.node, {{type, false, {}}});
  return PutReshape(view, shapes, summed, small, tensorflow::DT_INT32,
                    WithShapeOf({type, false, {}}, shapes->Get(shaped)), like, in_place_of);
}

TensorId AddReshapeToSplit(GraphView* view, Shapes* shapes, TensorId tensor,
                           const ForwardMatch& match, int like, int in_place_of) {
  const auto& shape = match.problem.split_shape;
  if (shape.empty()) return AddReshapeLike(view, shapes, tensor, match.x, like, in_place_of);
  return AddReshape(view, shapes, tensor, shape, like, in_place_of);
}

TensorId AddTranspose(GraphView* view, Shapes* shapes, TensorId tensor,
                      const std::vector<int64_t>& order, int like) {
  const TensorId order_tensor =
      AddConstant(view, shapes, {/*scalar=*/false, order}, tensorflow::DT_INT32,
                  view->name(like) + "/order", view->def(like).device(), like, {tensor.node});
  TensorInfo info = shapes->Get(tensor);
  NodeDef def = DefBeside(*view, "Transpose", "/transpose", like);
  SetType(&def, "T", info.dtype);
  SetType(&def, "Tperm", tensorflow::DT_INT32);
  const TensorId transposed{view->AddNode(def, {tensor, order_tensor}, {}, like), 0};
  const std::vector<int64_t> dims = info.dims;
  for (size_t i = 0; i < dims.size(); ++i) info.dims[i] = dims[order[i]];
  shapes->Set(transposed.node, {info});
  return transposed;
}

TensorId AddCast(GraphView* view, Shapes* shapes, TensorId tensor, DataType to, int like) {
  NodeDef def = DefBeside(*view, "Cast", "/cast", like);
  const TensorInfo info = shapes->Get(tensor);
  SetType(&def, "SrcT", info.dtype);
  SetType(&def, "DstT", to);
  (*def.mutable_attr())["Truncate"].set_b(false);
  const TensorId cast{view->AddNode(def, {tensor}, {}, like), 0};
  shapes->Set(cast.node, {{to, info.rank_known, info.dims}});
  return cast;
}

TensorId AddFactor(GraphView* view, Shapes* shapes, TensorId tensor, const Part& factor, int like) {
  const TensorInfo info = shapes->Get(tensor);
  NodeDef product = JoinDef(*view, factor, /*factors=*/true, info.dtype, like);
  product.set_name(view->UniqueName(view->name(like) + "/factor"));
  const TensorId made{view->AddNode(product, {tensor, factor.tensor}, {}, like), 0};
  shapes->Set(made.node, {info});
  return made;
}

void JoinParts(GraphView* view, Shapes* shapes, TensorId first, const std::vector<Part>& parts,
               bool factors, int in_place_of) {
  const TensorInfo info = shapes->Get(TensorId{in_place_of, 0});
  TensorId sum = first;
  for (size_t i = 0; i < parts.size(); ++i) {
    NodeDef join = JoinDef(*view, parts[i], factors, info.dtype, in_place_of);
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

void RemoveDeadReaders(GraphView* view, int node) {
  std::vector<int> dead;
  std::set<int> seen;
  const auto add = [&](int reader) {
    if (!view->live(reader) && seen.insert(reader).second) dead.push_back(reader);
  };
  for (const Consumer& c : view->consumers(node)) add(c.node);
  for (size_t i = 0; i < dead.size(); ++i) {
    for (const Consumer& c : view->consumers(dead[i])) add(c.node);
    for (int waiter : view->control_consumers(dead[i])) add(waiter);
  }
  for (int each : dead) view->RemoveNode(each);
}

void RemoveReplaced(GraphView* view, int node, const std::vector<int>& instead) {
  const std::vector<int> waiting = view->control_consumers(node);
  for (int waiter : waiting) {
    for (int other : instead) view->AddControlInput(waiter, other);
  }
  view->DropControlConsumers(node);
  view->RemoveNode(node);
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
        return IsSwitchOrMerge(view->op(input));
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
