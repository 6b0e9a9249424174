#include "plugin/recognizer/dy_shape.h"

#include <algorithm>
#include <string>

#include "plugin/recognizer/broadcast_sums.h"
#include "plugin/recognizer/ops.h"

namespace nv_norms {
namespace {

// Whether both have the same shape, all sizes of which are known.
bool IsOfKnownShape(const TensorInfo& a, const TensorInfo& b) {
  return a.rank_known && b.rank_known && a.dims == b.dims &&
         std::count(b.dims.begin(), b.dims.end(), -1) == 0;
}

}  // namespace

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

Fit FitBeside(const Shapes& shapes, TensorId dy, TensorId x, const std::vector<Part>& parts) {
  const TensorInfo& of_dy = shapes.Get(dy);
  const TensorInfo& of_x = shapes.Get(x);
  if (!of_dy.rank_known || !of_x.rank_known || of_dy.dims.size() != of_x.dims.size()) {
    return Fit::kNot;
  }
  // dy may have more elements than x: no size follows from the others.
  Fit fit = IsOfKnownShape(of_dy, of_x) ? Fit::kSurely : Fit::kBroadcast;
  for (const Part& part : parts) {
    const TensorInfo& info = shapes.Get(part.tensor);
    if (info.dtype != of_dy.dtype || !info.rank_known || info.dims.size() > of_x.dims.size()) {
      return Fit::kNot;
    }
    for (size_t i = 1; i <= info.dims.size(); ++i) {
      const int64_t size = info.dims[info.dims.size() - i];
      const int64_t whole = of_x.dims[of_x.dims.size() - i];
      if (size == 1 || (size == whole && size != -1)) continue;
      if (size >= 0 && whole >= 0) return Fit::kNot;
      fit = Fit::kBroadcast;
    }
  }
  return fit;
}

bool IsSurelyLike(const GraphView& view, const Shapes& shapes, TensorId dy, TensorId x) {
  if (IsOfKnownShape(shapes.Get(dy), shapes.Get(x))) return true;
  return SumsAsBroadcast(view, BehindShapes(view, dy).node);
}

}  // namespace nv_norms
