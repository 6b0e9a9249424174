#ifndef NV_NORMS_PLUGIN_RECOGNIZER_DRAWS_H_
#define NV_NORMS_PLUGIN_RECOGNIZER_DRAWS_H_

#include <cstdint>
#include <functional>
#include <set>

#include "plugin/recognizer/axes.h"
#include "plugin/recognizer/interpreter.h"

namespace nv_norms {

using HoldsInDraw = std::function<bool(Interpreter* interpreter, const Axes& axes)>;

// Whether something holds in every draw; asked again where the axes turn out to be finer.
bool HoldsInEveryDraw(const Scene& scene, Axes* axes, const HoldsInDraw& holds);

// Whether all sizes `tied` that are equal only if neither is 1 are of those axes of x that run
// along a parameter, whose size the fused op checks when it runs. Of other axes x may have one
// element where what it is broadcast with has more, or the other way round; and so may an argument
// whose owner left an axis open. (Inside a graph, a size is mostly unknown because inference does
// not follow an op.)
bool TiesAreChecked(const GraphView& view, const Shapes& shapes, TensorId x, const Dims& x_dims,
                    const Dim& parameter, const std::set<int64_t>& tied, Axes* axes);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_RECOGNIZER_DRAWS_H_
