// What the two halves of a custom call agree on: the kernels that put one into a computation, and
// the handlers that XLA calls when it runs.
//
//   forward    operands  x, [scale], [offset]
//              results   y, [mean], rstd, [workspace]
//   backward   operands  dy, x, [scale], [offset], [mean], rstd
//              results   [dx], [dscale], [doffset], [workspace]
//
// All are row-major, x's axes as placement.h has them. There is no mean for kRms. The attributes:
//
//   formula                    a Formula
//   epsilon                    forward
//   negative_slope, silu       of the activation
//   scale, offset              which operands there are
//   dx, dscale, doffset        which results are wanted: backward
//   sizes, reduced, strides    of Geometry::axes: size, reduced, param_stride
#ifndef NV_NORMS_KERNELS_XLA_CALL_H_
#define NV_NORMS_KERNELS_XLA_CALL_H_

#include <string>

#include "kernels/problem.h"
#include "kernels/status.h"

namespace nv_norms {
namespace xla_call {

constexpr char kForwardTarget[] = "nv_norms_forward";
constexpr char kBackwardTarget[] = "nv_norms_backward";

struct ForwardCall {
  ForwardProblem problem;  // without its types, which are those of the buffers
  bool scale = false;
  bool offset = false;
  bool mean() const { return problem.formula != Formula::kRms; }
};

struct BackwardCall {
  BackwardProblem problem;  // without its types
  bool scale = false;
  bool offset = false;
  bool dx = false;
  bool dscale = false;
  bool doffset = false;
  bool mean() const { return problem.formula != Formula::kRms; }
};

// The attributes as XLA wants them, in MLIR's notation. The geometry has elements.
Status AttributesOf(const ForwardCall& call, std::string* text);
Status AttributesOf(const BackwardCall& call, std::string* text);

}  // namespace xla_call
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_XLA_CALL_H_
