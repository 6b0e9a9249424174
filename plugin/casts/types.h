#ifndef NV_NORMS_PLUGIN_CASTS_TYPES_H_
#define NV_NORMS_PLUGIN_CASTS_TYPES_H_

#include <cstddef>
#include <map>

#include "plugin/graph/view.h"

namespace nv_norms {

// Each is an attribute of the fused ops that says the type of one or two tensors.
enum class Role { kX, kDy, kY, kDx, kParameters };

const char* AttributeOf(Role role);

// The types of a fused op's tensors.
using Types = std::map<Role, tensorflow::DataType>;

Types TypesOf(const GraphView& view, int norm);

// Whether fused ops that read a tensor this many times read and write fewer bytes without the Cast
// (4 + 2 an element) that narrows it: up to twice, forward and in the gradient.
bool PaysToReadWide(size_t reads);

// Whether kernels are made for these types. The rest is computed, too, but not at the memory's
// speed.
bool HasKernels(const GraphView& view, int norm, const Types& types);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_CASTS_TYPES_H_
