#ifndef NV_NORMS_PLUGIN_RECOGNIZER_ROUNDINGS_H_
#define NV_NORMS_PLUGIN_RECOGNIZER_ROUNDINGS_H_

#include <optional>
#include <unordered_set>

#include "plugin/graph/shapes.h"
#include "plugin/graph/view.h"
#include "plugin/recognizer/statistics.h"

namespace nv_norms {

// Casts of x, of its moments or of what is centred to a type with fewer digits than x has. What is
// normalized may be rounded; before that, a rounding is magnified: x minus its rounded self is no
// 0, nor is the mean of that x's, where the mean is large. So what they give is no view of x.
class Roundings {
 public:
  Roundings(const GraphView& view, const Shapes& shapes, const Statistics& statistics);
  bool Has(int node);

 private:
  const GraphView& view_;
  const tensorflow::DataType dtype_;
  const TensorId anchor_;
  std::optional<std::unordered_set<int>> normalized_;  // few graphs ask
};

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_RECOGNIZER_ROUNDINGS_H_
