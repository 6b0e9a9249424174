#include "plugin/modulations/take_in.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "plugin/activations/candidates.h"
#include "plugin/edit_steps.h"
#include "plugin/graph/constants.h"
#include "plugin/graph/devices.h"
#include "plugin/modulations/candidates.h"
#include "plugin/records_of.h"
#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/logging.h"

namespace nv_norms {
namespace {

using tensorflow::DataType;
using tensorflow::NodeDef;

// Op by op, the small ops that make the parameters' gradients take longer than those of a small y's
// size that they replace. A step of a group norm, scaled and shifted, on an H100: float32 0.5 MiB
// 0.131 -> 0.218 ms, 2 MiB 0.152 -> 0.236, 8 MiB 0.233 -> 0.223, 32 MiB 1.24 -> 0.44; float16 1 MiB
// 0.174 -> 0.184, 4 MiB 0.52 -> 0.24. Without gradients, inside XLA and on CPUs they never do.
constexpr int64_t kLeastBytes = int64_t{4} << 20;

bool IsSmall(const GraphView& view, const Shapes& shapes, const ModulatedNorm& found) {
  const TensorInfo& y = shapes.Get({found.norm, 0});
  const std::string& device = view.def(found.norm).device();
  if (found.gradients.empty() || !IsKnown(y) || device.empty() || !OnDevice(device, "GPU")) {
    return false;
  }
  double bytes = tensorflow::DataTypeSize(y.dtype);  // more than 2^63 in a graph that cannot run
  for (const int64_t dim : y.dims) bytes *= static_cast<double>(dim);
  return bytes < kLeastBytes;
}

bool Contains(const std::vector<int>& nodes, int node) {
  return std::find(nodes.begin(), nodes.end(), node) != nodes.end();
}

// Adds sums, products and the like of the few numbers that parameters are, next to a node.
class Arithmetic {
 public:
  Arithmetic(GraphView* view, Shapes* shapes, DataType type, int like)
      : view_(view), shapes_(shapes), type_(type), like_(like) {}

  TensorId Cast(TensorId tensor, DataType to) const {
    return shapes_->Get(tensor).dtype == to ? tensor : AddCast(view_, shapes_, tensor, to, like_);
  }

  // In this type and these dimensions.
  TensorId As(TensorId tensor, const std::vector<int64_t>& dims) const {
    tensor = Cast(tensor, type_);
    const TensorInfo& info = shapes_->Get(tensor);
    if (info.rank_known && info.dims == dims) return tensor;
    return AddReshape(view_, shapes_, tensor, dims, like_, -1);
  }

  // The product, or the sum, of what there is of the two.
  TensorId Times(TensorId a, TensorId b) const { return Join("Mul", a, b); }
  TensorId Plus(TensorId a, TensorId b) const { return Join("AddV2", a, b); }

  TensorId SumOverSamples(TensorId tensor) const {
    const TensorId axis = AddConstant(view_, shapes_, {/*scalar=*/false, {0}}, tensorflow::DT_INT32,
                                      view_->name(like_) + "/samples", view_->def(like_).device(),
                                      like_, {tensor.node});
    NodeDef def = Def("Sum");
    SetType(&def, "Tidx", tensorflow::DT_INT32);
    (*def.mutable_attr())["keep_dims"].set_b(false);
    std::vector<int64_t> dims = shapes_->Get(tensor).dims;
    dims.erase(dims.begin());
    return Add(def, {tensor, axis}, dims);
  }

 private:
  TensorId Join(const char* op, TensorId a, TensorId b) const {
    if (!a.valid() || !b.valid()) return a.valid() ? a : b;
    const std::vector<int64_t>& of_a = shapes_->Get(a).dims;
    const std::vector<int64_t>& of_b = shapes_->Get(b).dims;
    std::vector<int64_t> dims = of_a.size() >= of_b.size() ? of_a : of_b;
    // Of samples of which there are as many, or of which one stands for all.
    if (of_a.size() == of_b.size() && of_a != of_b) dims[0] = -1;
    return Add(Def(op), {a, b}, dims);
  }

  NodeDef Def(const char* op) const {
    NodeDef def;
    def.set_op(op);
    def.set_name(view_->UniqueName(view_->name(like_) + "/of_samples"));
    def.set_device(view_->def(like_).device());
    SetType(&def, "T", type_);
    return def;
  }

  TensorId Add(const NodeDef& def, const std::vector<TensorId>& inputs,
               const std::vector<int64_t>& dims) const {
    const int node = view_->AddNode(def, inputs, {}, like_);
    shapes_->Set(node, {{type_, true, dims}});
    return {node, 0};
  }

  GraphView* view_;
  Shapes* shapes_;
  const DataType type_;
  const int like_;
};

class Editor {
 public:
  Editor(GraphView* view, Shapes* shapes, const std::function<bool(int)>& keep,
         std::vector<Record>* records, ModulatedNorm found)
      : view_(view), shapes_(shapes), keep_(keep), records_(records), found_(std::move(found)) {
    const std::vector<TensorId>& inputs = view->inputs(found_.norm);
    x_ = inputs[0];
    size_t next = 1;
    if (view->GetInt(found_.norm, "num_scale", 0) > 0) gamma_ = inputs[next++];
    if (view->GetInt(found_.norm, "num_offset", 0) > 0) beta_ = inputs[next];
    const DataType of_x = view->GetType(found_.norm, "T");
    type_ = of_x == tensorflow::DT_DOUBLE ? of_x : view->GetType(found_.norm, "P");
    if (IsNarrow(type_)) type_ = tensorflow::DT_FLOAT;
    of_all_ = found_.parameters.sizes;
    of_each_ = of_all_;
    of_each_.insert(of_each_.begin(), std::max<int64_t>(found_.parameters.y[0], -1));
    broadcast_ = found_.parameters.Dims(1);
    const auto first =
        std::find(found_.parameters.varies.begin(), found_.parameters.varies.end(), true);
    broadcast_.erase(broadcast_.begin(),
                     broadcast_.begin() + (first - found_.parameters.varies.begin()));
  }

  void Apply() {
    const int norm = found_.norm, result = found_.result();
    VLOG(2) << "Take " << view_->name(found_.product >= 0 ? found_.product : result)
            << (found_.product >= 0 && found_.sum >= 0 ? " and " + view_->name(result) : "")
            << " into " << view_->name(norm) << ": of each sample, " << found_.gradients.size()
            << " gradients";
    Report();
    RemoveDeadReaders(view_, norm);
    for (int product : found_.dy_products) RemoveDeadReaders(view_, product);
    if (found_.sum >= 0 && found_.product >= 0) RemoveDeadReaders(view_, found_.product);
    for (int shape : found_.shapes) ReadShapeOfX(shape);
    PutNorm();
    for (const ModulatedGradient& gradient : found_.gradients) PutGradient(gradient);
    for (const auto* shapes : {&found_.shapes, &found_.product_shapes}) {
      read_.insert(read_.end(), shapes->begin(), shapes->end());
    }
    RemoveUnread(view_, read_, keep_);
    for (int shape : found_.product_shapes) {
      if (view_->alive(shape)) ReadShapeOfProduct(shape);
    }
    if (found_.sum >= 0 && found_.product >= 0) RemoveReplaced(view_, found_.product, {result});
    RemoveReplaced(view_, norm, {result});
  }

 private:
  void Report() {
    std::vector<int> gradients;
    std::map<int, TensorId> dy_of;
    for (const ModulatedGradient& gradient : found_.gradients) {
      gradients.push_back(gradient.gradient);
      dy_of[gradient.gradient] = gradient.dy;
    }
    ForRecordsOf(
        *view_, found_.norm, gradients, records_,
        [&](Record* record) { record->outputs[0] = view_->name(TensorId{found_.result(), 0}); },
        [&](Record* record, int gradient) { record->inputs[0] = view_->name(dy_of.at(gradient)); });
  }

  void ReadShapeOfX(int shape) { ReadShapeOf(view_, shape, x_, view_->GetType(found_.norm, "T")); }

  // That of y * scale, of which one may have a sample that stands for all.
  void ReadShapeOfProduct(int shape) {
    NodeDef def = view_->def(shape);
    const bool known = IsKnown(shapes_->Get(x_)) && IsKnown(shapes_->Get(found_.scale));
    if (known) return ReadShapeOfX(shape);
    NodeDef of_one = def;
    std::vector<TensorId> sizes;
    for (const TensorId tensor : {x_, found_.scale}) {
      of_one.set_name(view_->UniqueName(view_->name(shape) + "/shape"));
      SetType(&of_one, "T", shapes_->Get(tensor).dtype);
      sizes.push_back({view_->AddNode(of_one, {tensor}, {}, shape), 0});
      shapes_->Set(sizes.back().node, {shapes_->Get({shape, 0})});
    }
    def.set_op("BroadcastArgs");
    SetType(&def, "T", tensorflow::DT_INT32);
    def.mutable_attr()->erase("out_type");
    view_->ReplaceNode(shape, def, sizes, view_->control_inputs(shape));
  }

  void PutNorm() {
    const int norm = found_.norm, result = found_.result();
    const Arithmetic few(view_, shapes_, type_, result);
    const TensorId gamma = gamma_.valid() ? few.As(gamma_, broadcast_) : TensorId();
    const TensorId beta = beta_.valid() ? few.As(beta_, broadcast_) : TensorId();
    if (found_.scale.valid()) scale_ = few.Cast(found_.scale, type_);
    const TensorId offset = found_.offset.valid() ? few.Cast(found_.offset, type_) : TensorId();
    scale_of_op_ = few.Times(scale_, gamma);
    const TensorId offset_of_op =
        few.Plus(beta.valid() ? few.Times(scale_, beta) : TensorId(), offset);

    NodeDef def = view_->def(norm);
    auto& attr = *def.mutable_attr();
    attr.erase("_class");
    CopyPlacement(view_->def(result), &def);
    SetType(&def, "P", type_);
    attr["num_scale"].set_i(scale_of_op_.valid() ? 1 : 0);
    attr["num_offset"].set_i(offset_of_op.valid() ? 1 : 0);
    attr["per_sample"].set_b(true);
    std::vector<TensorId> inputs = {x_};
    for (const TensorId& parameter : {scale_of_op_, offset_of_op}) {
      if (parameter.valid()) inputs.push_back(parameter);
    }
    std::vector<int> controls = view_->control_inputs(norm);
    for (int node : {found_.product, found_.sum}) {
      if (node >= 0) AddControls(*view_, node, &controls);
    }
    const TensorInfo y = shapes_->Get({result, 0});
    const TensorInfo statistics{view_->GetType(norm, "U"), false, {}};
    view_->ReplaceNode(result, def, inputs, controls);
    shapes_->Set(result, {y, statistics, statistics});
  }

  void PutGradient(const ModulatedGradient& gradient) {
    const int node = gradient.gradient;
    NodeDef def = view_->def(node);
    auto& attr = *def.mutable_attr();
    const int dx = static_cast<int>(attr["num_dx"].i());
    const bool had_dscale = attr["num_dscale"].i() > 0, had_doffset = attr["num_doffset"].i() > 0;
    const bool of_scale = !gradient.scale_sums.empty();
    const bool dscale = had_dscale || of_scale;
    const bool doffset =
        had_doffset || (of_scale && beta_.valid()) || !gradient.offset_sums.empty();
    const DataType had_type = attr["param_type"].type();
    attr["num_scale"].set_i(scale_of_op_.valid() ? 1 : 0);
    attr["num_dscale"].set_i(dscale ? 1 : 0);
    attr["num_doffset"].set_i(doffset ? 1 : 0);
    attr["per_sample"].set_b(true);
    SetType(&def, "P", type_);
    SetType(&def, "param_type", type_);
    const TensorInfo dx_info = shapes_->Get({node, 0});

    std::vector<TensorId> inputs = {gradient.dy, x_};
    if (scale_of_op_.valid()) inputs.push_back(scale_of_op_);
    const std::vector<TensorId>& had = view_->inputs(node);
    read_.push_back(had[0].node);
    for (size_t i = gamma_.valid() ? 3 : 2; i < had.size(); ++i) {
      inputs.push_back({found_.result(), had[i].port});
    }
    std::vector<Consumer> readers = view_->consumers(node);
    std::vector<int> controls = view_->control_inputs(node);
    for (int on_the_way : gradient.way) AddControls(*view_, on_the_way, &controls);
    view_->ReplaceNode(node, def, inputs, controls);
    std::vector<TensorInfo> outputs(dx, dx_info);
    outputs.resize(dx + dscale + doffset, {type_, true, of_each_});
    shapes_->Set(node, outputs);

    const TensorId dscale_of_op = dscale ? TensorId{node, dx} : TensorId();
    const TensorId doffset_of_op = doffset ? TensorId{node, dx + dscale} : TensorId();
    const Arithmetic few(view_, shapes_, type_, node);
    const bool scales = found_.scale.valid() && (had_dscale || had_doffset);
    const TensorId scale = scales ? few.As(scale_, of_each_) : TensorId();
    // What read dgamma and dbeta.
    for (const bool of_offset : {false, true}) {
      const int port = dx + (of_offset && had_dscale ? 1 : 0);
      if (!(of_offset ? had_doffset : had_dscale)) continue;
      const TensorId of_each = few.Times(of_offset ? doffset_of_op : dscale_of_op, scale);
      const TensorId of_all = few.Cast(few.SumOverSamples(of_each), had_type);
      for (const Consumer& c : readers) {
        if (c.port == port) SetInput(view_, c.node, c.slot, of_all);
      }
    }
    if (of_scale) {
      const TensorId of_gamma =
          gamma_.valid() ? few.Times(dscale_of_op, few.As(gamma_, of_all_)) : dscale_of_op;
      const TensorId of_beta =
          beta_.valid() ? few.Times(doffset_of_op, few.As(beta_, of_all_)) : TensorId();
      const TensorId ds = few.Plus(of_gamma, of_beta);
      for (const SampleSum& sum : gradient.scale_sums) PutSum(sum, ds);
    }
    for (const SampleSum& sum : gradient.offset_sums) PutSum(sum, doffset_of_op);
  }

  // Puts what is summed for each sample already in the place of a Sum, or of the Reshape behind it.
  void PutSum(const SampleSum& sum, TensorId summed) {
    const int node = sum.node;
    const int of_what = view_->inputs(sum.sum)[0].node;
    std::vector<int> controls;
    for (int waits : {node, sum.sum}) AddControls(*view_, waits, &controls);
    if (Contains(found_.dy_products, of_what)) AddControls(*view_, of_what, &controls);
    for (const TensorId& input : view_->inputs(node)) read_.push_back(input.node);
    const TensorInfo info = shapes_->Get({node, 0});
    if (info.dtype != shapes_->Get(summed).dtype) {
      summed = AddCast(view_, shapes_, summed, info.dtype, node);
    }
    if (sum.shaped.valid()) {
      summed = AddReshape(view_, shapes_, summed, sum.dims, node, -1);
      AddSumLike(view_, shapes_, summed, sum.shaped, node, node);
    } else {
      AddReshape(view_, shapes_, summed, sum.dims, node, node);
    }
    for (int control : controls) view_->AddControlInput(node, control);
    shapes_->Set(node, {info});
  }

  GraphView* view_;
  Shapes* shapes_;
  const std::function<bool(int)>& keep_;
  std::vector<Record>* records_;
  const ModulatedNorm found_;
  TensorId x_, gamma_, beta_;
  DataType type_;  // of the op's parameters and their gradients
  // Dimensions: of gamma, of the op's dscale, and of gamma beside a scale of each sample.
  std::vector<int64_t> of_all_, of_each_, broadcast_;
  TensorId scale_, scale_of_op_;  // that of each sample in type_, and what the op reads
  std::vector<int> read_;         // by what was replaced
};

}  // namespace

bool TakeInModulations(GraphView* view, Shapes* shapes, const std::function<bool(int)>& nodes,
                       const std::function<bool(int)>& keep, bool compiled,
                       std::vector<Record>* records) {
  bool changed = false;
  MarkLiveAroundNorms(view, keep);
  for (int node = 0; node < view->num_nodes(); ++node) {
    if (!nodes(node)) continue;
    auto found = FindModulation(*view, *shapes, node, keep);
    if (!found || (!compiled && IsSmall(*view, *shapes, *found))) continue;
    Editor(view, shapes, keep, records, *std::move(found)).Apply();
    changed = true;
  }
  return changed;
}

}  // namespace nv_norms
