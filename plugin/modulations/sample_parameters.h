#ifndef NV_NORMS_PLUGIN_MODULATIONS_SAMPLE_PARAMETERS_H_
#define NV_NORMS_PLUGIN_MODULATIONS_SAMPLE_PARAMETERS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "plugin/graph/shapes.h"
#include "plugin/graph/view.h"

namespace nv_norms {

// Where the scale and the offset of each sample of a fused norm lie in a tensor of y's rank: all
// but the samples and these axes has size 1.
struct SampleParameters {
  std::vector<bool> varies;    // along these axes
  std::vector<int64_t> sizes;  // of these axes, all known: of one sample's parameters
  std::vector<int64_t> y;      // y's sizes, as Shapes has them

  int rank() const { return static_cast<int>(varies.size()); }
  // These parameters' dimensions, of so many samples.
  std::vector<int64_t> Dims(int64_t samples) const;
  // Whether a tensor has them, of as many samples as y, as far as that is known.
  bool Fit(const TensorInfo& info) const;
  // Whether it has y's dimensions, as far as these are known.
  bool FitY(const TensorInfo& info) const;
};

// Which axes of so many are among these, of which negative ones are counted from the last; no value
// if one of them is none.
std::optional<std::vector<bool>> AxesAmong(const std::vector<int64_t>& axes, int rank);

// No value if the norm's op has no kernels for parameters of each sample, or too little is known.
std::optional<SampleParameters> SampleParametersOf(const GraphView& view, const Shapes& shapes,
                                                   int norm);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_MODULATIONS_SAMPLE_PARAMETERS_H_
