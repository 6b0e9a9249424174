#ifndef NV_NORMS_PLUGIN_ACTIVATIONS_CANDIDATES_H_
#define NV_NORMS_PLUGIN_ACTIVATIONS_CANDIDATES_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "plugin/graph/view.h"

namespace nv_norms {

bool IsActivation(const std::string& op);  // LeakyRelu, Relu

// A norm with an activation that is taken in as a whole, with its gradients, or not at all.
struct ActivatedNorm {
  int norm = -1;
  int activation = -1;  // the one that reads y
  float slope = 1.0f;   // of what is not positive
  std::vector<int> norm_gradients;
  std::vector<int> activation_gradients;
  std::vector<int> identities;  // between the norm and the activation, each after what it reads
  std::vector<int> shapes;      // Shape ops and the like of y and dy
};

// Marks what is live() in the view: graphs that Python has traced hold gradients that nobody reads.
void MarkLiveForActivations(GraphView* view, const std::function<bool(int)>& keep);

// The activation behind a fused norm, which all that is live() and reads y allows to take in.
// `keep`: whose values must stay under their names.
std::optional<ActivatedNorm> FindActivation(const GraphView& view, int norm,
                                            const std::function<bool(int)>& keep);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_ACTIVATIONS_CANDIDATES_H_
