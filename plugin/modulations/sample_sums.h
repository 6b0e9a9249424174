#ifndef NV_NORMS_PLUGIN_MODULATIONS_SAMPLE_SUMS_H_
#define NV_NORMS_PLUGIN_MODULATIONS_SAMPLE_SUMS_H_

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "plugin/graph/shapes.h"
#include "plugin/graph/view.h"
#include "plugin/modulations/sample_parameters.h"

namespace nv_norms {

// A tensor of y's dimensions, summed over all but the samples and what parameters vary along.
struct SampleSum {
  int node = -1;              // gives the result: the Sum, or a Reshape behind it
  int sum = -1;               // the Sum
  std::vector<int64_t> dims;  // of the result
  TensorId shaped;  // if valid: then summed to this tensor's shape, which may have one sample
};

// How TensorFlow writes the gradient of what was broadcast: a Sum over constant axes, or over those
// of a BroadcastGradientArgs and a Reshape behind it.
class SampleSums {
 public:
  SampleSums(const GraphView& view, const Shapes& shapes, const SampleParameters& parameters)
      : view_(view), shapes_(shapes), parameters_(parameters) {}

  // The sums that a Sum leads to, in the gradient of `parameter`, which was broadcast with a tensor
  // of the shape of one of `likes`. Empty if it is none, or leads elsewhere, too.
  std::vector<SampleSum> Behind(int sum, TensorId parameter, const std::set<TensorId>& likes) const;

  // The other half of such a gradient: that of a tensor of the shape of `likes`, where its samples
  // might have been broadcast, before that was undone; adds the nodes that did it to `way`.
  // `gradient` itself if nothing was to be.
  TensorId BeforeUndoing(TensorId gradient, TensorId parameter, const std::set<TensorId>& likes,
                         std::vector<int>* way) const;

 private:
  struct Sides {
    std::vector<int64_t> sizes, others;  // of what the axes are for, and of what it met
    TensorId tensor, other;              // of which these are the shapes; not valid for constants
  };
  std::optional<Sides> SidesOf(TensorId axes) const;
  std::vector<int64_t> SizesBehind(TensorId shape, TensorId* tensor) const;
  bool IsToShapeOf(int reshape, const std::set<TensorId>& tensors,
                   const std::vector<int64_t>& dims) const;
  bool SumsPositions(int sum) const;
  std::vector<int64_t> DimsOfSum(int sum) const;

  const GraphView& view_;
  const Shapes& shapes_;
  const SampleParameters& parameters_;
};

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_MODULATIONS_SAMPLE_SUMS_H_
