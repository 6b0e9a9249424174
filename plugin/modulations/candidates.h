#ifndef NV_NORMS_PLUGIN_MODULATIONS_CANDIDATES_H_
#define NV_NORMS_PLUGIN_MODULATIONS_CANDIDATES_H_

#include <functional>
#include <optional>
#include <vector>

#include "plugin/graph/shapes.h"
#include "plugin/graph/view.h"
#include "plugin/modulations/sample_parameters.h"
#include "plugin/modulations/sample_sums.h"

namespace nv_norms {

// A fused gradient of a modulated norm: of dy * scale, which is to be that of dy.
struct ModulatedGradient {
  int gradient = -1;
  TensorId dy;                                     // of what was modulated
  std::vector<int> way;                            // from dy to what the gradient reads
  std::vector<SampleSum> scale_sums, offset_sums;  // dy * y and dy, summed for each sample
};

// A norm with a scale or an offset of all samples whose y is multiplied by a scale of each sample,
// or to which an offset of each is added, or both; taken in with its gradients, or not at all.
struct ModulatedNorm {
  int norm = -1;
  SampleParameters parameters;
  TensorId scale, offset;      // of each sample; not valid where there is none
  int product = -1, sum = -1;  // y * scale, and that + offset; -1 likewise
  std::vector<ModulatedGradient> gradients;
  std::vector<int> dy_products;     // dy * y, of which only sums are wanted
  std::vector<int> shapes;          // Shape ops and the like of y
  std::vector<int> product_shapes;  // Shape ops of y * scale, if that goes on to an offset

  int result() const { return sum >= 0 ? sum : product; }
};

// What modulates a fused norm, which all that is live() and reads y allows to take in. `keep`:
// whose values must stay under their names.
std::optional<ModulatedNorm> FindModulation(const GraphView& view, const Shapes& shapes, int norm,
                                            const std::function<bool(int)>& keep);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_MODULATIONS_CANDIDATES_H_
