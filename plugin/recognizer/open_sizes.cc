#include "plugin/recognizer/open_sizes.h"

#include <algorithm>

#include "plugin/graph/constants.h"
#include "plugin/recognizer/ops.h"

namespace nv_norms {
namespace {

constexpr int kStepsToPart = 8;

// Whether the unknown size of x along an axis is that of an argument, or what a Reshape to -1, a
// slice or a gathering leaves, a few elementwise ops before x.
bool IsLeftOpen(const GraphView& view, const Shapes& shapes, TensorId x, int axis) {
  const int64_t size = shapes.Get(x).dims[axis];
  int from = x.node;
  if (view.IsArgument(from)) return true;
  const auto is_elementwise = [&] {
    const OpClass op_class = ClassOf(view.op(from));
    return view.inputs(from).size() == 1 && (op_class == OpClass::kElementwise ||
                                             view.op(from) == "Cast" || view.op(from) == "Relu");
  };
  for (int step = 0; step < kStepsToPart && is_elementwise(); ++step) {
    from = view.inputs(from)[0].node;
  }
  const std::string& op = view.op(from);
  if (op == "StridedSlice" || op == "Slice" || op == "GatherV2") return true;
  if (op == "Reshape") {
    const auto shape = IntConstant(view, view.inputs(from)[1].node);
    if (shape && axis < static_cast<int>(shape->values.size()) && shape->values[axis] == -1) {
      return true;
    }
  }
  if (size == -1) return false;  // equal to none that is known
  for (int node = 0; node < view.num_nodes(); ++node) {
    if (!view.alive(node) || !view.IsArgument(node)) continue;
    const auto& dims = shapes.Get({node, 0}).dims;
    if (std::find(dims.begin(), dims.end(), size) != dims.end()) return true;
  }
  return false;
}

bool IsAlong(const Dim& dim, const Dim& parameter) {
  return std::any_of(dim.begin(), dim.end(), [&](Atom atom) {
    return std::find(parameter.begin(), parameter.end(), atom) != parameter.end();
  });
}

}  // namespace

bool IsLeftOpenAlong(const GraphView& view, const Shapes& shapes, TensorId x, const Dims& x_dims,
                     const Dim& parameter) {
  const std::vector<int64_t>& sizes = shapes.Get(x).dims;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] < 0 && IsAlong(x_dims[i], parameter) &&
        IsLeftOpen(view, shapes, x, static_cast<int>(i))) {
      return true;
    }
  }
  return false;
}

bool KnowsSizesAlong(const Shapes& shapes, TensorId x, const Dims& x_dims, const Dim& parameter) {
  const TensorInfo& info = shapes.Get(x);
  if (!info.rank_known) return false;
  for (size_t i = 0; i < info.dims.size(); ++i) {
    if (info.dims[i] < 0 && IsAlong(x_dims[i], parameter)) return false;
  }
  return true;
}

bool KnowsSamples(const Shapes& shapes, TensorId x, TensorId parameter) {
  const TensorInfo& samples = shapes.Get(x);
  return samples.rank_known && samples.dims[0] >= 0 && IsKnown(shapes.Get(parameter));
}

bool KnowsChannels(const Shapes& shapes, TensorId x, const Dims& x_dims, TensorId parameter,
                   const Dims& dims) {
  const TensorInfo& info = shapes.Get(parameter);
  if (!shapes.Get(x).rank_known || !info.rank_known || info.dims.size() != dims.size()) {
    return false;
  }
  for (size_t i = 0; i < dims.size(); ++i) {
    if (info.dims[i] < 0 && dims[i] != x_dims[0]) return false;
  }
  return true;
}

Dim WithoutSamples(const Problem& problem, const Dims& x, const Dim& parameter) {
  Dim left;
  for (Atom atom : parameter) {
    const bool of_samples =
        problem.per_sample && std::find(x[0].begin(), x[0].end(), atom) != x[0].end();
    if (!of_samples) left.push_back(atom);
  }
  return left;
}

std::set<int64_t> WithoutSizesOfSamples(const std::set<int64_t>& symbols, const Shapes& shapes,
                                        const std::vector<TensorId>& tensors,
                                        const std::vector<Dims>& dims, Axes* axes) {
  std::set<int64_t> left = symbols;
  for (size_t t = 0; t < tensors.size(); ++t) {
    const TensorInfo& info = shapes.Get(tensors[t]);
    for (size_t i = 0; i < info.dims.size() && i < dims[t].size(); ++i) {
      if (info.dims[i] >= 0 || dims[t][i] != dims[0][0]) continue;
      left.erase(info.dims[i] == -1 ? axes->SymbolFor(tensors[t], static_cast<int>(i))
                                    : info.dims[i]);
    }
  }
  return left;
}

}  // namespace nv_norms
