#ifndef NV_NORMS_PLUGIN_RECOGNIZER_AXES_ORDER_H_
#define NV_NORMS_PLUGIN_RECOGNIZER_AXES_ORDER_H_

#include <vector>

#include "plugin/recognizer/value.h"

namespace nv_norms {

// The order in which `to` has the dimensions of `from`: to[i] is from[order[i]]. Empty if it has
// others.
std::vector<int64_t> OrderOfAxes(const Dims& from, const Dims& to);

// The dimensions in that order; as they are if it is empty.
Dims InOrder(const Dims& dims, const std::vector<int64_t>& order);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_RECOGNIZER_AXES_ORDER_H_
