#ifndef NV_NORMS_PLUGIN_CASTS_CANDIDATES_H_
#define NV_NORMS_PLUGIN_CASTS_CANDIDATES_H_

#include <functional>
#include <set>
#include <utility>
#include <vector>

#include "plugin/casts/types.h"
#include "plugin/graph/view.h"

namespace nv_norms {

// A tensor of a fused op that would be float32.
struct Slot {
  int norm;
  Role role;
  int input;  // kX, kDy
  bool operator<(const Slot& o) const {
    return std::make_pair(norm, role) < std::make_pair(o.norm, o.role);
  }
};

// What is taken in as a whole or not at all: the Casts of one tensor to one type, or those that
// read one output of a fused op (of the parameters' gradients, both).
struct Candidate {
  std::set<Slot> slots;  // of an output, one
  std::vector<int> casts;
  std::vector<int> views;   // between them and the fused ops
  std::vector<int> shapes;  // Shape ops, which may read either
};

struct Candidates {
  std::vector<Candidate> inputs, outputs;
  bool empty() const { return inputs.empty() && outputs.empty(); }
};

// What TakeInCasts() takes in. Marks what is live() in the view.
Candidates FindCandidates(GraphView* view, const std::function<bool(int)>& nodes,
                          const std::function<bool(int)>& keep, bool compiled);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_CASTS_CANDIDATES_H_
