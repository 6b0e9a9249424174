#ifndef NV_NORMS_PLUGIN_RECOGNIZER_GRADIENT_CHECK_H_
#define NV_NORMS_PLUGIN_RECOGNIZER_GRADIENT_CHECK_H_

#include <optional>
#include <unordered_set>
#include <vector>

#include "plugin/recognizer/gradient_reference.h"
#include "plugin/recognizer/gradient_search.h"
#include "plugin/recognizer/interpreter.h"

namespace nv_norms {

// Whether a tensor is dy, before a Transpose of it or not, or of the nodes `from_dy` that depend on
// it.
bool IsFromDy(const Scene& scene, const std::unordered_set<int>& from_dy, TensorId tensor);

// Whether what was found in one draw is the gradient whatever x, dy, their sizes and what lies
// beside them are.
class GradientCheck {
 public:
  // `from_dy`: the nodes that depend on dy. All must outlive the check.
  GradientCheck(const GraphView& view, const Shapes& shapes, const ForwardMatch& forward,
                const TriedDy& tried, const Scene& scene, const std::unordered_set<int>& from_dy,
                const BackwardMatch& match, Axes* axes)
      : view_(view),
        shapes_(shapes),
        forward_(forward),
        tried_(tried),
        scene_(scene),
        from_dy_(from_dy),
        match_(match),
        axes_(axes) {}

  bool HoldsInEveryDraw() const { return HoldsInEveryDrawOf(scene_); }
  // The forward holds for every rank where nobody knows x's; its gradient may count axes another
  // way. A dy of known rank tells x's.
  bool HoldsForEveryRank(const Dims& x_dims) const;
  // Whether more than x, dy, the parameters and the factors (or their `sources`) is in it, and does
  // not cancel where it is 0. `behind` takes the nodes that the outputs came from.
  bool HangsOnOthers(const Interpreter& interpreter, const std::vector<TensorId>& sources,
                     std::unordered_set<int>* behind) const;
  // The forward was asked the same of what its y ties.
  bool SizesSurelyFit(const Dims& x_dims, const Dim& parameter) const;

 private:
  bool HoldsInEveryDrawOf(const Scene& scene) const;
  std::optional<GradientReference> Holds(Interpreter* interpreter, const Axes& axes) const;
  bool HasShapes(Interpreter* interpreter, const Dim& parameter) const;

  const GraphView& view_;
  const Shapes& shapes_;
  const ForwardMatch& forward_;
  const TriedDy& tried_;
  const Scene& scene_;
  const std::unordered_set<int>& from_dy_;
  const BackwardMatch& match_;
  Axes* axes_;
};

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_RECOGNIZER_GRADIENT_CHECK_H_
