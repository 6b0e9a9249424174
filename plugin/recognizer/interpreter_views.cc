// What ops that move numbers about mean to the interpreter: they change dimensions.
#include <algorithm>

#include "plugin/graph/constants.h"
#include "plugin/recognizer/interpreter.h"
#include "plugin/recognizer/ops.h"
#include "tensorflow/core/framework/attr_value.pb.h"

namespace nv_norms {

std::optional<Value> Interpreter::View(int node) {
  const std::string& op = view_.op(node);
  if (op == "Cast" &&
      (!(IsFloat(view_.GetType(node, "SrcT")) && IsFloat(view_.GetType(node, "DstT"))) ||
       view_.GetBool(node, "Truncate", false))) {  // our ops round
    return std::nullopt;
  }
  const Value* input = Eval(view_.inputs(node)[0]);
  if (input == nullptr) return std::nullopt;
  const int rank = static_cast<int>(input->dims.size());
  Value out = *input;
  if (op == "Reshape") {
    auto target = Sizes(view_.inputs(node)[1]);
    if (restart_) return std::nullopt;
    std::vector<Size> sizes;
    if (target) {
      sizes = target->values;
    } else if (const auto shape = ShapeOf({node, 0})) {
      sizes = *shape;
    } else {
      return std::nullopt;
    }
    // A gradient may yet be summed to what x's shape is taken for.
    const Certainty certainty = scene_.dy.valid() ? Certainty::kUnlessOne : Certainty::kSure;
    if (!Done(AlignForReshape(input->dims, sizes, certainty, axes_, &out.dims))) {
      return std::nullopt;
    }
  } else if (op == "Transpose") {
    const auto permutation = AxisList(view_.inputs(node)[1], rank);
    if (!permutation || restart_ || static_cast<int>(permutation->size()) != rank) {
      return std::nullopt;
    }
    for (int i = 0; i < rank; ++i) out.dims[i] = input->dims[(*permutation)[i]];
  } else if (op == "ExpandDims") {
    const auto axis = AxisList(view_.inputs(node)[1], rank + 1);
    if (!axis || restart_ || axis->size() != 1) return std::nullopt;
    out.dims.insert(out.dims.begin() + (*axis)[0], Dim{});
  } else if (op == "StridedSlice") {
    return Slice(node, *input);
  } else if (op == "Squeeze") {
    std::vector<bool> drop(rank, false);
    auto listed = view_.def(node).attr().find("squeeze_dims");
    if (listed != view_.def(node).attr().end() && listed->second.list().i_size() > 0) {
      for (int64_t dim : listed->second.list().i()) {
        if (dim < 0) dim += rank;
        if (dim < 0 || dim >= rank || !input->dims[dim].empty()) return std::nullopt;
        drop[dim] = true;
      }
    } else {
      for (int i = 0; i < rank; ++i) {
        drop[i] = input->dims[i].empty();
        // An unknown size may be 1 when the graph runs, and would go too.
        if (!drop[i] && !axes_->size(input->dims[i]).known()) return std::nullopt;
      }
    }
    out.dims.clear();
    for (int i = 0; i < rank; ++i) {
      if (!drop[i]) out.dims.push_back(input->dims[i]);
    }
  }
  return out;
}

// x[..., None], x[:, 0] of an axis of size 1, and the like: slices that take all of an axis.
std::optional<Value> Interpreter::Slice(int node, const Value& input) {
  const auto begin = IntConstant(view_, view_.inputs(node)[1].node);
  const auto stride = IntConstant(view_, view_.inputs(node)[3].node);
  if (!begin || !stride) return std::nullopt;
  const size_t entries = begin->values.size();
  if (stride->values.size() != entries) return std::nullopt;
  const auto bit = [&](const char* mask, size_t i) {
    return (view_.GetInt(node, mask, 0) >> i & 1) != 0;
  };
  size_t taken = 0;
  for (size_t i = 0; i < entries; ++i) {
    if (!bit("ellipsis_mask", i) && !bit("new_axis_mask", i)) ++taken;
  }
  if (taken > input.dims.size()) return std::nullopt;
  const size_t skipped = input.dims.size() - taken;
  Value out;
  out.numbers = input.numbers;
  size_t at = 0;
  for (size_t i = 0; i < entries; ++i) {
    if (bit("ellipsis_mask", i)) {
      for (size_t k = 0; k < skipped; ++k) out.dims.push_back(input.dims[at++]);
    } else if (bit("new_axis_mask", i)) {
      out.dims.push_back({});
    } else if (bit("shrink_axis_mask", i)) {
      if (!input.dims[at++].empty()) return std::nullopt;
    } else if (bit("begin_mask", i) && bit("end_mask", i) && stride->values[i] == 1) {
      out.dims.push_back(input.dims[at++]);
    } else {
      return std::nullopt;
    }
  }
  while (at < input.dims.size()) out.dims.push_back(input.dims[at++]);
  return out;
}

// The gradient of a slice that only inserts axes of size 1: it takes them away again.
std::optional<Value> Interpreter::SliceGrad(int node) {
  const auto begin = IntConstant(view_, view_.inputs(node)[1].node);
  const auto stride = IntConstant(view_, view_.inputs(node)[3].node);
  const Value* input = Eval(view_.inputs(node)[4]);
  if (!begin || !stride || input == nullptr) return std::nullopt;
  const size_t entries = begin->values.size();
  if (stride->values.size() != entries) return std::nullopt;
  const size_t rank = input->dims.size();
  const auto bit = [&](const char* mask, size_t i) {
    return (view_.GetInt(node, mask, 0) >> i & 1) != 0;
  };
  const auto is_ellipsis = [&](size_t i) { return bit("ellipsis_mask", i); };
  size_t ellipses = 0;
  for (size_t i = 0; i < entries; ++i) ellipses += is_ellipsis(i);
  if (ellipses > 1 || entries - ellipses > rank) return std::nullopt;
  const size_t skipped = rank - (entries - ellipses);
  Value out;
  out.numbers = input->numbers;
  size_t at = 0;
  for (size_t i = 0; i < entries; ++i) {
    if (is_ellipsis(i)) {
      for (size_t k = 0; k < skipped; ++k) out.dims.push_back(input->dims[at++]);
    } else if (bit("new_axis_mask", i)) {
      if (!input->dims[at++].empty()) return std::nullopt;
    } else if (bit("begin_mask", i) && bit("end_mask", i) && stride->values[i] == 1 &&
               !bit("shrink_axis_mask", i)) {
      out.dims.push_back(input->dims[at++]);
    } else {
      return std::nullopt;
    }
  }
  while (at < rank) out.dims.push_back(input->dims[at++]);
  return out;
}

std::optional<Value> Interpreter::Broadcast(int node) {
  const std::string& op = view_.op(node);
  if (op == "StridedSliceGrad") return SliceGrad(node);
  const Value* input = Eval(view_.inputs(node)[0]);
  if (input == nullptr) return std::nullopt;
  Value out = *input;
  if (op == "OnesLike" || op == "ZerosLike") {
    out.numbers = Numbers::Scalar(op == "OnesLike" ? 1.0 : 0.0);
    return out;
  }
  const auto sizes = Sizes(view_.inputs(node)[1]);
  if (!sizes || restart_ || sizes->values.size() < out.dims.size()) return std::nullopt;
  out.dims.insert(out.dims.begin(), sizes->values.size() - out.dims.size(), Dim{});
  for (size_t i = 0; i < out.dims.size(); ++i) {
    const Size size = axes_->Resolve(sizes->values[i]);
    if (out.dims[i].empty()) {
      out.dims[i] = axes_->ForDimension({node, 0}, static_cast<int>(i), size, false);
    } else if (op == "Tile" && !size.Is(1)) {
      return std::nullopt;
    } else if (op == "BroadcastTo" && size != axes_->size(out.dims[i])) {
      return std::nullopt;
    }
  }
  return out;
}

}  // namespace nv_norms
