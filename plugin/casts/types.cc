#include "plugin/casts/types.h"

#include <string>

#include "plugin/graph/constants.h"
#include "plugin/graph/fused_ops.h"
#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/node_def.pb.h"

namespace nv_norms {

using tensorflow::DataType;
using tensorflow::DT_FLOAT;

const char* AttributeOf(Role role) {
  switch (role) {
    case Role::kX:
      return "T";
    case Role::kDy:
      return "Y";
    case Role::kY:
      return "out_type";
    case Role::kDx:
      return "dx_type";
    case Role::kParameters:
      return "param_type";
  }
  return "";
}

Types TypesOf(const GraphView& view, int norm) {
  Types types;
  for (Role role : {Role::kX, Role::kDy, Role::kY, Role::kDx, Role::kParameters}) {
    types[role] = view.GetType(norm, AttributeOf(role));
  }
  return types;
}

bool PaysToReadWide(size_t reads) { return reads * 4 < 4 + 2 + reads * 2; }

// CUDA kernels that are not made for the types look up each element's type. CPU kernels convert
// through buffers; taking in pays there all the same (on 2 cores that others used too, least of 5
// or 9 in turns: a Cast of x 0.9 to 1.6 times as fast, Casts of x and y 1.3 to 3.8, of dy and dx
// 1.2 to 2.4), but for instance and group norm with dy alone in half: forward and gradient together
// 0.90 to 0.93 in float16, 1.18 to 1.25 in bfloat16.
bool HasKernels(const GraphView& view, int norm, const Types& types) {
  const DataType x = types.at(Role::kX);
  const bool on_cpu = view.def(norm).device().find("CPU") != std::string::npos;
  if (!IsFusedGradient(view.op(norm))) {
    const DataType y = types.at(Role::kY);
    return on_cpu || x == y || (x == DT_FLOAT && IsNarrow(y));
  }
  const DataType dy = types.at(Role::kDy);
  const bool in_type = view.GetInt(norm, "num_dx", 1) == 0 || types.at(Role::kDx) == x;
  if (!in_type) return false;
  if (dy == x) return true;
  const bool by_channel = view.def(norm).attr().count("data_format") > 0;
  const bool slow = on_cpu && by_channel && dy == tensorflow::DT_HALF;
  return x == DT_FLOAT && IsNarrow(dy) && !slow;
}

}  // namespace nv_norms
