#ifndef NV_NORMS_PLUGIN_RECOGNIZER_OUTPUTS_H_
#define NV_NORMS_PLUGIN_RECOGNIZER_OUTPUTS_H_

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "plugin/recognizer/bags.h"
#include "plugin/recognizer/forward.h"
#include "plugin/recognizer/moments.h"

namespace nv_norms {

// A tensor that equals xhat * gamma + beta, then + or * parts; or xhat * scale, then + parts.
struct Output {
  TensorId y;
  bool subtract_mean = true;
  TensorId gamma, beta;
  TensorId scale;  // a factor that is no parameter, somewhere within the core
  std::vector<Part> parts;
  bool parts_are_factors = false;
  std::vector<BagItem> core;  // the terms (or factors) whose sum (product) is xhat * gamma
  bool core_is_product = false;

  bool clean() const { return parts.empty() && !scale.valid(); }
};

// What one interpreter sees around an anchor.
struct Neighbourhood {
  const GraphView& view;
  const Shapes& shapes;
  const Statistics& statistics;
  const std::function<bool(int)>& keep;  // the nodes that must stay
  const Scene& scene;                    // x and what is computed from it
  Axes* axes;
  Interpreter* interpreter;
  Normalized x;
  bool open_samples;  // whether x or a parameter of each sample may have one, that stands for all
};

// Whether the op can have a parameter of each sample, of a `problem` that was found with it.
bool MayBeOfSamples(const Neighbourhood& near, const Problem& problem, TensorId parameter);

// The sum (or product) of the items; no value if one of them has none.
std::optional<Numbers> Combine(const std::vector<BagItem>& items, bool product,
                               Interpreter* interpreter);

// Whether the output's core is xhat * gamma (with the mean where it is, x * rstd * gamma) in one
// draw; gamma was found as a factor of a product after the core, or, like a scale, within it.
bool IsNormalizedX(const Output& output, const Normalized& x, const Statistics& statistics,
                   Interpreter* interpreter);

// The tensors among the anchor's readers, and theirs, that are outputs.
class Outputs {
 public:
  explicit Outputs(const Neighbourhood& near) : near_(near) {}

  // Fills in what follows, unless the interpreter wants a restart. kNoOutput, or why what comes
  // closest is none.
  Reason Find();
  const std::vector<Output>& all() const { return all_; }
  const Output* At(TensorId tensor) const;
  bool FromAnchor(TensorId tensor);  // whether a tensor is computed from the anchor
  bool IsTermOfMore(TensorId tensor);

 private:
  bool FromX(TensorId tensor) const;  // or whether it is x
  std::optional<Problem> ProblemWith(TensorId parameter);
  bool MayBeParameter(TensorId tensor);
  bool MayComeAfter(TensorId tensor);  // as the first parameter of what is an output without it
  bool SameAxes(TensorId a, TensorId b);
  bool MayBeScale(TensorId tensor, TensorId y);
  bool IsNormalized(const std::vector<BagItem>& items, bool product, Output* output);
  void Add(const Output& output);
  void TakeBeta(const std::vector<BagItem>& others, Output* output);
  void TakeGamma(const std::vector<BagItem>& others, Output* output);
  // These return whether to look further along.
  bool VisitSum(int node);
  bool VisitBias(int node);
  bool VisitProduct(int node);
  bool VisitNorm(int node);
  bool VisitGuardedQuotient(int node);
  bool VisitNode(int node);
  bool MeetsLaterTensor(int node);
  bool OnlyUsesOutput(int node);

  const Neighbourhood& near_;
  Reason reason_ = Reason::kNoOutput;
  std::vector<Output> all_;
  std::map<TensorId, int> index_;  // into all_
  std::map<int, bool> from_anchor_;
  std::map<int, bool> depends_;  // on the anchor, by whatever ops
  std::set<int> visited_;
};

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_RECOGNIZER_OUTPUTS_H_
