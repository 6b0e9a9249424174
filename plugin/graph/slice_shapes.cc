#include "plugin/graph/slice_shapes.h"

#include <algorithm>

#include "plugin/graph/shape_ops.h"

namespace nv_norms {
namespace {

// One entry of the op's operands and masks.
struct Entry {
  int64_t begin, end, step;
  bool from_start, to_end;

  int64_t SizeOf(int64_t size) const {
    if (step != 1) return -1;
    if (from_start && to_end) return size;
    if (size < 0) return -1;
    const auto place = [size](int64_t at) {
      return std::clamp<int64_t>(at < 0 ? at + size : at, 0, size);
    };
    const int64_t first = from_start ? 0 : place(begin);
    const int64_t last = to_end ? size : place(end);
    return std::max<int64_t>(last - first, 0);
  }
};

}  // namespace

std::optional<std::vector<int64_t>> ShapeOfSlice(const GraphView& view, int node,
                                                 const std::vector<int64_t>& from) {
  const std::vector<TensorId>& inputs = view.inputs(node);
  const auto begin = ConstantOperand(view, inputs[1].node);
  const auto end = ConstantOperand(view, inputs[2].node);
  const auto step = ConstantOperand(view, inputs[3].node);
  if (!begin || !end || !step) return std::nullopt;
  const size_t entries = step->size();
  if (begin->size() != entries || end->size() != entries) return std::nullopt;
  const auto in = [&](const char* mask, size_t i) {
    return (view.GetInt(node, mask, 0) >> i & 1) != 0;
  };
  // An entry for each axis, but for those that an ellipsis, or the end, stands for.
  size_t named = 0;
  for (size_t i = 0; i < entries; ++i) {
    if (!in("ellipsis_mask", i) && !in("new_axis_mask", i)) ++named;
  }
  if (named > from.size()) return std::nullopt;
  std::vector<int64_t> sizes;
  auto axis = from.begin();
  auto rest = from.size() - named;
  for (size_t i = 0; i < entries; ++i) {
    if (in("ellipsis_mask", i)) {
      sizes.insert(sizes.end(), axis, axis + rest);
      axis += rest;
      rest = 0;
    } else if (in("new_axis_mask", i)) {
      sizes.push_back(1);
    } else if (in("shrink_axis_mask", i)) {
      ++axis;
    } else {
      const Entry entry{(*begin)[i], (*end)[i], (*step)[i], in("begin_mask", i), in("end_mask", i)};
      sizes.push_back(entry.SizeOf(*axis++));
    }
  }
  sizes.insert(sizes.end(), axis, from.end());
  return sizes;
}

}  // namespace nv_norms
