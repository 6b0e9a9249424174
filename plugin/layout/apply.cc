#include "plugin/layout/apply.h"

#include <map>
#include <string>
#include <utility>

#include "plugin/edit_steps.h"
#include "plugin/graph/constants.h"
#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/node_def.pb.h"

namespace nv_norms {
namespace {

using tensorflow::DataType;
using tensorflow::NodeDef;

const char* Suffix(Format to) {
  return to == Format::kFirst ? "/to_channels_first" : "/to_channels_last";
}

class Editor {
 public:
  Editor(GraphView* view, Shapes* shapes, const Region& region, const std::vector<Format>& formats)
      : view_(view), shapes_(shapes), region_(region), formats_(formats) {}

  void Apply(const std::function<bool(int)>& keep) {
    for (const LayoutValue& value : region_.values) {
      const Format produced = FormatOf(formats_, value.member, value.now);
      TensorId converted;
      for (const Reader& reader : value.readers) {
        TensorId wanted = value.tensor;
        if (FormatOf(formats_, reader.member, reader.now) != produced) {
          if (!converted.valid()) converted = Convert(value, produced);
          wanted = converted;
        }
        SetInput(reader.node, reader.slot, wanted);
      }
    }
    std::vector<int> unread;
    for (size_t i = 0; i < region_.members.size(); ++i) {
      const Member& member = region_.members[i];
      if (formats_[i] != member.now) PrepareInputs(member, formats_[i], &unread);
    }
    ReplaceNodes();
    for (size_t i = 0; i < region_.members.size(); ++i) {
      if (formats_[i] != region_.members[i].now) SetShapes(region_.members[i], formats_[i]);
    }
    for (const LayoutValue& value : region_.values) {
      unread.insert(unread.end(), value.conversions.rbegin(), value.conversions.rend());
    }
    RemoveUnread(view_, unread, keep);
  }

 private:
  // What a node reads once the region is replaced, as far as that is settled.
  const std::vector<TensorId>& InputsOf(int node) const {
    const auto found = inputs_.find(node);
    return found == inputs_.end() ? view_->inputs(node) : found->second;
  }

  void SetInput(int node, int slot, TensorId tensor) {
    if (InputsOf(node)[slot] == tensor) return;
    inputs_.emplace(node, view_->inputs(node)).first->second[slot] = tensor;
  }

  TensorId Convert(const LayoutValue& value, Format produced) {
    // A conversion that is there is as good as a new one.
    if (produced == value.now && value.direct > 0) return {value.conversions[0], 0};
    TensorInfo info = shapes_->Get(value.tensor);
    const Format to = Other(produced);
    if (!value.is_vector) {
      // The shape that the producer will give.
      if (produced != value.now) info.dims = Permuted(info.dims, produced);
      info.dims = Permuted(info.dims, to);
    }
    const TensorId converted = value.is_vector ? ConvertVector(value.tensor, info.dtype, to)
                               : value.is_free ? Reshape(value.tensor, info.dims)
                                               : Transpose(value.tensor, info.dtype, to);
    shapes_->Set(converted.node, {info});
    return converted;
  }

  NodeDef NewNode(const char* op, TensorId reads, const std::string& suffix) const {
    NodeDef def;
    def.set_op(op);
    def.set_name(view_->UniqueName(view_->name(reads.node) + suffix));
    CopyPlacement(view_->def(reads.node), &def);
    def.mutable_attr()->erase("_class");
    def.set_device(region_.device);
    return def;
  }

  TensorId Constant(const IntTensor& ints, DataType type, const std::string& name, int like,
                    std::vector<int> waits_for) {
    return AddConstant(view_, shapes_, ints, type, name, region_.device, like,
                       std::move(waits_for));
  }

  TensorId Transpose(TensorId tensor, DataType type, Format to) {
    const std::vector<int> order = PermutationTo(to, region_.rank);
    // It waits for the tensor: in a loop it has to be in the loop's frame.
    const TensorId permutation =
        Constant({false, {order.begin(), order.end()}}, tensorflow::DT_INT32,
                 view_->name(tensor.node) + Suffix(to) + "/perm", tensor.node, {tensor.node});
    NodeDef def = NewNode("Transpose", tensor, Suffix(to));
    SetType(&def, "T", type);
    SetType(&def, "Tperm", tensorflow::DT_INT32);
    return {view_->AddNode(def, {tensor, permutation}, {}, tensor.node), 0};
  }

  TensorId Reshape(TensorId tensor, const std::vector<int64_t>& shape) {
    return AddReshape(view_, shapes_, tensor, shape, tensor.node, -1);
  }

  // A constant in the place of what a node computes has to be in its frame, as in a loop.
  std::vector<int> WaitsFor(int node) const {
    if (view_->op(node) != "Const") return {node};
    return view_->control_inputs(node);
  }

  TensorId ConvertVector(TensorId tensor, DataType type, Format to) {
    const std::string name = view_->name(tensor.node) + Suffix(to);
    if (auto ints = IntConstant(*view_, tensor.node)) {
      ints->values = Permuted(ints->values, to);
      return Constant(*ints, type, name, tensor.node, WaitsFor(tensor.node));
    }
    NodeDef def = NewNode("DataFormatVecPermute", tensor, Suffix(to));
    SetType(&def, "T", type);
    auto& attr = *def.mutable_attr();
    attr["src_format"].set_s(FormatName(Other(to), region_.rank));
    attr["dst_format"].set_s(FormatName(to, region_.rank));
    attr["_kernel"].set_s("host");  // where shapes are
    return {view_->AddNode(def, {tensor}, {}, tensor.node), 0};
  }

  // Constant axes, and vectors of channels that are no longer broadcast along the last axis.
  void PrepareInputs(const Member& member, Format to, std::vector<int>* unread) {
    for (int slot : member.rule.axes) {
      const TensorId old = view_->inputs(member.node)[slot];
      auto axes = IntConstant(*view_, old.node);
      for (int64_t& axis : axes->values) {
        axis = AxisIn(to, region_.rank, static_cast<int>(axis < 0 ? axis + region_.rank : axis));
      }
      SetInput(member.node, slot,
               Constant(*axes, shapes_->Get(old).dtype, view_->name(member.node) + "/axes",
                        old.node, WaitsFor(old.node)));
      unread->push_back(old.node);
    }
    for (int slot : member.rule.channel_slots) {
      std::vector<int64_t> shape(region_.rank - 1, 1);
      shape[0] = -1;
      const TensorId old = InputsOf(member.node)[slot];
      const int64_t channels = shapes_->Get(old).dims[0];
      if (channels >= 0) shape[0] = channels;
      SetInput(member.node, slot, Reshape(old, shape));
    }
  }

  void ReplaceNodes() {
    std::map<int, Format> changed;
    for (size_t i = 0; i < region_.members.size(); ++i) {
      const Member& member = region_.members[i];
      if (formats_[i] != member.now) changed[member.node] = formats_[i];
    }
    for (const auto& [node, to] : changed) {
      inputs_.emplace(node, view_->inputs(node));
    }
    for (const auto& [node, inputs] : inputs_) {
      const auto found = changed.find(node);
      const NodeDef def = found == changed.end()
                              ? view_->def(node)
                              : InFormat(*view_, node, found->second, region_.rank);
      view_->ReplaceNode(node, def, inputs, view_->control_inputs(node));
    }
  }

  void SetShapes(const Member& member, Format to) {
    std::vector<TensorInfo> outputs;
    int count = 1;
    for (const Carrier& output : member.rule.outputs) count = std::max(count, output.index + 1);
    for (const Consumer& c : view_->consumers(member.node)) count = std::max(count, c.port + 1);
    for (int port = 0; port < count; ++port) outputs.push_back(shapes_->Get({member.node, port}));
    for (const Carrier& output : member.rule.outputs) {
      if (!output.vector) {
        outputs[output.index].dims = Permuted(outputs[output.index].dims, to);
      }
    }
    shapes_->Set(member.node, std::move(outputs));
  }

  GraphView* view_;
  Shapes* shapes_;
  const Region& region_;
  const std::vector<Format>& formats_;
  std::map<int, std::vector<TensorId>> inputs_;  // of nodes that will read something else
};

}  // namespace

void ApplyFormats(GraphView* view, Shapes* shapes, const Region& region,
                  const std::vector<Format>& formats, const std::function<bool(int)>& keep) {
  Editor(view, shapes, region, formats).Apply(keep);
}

}  // namespace nv_norms
