#include <limits>

#include "kernels/cpu/convert.h"
#include "kernels/cpu/layouts.h"
#include "kernels/cpu/norms.h"
#include "kernels/cpu/targets.h"

namespace nv_norms {
namespace cpu {
namespace {

// x is empty: there is no y, but there may be statistics, of no elements.
void ForwardEmpty(const ForwardProblem& problem, const ForwardBuffers& buffers) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (int64_t i = 0; i < problem.geometry.statistics; ++i) {
    StoreOne(problem.stat(), nan, buffers.mean, i);
    StoreOne(problem.stat(), nan, buffers.rstd, i);
  }
}

template <typename T>
void ForwardAs(const ForwardProblem& problem, const ForwardBuffers& buffers,
               const ParallelFor& parallel_for) {
  switch (problem.geometry.layout) {
    case Layout::kRows:
      return ForwardRows<T>(problem, buffers, parallel_for);
    case Layout::kColumns:
      return ForwardColumns<T>(problem, buffers, parallel_for);
    case Layout::kGeneral:
      return ForwardGeneral<ComputedIn<T>>(problem, buffers, parallel_for);
  }
}

}  // namespace

Status Forward(const ForwardProblem& problem, const ForwardBuffers& buffers,
               const ParallelFor& parallel_for) {
  if (!TargetStatus().ok()) return TargetStatus();
  if (problem.geometry.elements == 0) {
    ForwardEmpty(problem, buffers);
  } else if (problem.in_double()) {
    ForwardAs<double>(problem, buffers, parallel_for);
  } else if (problem.x == DType::kHalf && problem.y == DType::kHalf) {
    ForwardAs<Half>(problem, buffers, parallel_for);
  } else if (problem.x == DType::kBfloat16 && problem.y == DType::kBfloat16) {
    ForwardAs<Bfloat16>(problem, buffers, parallel_for);
  } else {
    ForwardAs<float>(problem, buffers, parallel_for);
  }
  return Status();
}

}  // namespace cpu
}  // namespace nv_norms
