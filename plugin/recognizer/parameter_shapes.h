#ifndef NV_NORMS_PLUGIN_RECOGNIZER_PARAMETER_SHAPES_H_
#define NV_NORMS_PLUGIN_RECOGNIZER_PARAMETER_SHAPES_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "plugin/graph/shapes.h"
#include "plugin/graph/view.h"
#include "plugin/recognizer/axes.h"

namespace nv_norms {

// The shapes that our op's gradients of parameters take, in place of the Sums of a graph; nullopt
// where nobody knows one. Sizes as in TensorInfo.
class ParameterShapes {
 public:
  // Of a norm of `x`; what `keep` names is read by others than its consumers.
  ParameterShapes(const GraphView& view, const Shapes& shapes, TensorId x, const Axes& axes,
                  const std::function<bool(int)>& keep)
      : view_(view), shapes_(shapes), x_(x), axes_(axes), keep_(keep) {}

  // At a Sum that puts out these dims: as inferred, or as the axes tell. Without x's rank nobody
  // knows it; then a Reshape must follow that tells it (and would fail, were the rank another than
  // it seems), and any shape will do.
  std::optional<std::vector<int64_t>> OfSum(TensorId sum, const Dims& dims) const;

  // The same of samples of unknown number, those along `samples`, where the axes that are summed
  // over are unknown, too: all that read it must be Reshapes. What has a known rank keeps it.
  std::optional<std::vector<int64_t>> ForReshape(TensorId sum, const Dims& dims,
                                                 const Dim& samples) const;

 private:
  bool IsReshapedNext(TensorId sum) const;

  const GraphView& view_;
  const Shapes& shapes_;
  const TensorId x_;
  const Axes& axes_;
  const std::function<bool(int)>& keep_;
};

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_RECOGNIZER_PARAMETER_SHAPES_H_
