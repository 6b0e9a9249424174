#ifndef NV_NORMS_PLUGIN_RECOGNIZER_SAMPLE_COUNTS_H_
#define NV_NORMS_PLUGIN_RECOGNIZER_SAMPLE_COUNTS_H_

#include <map>
#include <vector>

#include "plugin/graph/shapes.h"
#include "plugin/graph/view.h"

namespace nv_norms {

// Of a norm with parameters of each sample, in batches of unknown size: whose number of samples a
// tensor has, where x, gamma and beta are broadcast together and any of them may have one. Numbers
// cannot tell, as in those that stand in for the tensors all have as many.
class SampleCounts {
 public:
  // Tensors that are not valid() are absent. `larger`: the dys may have more samples than all
  // these.
  SampleCounts(const GraphView& view, const Shapes& shapes, TensorId x,
               const std::vector<TensorId>& parameters, const std::vector<TensorId>& dys,
               bool larger);

  // Whether a tensor between dy, x and the parameters surely has as many samples as one of these.
  bool HasThoseOf(TensorId tensor, TensorId source);

 private:
  // A set of sources, whose largest number of samples it is. Whoever has a known number of more
  // than one has the largest that there is.
  using Sources = unsigned;
  static constexpr Sources kAll = 1, kUnknown = 2, kMore = 4, kFirst = 8;

  Sources Own(int64_t samples);
  void AddSource(TensorId tensor, int64_t samples);
  Sources Of(TensorId tensor, int depth);
  Sources OfNode(TensorId tensor, int depth);
  Sources OfShape(TensorId shape, int depth);
  Sources OfSizes(const std::vector<int64_t>& sizes) const;

  const GraphView& view_;
  const Shapes& shapes_;
  size_t rank_;  // of x
  std::map<TensorId, Sources> known_;
  std::map<int64_t, Sources> of_size_;  // those whose number is unknown, but the same wherever
  Sources next_ = kFirst;
};

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_RECOGNIZER_SAMPLE_COUNTS_H_
