#include <limits>
#include <memory>

#include "kernels/cpu/activation.h"
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

// Without the activation.
void ForwardNorm(const ForwardProblem& problem, const ForwardBuffers& buffers,
                 const ParallelFor& parallel_for) {
  if (problem.in_double()) {
    ForwardAs<double>(problem, buffers, parallel_for);
  } else if (problem.x == DType::kHalf && problem.y == DType::kHalf) {
    ForwardAs<Half>(problem, buffers, parallel_for);
  } else if (problem.x == DType::kBfloat16 && problem.y == DType::kBfloat16) {
    ForwardAs<Bfloat16>(problem, buffers, parallel_for);
  } else {
    ForwardAs<float>(problem, buffers, parallel_for);
  }
}

// The norm first, in A, so that y is rounded once.
template <typename A>
Status ForwardActivated(const ForwardProblem& problem, const ForwardBuffers& buffers,
                        const ParallelFor& parallel_for) {
  ForwardProblem norm = problem;
  norm.y = TypeOf<A>();
  ForwardBuffers into = buffers;
  std::unique_ptr<A[]> room;
  if (norm.y != problem.y) {
    room = Room<A>(problem.geometry.elements);
    if (room == nullptr) return NoRoom<A>(problem.geometry.elements);
    into.y = room.get();
  }
  ForwardNorm(norm, into, parallel_for);
  Activate(problem, static_cast<const A*>(into.y), buffers.y, parallel_for);
  return Status();
}

}  // namespace

Status Forward(const ForwardProblem& problem, const ForwardBuffers& buffers,
               const ParallelFor& parallel_for) {
  if (!TargetStatus().ok()) return TargetStatus();
  if (problem.geometry.elements == 0) {
    ForwardEmpty(problem, buffers);
  } else if (problem.activation.none()) {
    ForwardNorm(problem, buffers, parallel_for);
  } else {
    return problem.in_double() ? ForwardActivated<double>(problem, buffers, parallel_for)
                               : ForwardActivated<float>(problem, buffers, parallel_for);
  }
  return Status();
}

}  // namespace cpu
}  // namespace nv_norms
