#ifndef NV_NORMS_PLUGIN_MODULATIONS_TAKE_IN_H_
#define NV_NORMS_PLUGIN_MODULATIONS_TAKE_IN_H_

#include <functional>
#include <vector>

#include "plugin/graph/shapes.h"
#include "plugin/graph/view.h"
#include "plugin/report.h"

namespace nv_norms {

// A scale s and an offset t of each sample behind a fused norm that has a gamma or a beta, as
// guided diffusion (Dhariwal and Nichol, 2021) and FiLM have them, taken into it:
//
//   (xhat * gamma + beta) * s + t = xhat * (gamma * s) + (beta * s + t)
//
// The norm, which has parameters of each sample then, takes the place and name of the sum. Its
// gradient, given dy, has dscale and doffset of each sample, of which come, with numbers that are
// few beside x:
//
//   ds = dscale * gamma + doffset * beta     dt = doffset
//   dgamma = sum over samples of dscale * s  dbeta = sum over samples of doffset * s
//
// `nodes`: which fused ops may be changed. `keep`: whose values must stay under their names.
// `compiled`: the graph is for a compiler; else small tensors on a GPU stay as they are in
// training. Returns whether anything changed; then the norms' records tell so.
bool TakeInModulations(GraphView* view, Shapes* shapes, const std::function<bool(int)>& nodes,
                       const std::function<bool(int)>& keep, bool compiled,
                       std::vector<Record>* records);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_MODULATIONS_TAKE_IN_H_
