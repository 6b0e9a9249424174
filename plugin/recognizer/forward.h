#ifndef NV_NORMS_PLUGIN_RECOGNIZER_FORWARD_H_
#define NV_NORMS_PLUGIN_RECOGNIZER_FORWARD_H_

#include <functional>
#include <set>
#include <vector>

#include "plugin/recognizer/problem.h"
#include "plugin/recognizer/reasons.h"
#include "plugin/recognizer/statistics.h"

namespace nv_norms {

// A term or factor that goes on beside the fused op: Grappler moves some across a layer's border.
struct Part {
  TensorId tensor;
  bool inverted;  // subtracted, or divided by
  bool operator==(const Part& o) const { return tensor == o.tensor && inverted == o.inverted; }
};

// y = norm(x) * gamma + beta, then + the parts, or * the parts; or norm(x) * scale, + the parts.
struct ForwardMatch {
  Statistics statistics;
  Problem problem;
  bool subtract_mean;
  TensorId x;
  TensorId y;  // replaced: its node becomes the fused op, or the sum or product with the parts
  TensorId gamma, beta;  // not valid(): absent
  TensorId scale;        // beside the op, for one that is no parameter: of each sample, say
  std::vector<Part> parts;
  bool parts_are_factors = false;
  std::vector<int> core;      // the nodes between x and y that the fused op stands for
  bool open_samples = false;  // x or a parameter of each sample may have one, for all
  bool lone = false;          // y is not in the graph, only its gradient; y is the anchor

  bool goes_on() const { return scale.valid() || !parts.empty(); }
};

// The outputs of the normalizations that these statistics belong to; several if norms share their
// moments. `keep` tells the nodes that must stay. Empty with a reason if there is none. Outputs
// that are only steps of others are put into `settled`; those that are there are not returned.
// `open_samples`: whether a scale of each sample may go into the op in batches of unknown size.
std::vector<ForwardMatch> FindForward(const GraphView& view, const Shapes& shapes,
                                      const Statistics& statistics,
                                      const std::function<bool(int)>& keep, bool open_samples,
                                      std::set<int>* settled, Reason* reason);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_RECOGNIZER_FORWARD_H_
