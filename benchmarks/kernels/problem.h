// A problem as it comes from Python (problem.py), for the harnesses of both kernel libraries.
#ifndef NV_NORMS_BENCHMARKS_KERNELS_PROBLEM_H_
#define NV_NORMS_BENCHMARKS_KERNELS_PROBLEM_H_

#include <cstdio>
#include <vector>

#include "kernels/problem.h"
#include "kernels/status.h"

namespace nv_norms {

// axis of a layer or RMS norm, or (count_axis = 0) groups and channels_last of a group norm.
struct HarnessProblem {
  int64_t dims[16];
  int64_t rank;
  int64_t axis[16];
  int64_t count_axis;
  int64_t groups;
  int64_t channels_last;
  int64_t formula;
  double epsilon;
  int64_t x;
  int64_t param;
  int64_t y;       // forward: y; backward: dx
  int64_t dy;      // backward only
  int64_t dparam;  // backward only
  double negative_slope;
  int64_t silu;
  int64_t per_sample;  // parameters
};

inline Status GeometryOf(const HarnessProblem& p, Geometry* out) {
  const std::vector<int64_t> dims(p.dims, p.dims + p.rank);
  const bool per_sample = p.per_sample != 0;
  if (p.count_axis > 0) {
    return LayerNormGeometry(dims, {p.axis, p.axis + p.count_axis}, per_sample, out);
  }
  return GroupNormGeometry(dims, p.channels_last != 0, p.groups, per_sample, out);
}

inline Status ForwardOf(const HarnessProblem& p, ForwardProblem* out) {
  out->formula = static_cast<Formula>(p.formula);
  out->activation = {p.negative_slope, p.silu != 0};
  out->epsilon = p.epsilon;
  out->x = static_cast<DType>(p.x);
  out->param = static_cast<DType>(p.param);
  out->y = static_cast<DType>(p.y);
  return GeometryOf(p, &out->geometry);
}

inline Status BackwardOf(const HarnessProblem& p, BackwardProblem* out) {
  out->formula = static_cast<Formula>(p.formula);
  out->activation = {p.negative_slope, p.silu != 0};
  out->x = static_cast<DType>(p.x);
  out->param = static_cast<DType>(p.param);
  out->dx = static_cast<DType>(p.y);
  out->dy = static_cast<DType>(p.dy);
  out->dparam = static_cast<DType>(p.dparam);
  return GeometryOf(p, &out->geometry);
}

// `good`, or -1 and why not.
inline int64_t Finish(const Status& status, int64_t good, char* error, int64_t error_size) {
  if (status.ok()) return good;
  std::snprintf(error, static_cast<size_t>(error_size), "%s", status.message().c_str());
  return -1;
}

}  // namespace nv_norms

#endif  // NV_NORMS_BENCHMARKS_KERNELS_PROBLEM_H_
