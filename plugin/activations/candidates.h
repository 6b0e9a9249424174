#ifndef NV_NORMS_PLUGIN_ACTIVATIONS_CANDIDATES_H_
#define NV_NORMS_PLUGIN_ACTIVATIONS_CANDIDATES_H_

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "plugin/graph/shapes.h"
#include "plugin/graph/view.h"

namespace nv_norms {

bool MayBeActivation(const std::string& op);  // LeakyRelu, Relu; Sigmoid, of which a silu is made

// A norm with an activation that is taken in as a whole, with its gradients, or not at all.
struct ActivatedNorm {
  int norm = -1;
  int activation = -1;  // the one that reads y
  bool silu = false;
  float slope = 1.0f;  // else: of what is not positive
  std::vector<int> norm_gradients;
  // Each with the gradient of the activation's output that it reads.
  std::map<int, TensorId> activation_gradients;
  // Of a silu: what computes functions of y alone, but for the activation, each after what it
  // reads.
  std::vector<int> functions;
  std::vector<int> identities;  // between the norm and the activation, each after what it reads
  std::vector<int> shapes;      // Shape ops and the like of y and dy
  bool stays = false;           // something reads the norm whose own output nobody reads
};

// The functions that a node needs.
std::vector<int> FunctionsBehind(const GraphView& view, const ActivatedNorm& found, int node);

// Marks what is live() in the view: graphs that Python has traced hold gradients that nobody reads.
void MarkLiveAroundNorms(GraphView* view, const std::function<bool(int)>& keep);

// The activation behind a fused norm, which all that is live() and reads y allows to take in.
// `keep`: whose values must stay under their names. Without shapes, these are taken to fit.
// `compiled`: the graph is for a compiler, which drops what nobody reads.
std::optional<ActivatedNorm> FindActivation(const GraphView& view, const Shapes* shapes, int norm,
                                            const std::function<bool(int)>& keep, bool compiled);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_ACTIVATIONS_CANDIDATES_H_
