#include "plugin/recognizer/dy_shape.h"

#include <algorithm>
#include <string>

#include "plugin/recognizer/ops.h"

namespace nv_norms {

bool IsReshaped(const GraphView& view, TensorId dy, const std::unordered_set<int>& behind) {
  std::vector<int> views = {dy.node};
  for (size_t i = 0; i < views.size(); ++i) {
    for (const Consumer& c : view.consumers(views[i])) {
      const std::string& op = view.op(c.node);
      if (behind.count(c.node) == 0 || ClassOf(op) != OpClass::kView) continue;
      if (op == "Reshape" || op == "Squeeze" || op == "ExpandDims") return true;
      views.push_back(c.node);
    }
  }
  return false;
}

bool HasSurelyShapeOf(const Shapes& shapes, TensorId dy, TensorId x) {
  const TensorInfo& of_dy = shapes.Get(dy);
  const TensorInfo& of_x = shapes.Get(x);
  if (!of_dy.rank_known || !of_x.rank_known || of_dy.dims.size() != of_x.dims.size()) return false;
  // If all sizes but one are the same, that one is, too.
  int open = 0;
  for (size_t i = 0; i < of_x.dims.size(); ++i) {
    if (of_dy.dims[i] != of_x.dims[i] || of_x.dims[i] == -1) ++open;
  }
  return open <= 1;
}

bool FactorsSurelyFit(const Shapes& shapes, TensorId dy, TensorId x,
                      const std::vector<Part>& factors) {
  if (!HasSurelyShapeOf(shapes, dy, x)) return false;
  const std::vector<int64_t>& of_x = shapes.Get(x).dims;
  return std::all_of(factors.begin(), factors.end(), [&](const Part& factor) {
    const TensorInfo& info = shapes.Get(factor.tensor);
    const std::vector<int64_t>& sizes = info.dims;
    return info.dtype == shapes.Get(dy).dtype && info.rank_known && sizes.size() <= of_x.size() &&
           std::equal(sizes.rbegin(), sizes.rend(), of_x.rbegin(),
                      [](int64_t a, int64_t b) { return a == 1 || (a == b && a != -1); });
  });
}

}  // namespace nv_norms
