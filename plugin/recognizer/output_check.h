#ifndef NV_NORMS_PLUGIN_RECOGNIZER_OUTPUT_CHECK_H_
#define NV_NORMS_PLUGIN_RECOGNIZER_OUTPUT_CHECK_H_

#include <optional>
#include <set>
#include <vector>

#include "plugin/recognizer/forward.h"
#include "plugin/recognizer/outputs.h"

namespace nv_norms {

// Whether one of our ops can take the place of an output that was found in one draw.
class OutputCheck {
 public:
  // `settled` takes the nodes that lead to nothing but an output that nobody reads.
  OutputCheck(const Neighbourhood& near, Outputs* outputs, std::set<int>* settled)
      : near_(near), outputs_(outputs), settled_(settled) {}

  // Whether the output is one to look at; not if it is only another's view.
  bool IsCandidate(TensorId y) const;
  // Fills in `match`. False: `reason` says why, or stays if another output is the one to take.
  bool Fits(const Output& output, ForwardMatch* match, Reason* reason) const;
  // Whether the output is xhat * gamma + beta in the other draws too.
  bool HoldsInEveryDraw(const Output& output) const;

 private:
  bool HoldsInEveryDrawOf(const Scene& scene, const Output& output) const;
  bool HangsOnOthers(const Output& output) const;
  bool LosesRounding(TensorId y) const;
  bool ReadOnlyBy(TensorId tensor, TensorId view_of_it) const;
  bool IsTransposedCopy(TensorId y) const;
  bool ParametersSurelyFit(const Output& output, const Problem& problem,
                           const Dim& parameter) const;
  bool KnowsSamplesOf(const Output& output) const;
  bool SizesSurelyFit(const Output& output, std::optional<Problem>* problem) const;
  bool MeanGoesOn() const;
  bool IsRead(int node) const;
  bool HasNoSafeguard(const Output& output) const;

  const Neighbourhood& near_;
  Outputs* outputs_;
  std::set<int>* settled_;
};

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_RECOGNIZER_OUTPUT_CHECK_H_
