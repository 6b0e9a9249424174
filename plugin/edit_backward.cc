#include <algorithm>
#include <utility>

#include "plugin/edit.h"
#include "plugin/edit_steps.h"
#include "plugin/graph/constants.h"
#include "plugin/recognizer/ops.h"
#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/node_def.pb.h"

namespace nv_norms {
namespace {

using tensorflow::DataType;
using tensorflow::NodeDef;

std::unordered_set<int> NodesOf(const std::vector<TensorId>& tensors) {
  std::unordered_set<int> nodes;
  for (TensorId tensor : tensors) nodes.insert(tensor.node);
  return nodes;
}

// Where the fused gradient stands, and whose device and name it takes: its first output.
int Place(const GraphView& view, const BackwardMatch& match) {
  const std::vector<TensorId> outputs = match.outputs();
  return std::min_element(
             outputs.begin(), outputs.end(),
             [&](TensorId a, TensorId b) { return view.order(a.node) < view.order(b.node); })
      ->node;
}

// Of a parameter's gradient as the fused op gives it: x's sizes along the axes, -1 where unknown,
// or the channels; of each sample if they have parameters of their own.
std::vector<int64_t> ParameterShape(const ForwardMatch& forward, const TensorInfo& x) {
  const Problem& problem = forward.problem;
  const bool over_axes = problem.kind == Kind::kLayerNorm || problem.kind == Kind::kRmsNorm;
  if (!over_axes && !problem.per_sample) return {-1};
  if (!over_axes) {
    const bool last = problem.data_format == "N...C";
    return {x.dims.front(), last ? x.dims.back() : x.dims[1]};
  }
  std::vector<int64_t> shape;
  const int rank = x.rank_known ? static_cast<int>(x.dims.size()) : 0;
  for (int axis : problem.axes) {
    const int at = axis < 0 ? axis + rank : axis;
    shape.push_back(at >= 0 && at < rank ? x.dims[at] : -1);
  }
  if (problem.per_sample) shape.insert(shape.begin(), rank > 0 ? x.dims[0] : -1);
  return shape;
}

NodeDef GradientDef(const GraphView& view, const Shapes& shapes, const ForwardMatch& forward,
                    const BackwardMatch& backward, TensorId gamma, int fused, int place) {
  NodeDef def;
  def.set_op(std::string(OpName(forward)) + "Grad");
  def.set_name(view.UniqueName(view.name(place) + "/" + def.op()));
  CopyPlacement(view.def(place), &def);
  auto& attr = *def.mutable_attr();
  for (const char* name :
       {"T", "P", "U", "axis", "data_format", "groups", "subtract_mean", "per_sample"}) {
    auto found = view.def(fused).attr().find(name);
    if (found != view.def(fused).attr().end()) attr[name] = found->second;
  }
  if (attr.count("data_format") > 0) {
    attr["num_offset"].set_i(0);
    attr["negative_slope"].set_f(1);
    attr["silu"].set_b(false);
  }
  attr["num_scale"].set_i(gamma.valid() ? 1 : 0);
  if (gamma.valid()) SetType(&def, "P", shapes.Get(gamma).dtype);
  SetType(&def, "Y", shapes.Get(backward.dy).dtype);
  SetType(&def, "dx_type", shapes.Get(backward.dx.valid() ? backward.dx : forward.x).dtype);
  const TensorId parameter = backward.dgamma.valid() ? backward.dgamma : backward.dbeta;
  SetType(&def, "param_type",
          parameter.valid() ? shapes.Get(parameter).dtype : tensorflow::DT_FLOAT);
  attr["num_dx"].set_i(backward.dx.valid() ? 1 : 0);
  attr["num_dscale"].set_i(backward.dgamma.valid() ? 1 : 0);
  attr["num_doffset"].set_i(backward.dbeta.valid() ? 1 : 0);
  return def;
}

bool HasShapeForReshape(const TensorInfo& info) {
  const auto unknown =
      std::count_if(info.dims.begin(), info.dims.end(), [](int64_t size) { return size < 0; });
  return info.rank_known && unknown <= 1;
}

// Whether dx may have any shape: all that reads it are Reshapes of it.
bool IsOnlyReshaped(const GraphView& view, const BackwardMatch& backward,
                    const std::function<bool(int)>& keep) {
  const int node = backward.dx.node;
  const auto& consumers = view.consumers(node);
  return backward.parts.empty() && !keep(node) &&
         std::all_of(consumers.begin(), consumers.end(), [&](const Consumer& c) {
           return view.op(c.node) == "Reshape" && c.slot == 0;
         });
}

// Makes the node `place` hand on `tensor`, which has the type and shape of what it gave.
void PutIdentity(GraphView* view, Shapes* shapes, TensorId tensor, int place) {
  const TensorInfo info = shapes->Get({place, 0});
  NodeDef identity;
  identity.set_op("Identity");
  CopyPlacement(view->def(place), &identity);
  SetType(&identity, "T", info.dtype);
  view->ReplaceNode(place, identity, {tensor}, {});
  shapes->Set(place, {info});
}

// Puts a parameter's gradient, which the fused op gives in the shape `made`, into the place of the
// graph's Sum, of `shape` (empty: any will do). `like`: a parameter that may have one sample, over
// which the gradient is then summed; not valid() if that is known.
void PutParameter(GraphView* view, Shapes* shapes, TensorId gradient, TensorId sum,
                  const std::vector<int64_t>& shape, const std::vector<int64_t>& made,
                  TensorId like) {
  const TensorInfo info = shapes->Get(sum);
  const int place = sum.node;
  std::vector<TensorInfo> outputs;
  for (int port = 0; port < gradient.port; ++port) {
    outputs.push_back(shapes->Get({gradient.node, port}));
  }
  outputs.push_back({info.dtype, false, {}});
  shapes->Set(gradient.node, outputs);
  if (like.valid()) {
    std::vector<int64_t> of_all = made;
    of_all.front() = -1;
    const TensorId of_samples = AddReshape(view, shapes, like, of_all, place, -1);
    gradient = AddSumLike(view, shapes, gradient, of_samples, place, -1);
  }
  // As many numbers in one axis are the same shape.
  const bool same = shape == made || (shape.size() == 1 && made.size() == 1);
  if (!shape.empty() && !same) {
    AddReshape(view, shapes, gradient, shape, place, place);
    return;
  }
  PutIdentity(view, shapes, gradient, place);
}

// Whether somebody reads other outputs of an op that gives a gradient, which ours does not give:
// the dscale of a FusedBatchNormGradV3, say.
bool HasOtherOutputs(const GraphView& view, TensorId gradient,
                     const std::function<bool(int)>& keep) {
  if (gradient.port != 0) return true;
  if (ClassOf(view.op(gradient.node)) != OpClass::kNormGrad) return false;
  const auto& consumers = view.consumers(gradient.node);
  return keep(gradient.node) || std::any_of(consumers.begin(), consumers.end(),
                                            [](const Consumer& c) { return c.port != 0; });
}

}  // namespace

Reason CheckBackward(const GraphView& view, const Shapes& shapes, const ForwardMatch& forward,
                     const BackwardMatch& backward, const std::function<bool(int)>& keep) {
  const std::string& device = view.def(forward.y.node).device();
  for (int node : backward.core) {
    if (view.def(node).device() != device) return Reason::kOtherDevice;
  }
  for (TensorId tensor :
       {backward.dy, backward.dx, backward.dgamma, backward.dbeta, backward.gamma}) {
    if (tensor.valid() && !IsFloat(shapes.Get(tensor).dtype)) return Reason::kUnsupportedType;
  }
  if (backward.dx.valid() && backward.reshape_dx && !HasShapeForReshape(shapes.Get(backward.dx)) &&
      !IsOnlyReshaped(view, backward, keep)) {
    return Reason::kSizesUnknown;
  }
  const std::vector<TensorId> made = backward.outputs();
  const bool all_alive = std::all_of(made.begin(), made.end(),
                                     [&](TensorId tensor) { return view.alive(tensor.node); });
  if (!all_alive) return Reason::kNobodyReadsIt;  // another match has taken its place
  for (TensorId tensor : made) {
    if (HasOtherOutputs(view, tensor, keep)) return Reason::kNoGradient;
  }
  // The fused gradient reads dy and the fused forward, which reads x, gamma and beta and waits for
  // what its nodes waited for; none of these may come from what the gradient gives.
  const std::unordered_set<int> outputs = NodesOf(made);
  const TensorId y = forward.lone ? TensorId() : forward.y;
  std::vector<TensorId> read = {backward.dy,  forward.x,      forward.gamma,
                                forward.beta, backward.gamma, y};
  for (const Part& factor : backward.factors) read.push_back(factor.tensor);
  for (TensorId tensor : read) {
    if (tensor.valid() && view.DependsOn(tensor.node, outputs)) return Reason::kNoGradient;
  }
  for (int node : forward.core) {
    for (int control : view.control_inputs(node)) {
      if (view.DependsOn(control, outputs)) return Reason::kNoGradient;
    }
  }
  return Reason::kNone;
}

TensorId ApplyBackward(GraphView* view, Shapes* shapes, const ForwardMatch& forward,
                       const BackwardMatch& backward, int fused,
                       const std::function<bool(int)>& keep) {
  const int place = Place(*view, backward);
  TensorId gamma;
  if (backward.gamma.valid()) {
    gamma = backward.gamma == forward.gamma ? view->inputs(fused)[1]
                                            : ParameterBehindViews(*view, backward.gamma);
  }
  const NodeDef def = GradientDef(*view, *shapes, forward, backward, gamma, fused, place);
  const bool merged = !forward.problem.merged_shape.empty();
  TensorId dy = backward.dy;
  for (const Part& factor : backward.factors) dy = AddFactor(view, shapes, dy, factor, place);
  // Which in batches of unknown size may have more samples than x.
  const TensorId y_of_op = forward.open_samples ? TensorId{fused, 0} : forward.x;
  if (backward.sum_dy) dy = AddSumLike(view, shapes, dy, y_of_op, place, -1);
  if (merged) {
    dy = AddReshape(view, shapes, dy, forward.problem.merged_shape, place, -1);
  } else if (backward.reshape_dy) {
    dy = AddReshapeLike(view, shapes, dy, forward.x, place, -1);
  }
  std::vector<TensorId> inputs = {dy, view->inputs(fused)[0]};
  if (gamma.valid()) inputs.push_back(gamma);
  inputs.push_back({fused, 1});
  if (forward.problem.kind != Kind::kRmsNorm) inputs.push_back({fused, 2});

  const std::unordered_set<int> outputs = NodesOf(backward.outputs());
  std::vector<int> controls = ControlsOf(*view, backward.core, {backward.gamma}, inputs);
  std::vector<int> read;
  for (int node : backward.core) {
    for (const TensorId& input : view->inputs(node)) read.push_back(input.node);
    read.push_back(node);
  }
  // What one output waits for may come from another, which the op gives with it.
  std::vector<std::pair<int, int>> late;
  const auto comes_later = [&](int control) {
    if (std::find(backward.core.begin(), backward.core.end(), control) != backward.core.end()) {
      return true;
    }
    if (!view->DependsOn(control, outputs)) return false;
    for (TensorId output : backward.outputs()) {
      if (view->DependsOn(output.node, {control})) late.emplace_back(output.node, control);
    }
    return true;
  };
  controls.erase(std::remove_if(controls.begin(), controls.end(), comes_later), controls.end());
  const int gradient = view->AddNode(def, inputs, controls, place);
  int port = 0;
  TensorId dx;
  if (backward.dx.valid()) {
    const TensorInfo info = shapes->Get(backward.dx);
    // The op's dx has the shape of the x that it reads; a Reshape or parts behind it make the
    // graph's.
    TensorInfo op_info = info;
    const bool turned = !backward.dx_order.empty();
    if (merged || backward.reshape_dx || turned || !backward.parts.empty()) {
      op_info = WithShapeOf(op_info, shapes->Get(inputs[1]));
    }
    shapes->Set(gradient, {op_info});
    dx = {gradient, port++};
    const int node = backward.dx.node;
    const bool last = backward.parts.empty();
    const bool any_shape = backward.reshape_dx && !HasShapeForReshape(info);
    if (any_shape) {
      PutIdentity(view, shapes, dx, node);
    } else if (merged || backward.reshape_dx) {
      // Where dx has another shape than x, that one; else x's own, from before it was merged.
      const int in_place_of = last ? node : -1;
      dx = backward.reshape_dx ? AddReshape(view, shapes, dx, info.dims, node, in_place_of)
                               : AddReshapeToSplit(view, shapes, dx, forward, node, in_place_of);
    } else {
      if (turned) dx = AddTranspose(view, shapes, dx, backward.dx_order, node);
      if (last) PutIdentity(view, shapes, dx, node);
    }
    if (!last) JoinParts(view, shapes, dx, backward.parts, /*factors=*/false, node);
    shapes->Set(node, {any_shape ? op_info : info});
  }
  const std::vector<int64_t> made = ParameterShape(forward, shapes->Get(inputs[1]));
  const auto like = [&](int slot) {
    return forward.open_samples ? view->inputs(fused)[slot] : TensorId();
  };
  if (backward.dgamma.valid()) {
    PutParameter(view, shapes, {gradient, port++}, backward.dgamma, backward.dgamma_shape, made,
                 like(1));
  }
  if (backward.dbeta.valid()) {
    PutParameter(view, shapes, {gradient, port++}, backward.dbeta, backward.dbeta_shape, made,
                 like(forward.gamma.valid() ? 2 : 1));
  }
  for (const auto& [output, control] : late) view->AddControlInput(output, control);
  RemoveUnread(view, read, keep);
  return dx;
}

void PutBeside(const BackwardMatch& applied, TensorId dx, BackwardMatch* later) {
  if (applied.terms.empty() || later->dx != applied.dx) return;
  for (const Part& term : applied.terms) {
    later->parts.erase(std::find(later->parts.begin(), later->parts.end(), term));
  }
  later->parts.push_back({dx, /*inverted=*/false});
}

}  // namespace nv_norms
