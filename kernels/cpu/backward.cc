#include <memory>

#include "kernels/cpu/activation.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/layouts.h"
#include "kernels/cpu/norms.h"
#include "kernels/cpu/targets.h"

namespace nv_norms {
namespace cpu {
namespace {

void BackwardEmpty(const BackwardProblem& problem, const BackwardBuffers& buffers) {
  for (int64_t i = 0; i < problem.geometry.params; ++i) {
    StoreOne(problem.dparam, 0.0, buffers.dgamma, i);
    StoreOne(problem.dparam, 0.0, buffers.dbeta, i);
  }
}

template <typename T>
void BackwardAs(const BackwardProblem& problem, const BackwardBuffers& buffers,
                const ParallelFor& parallel_for) {
  switch (problem.geometry.layout) {
    case Layout::kRows:
      return BackwardRows<T>(problem, buffers, parallel_for);
    case Layout::kColumns:
      return BackwardColumns<T>(problem, buffers, parallel_for);
    case Layout::kGeneral:
      return BackwardGeneral<ComputedIn<T>>(problem, buffers, parallel_for);
  }
}

bool AllAre(DType type, const BackwardProblem& problem, const BackwardBuffers& buffers) {
  return problem.x == type && problem.dy == type && (buffers.dx == nullptr || problem.dx == type);
}

// Without an activation.
void BackwardNorm(const BackwardProblem& problem, const BackwardBuffers& buffers,
                  const ParallelFor& parallel_for) {
  if (problem.in_double()) {
    BackwardAs<double>(problem, buffers, parallel_for);
  } else if (AllAre(DType::kHalf, problem, buffers)) {
    BackwardAs<Half>(problem, buffers, parallel_for);
  } else if (AllAre(DType::kBfloat16, problem, buffers)) {
    BackwardAs<Bfloat16>(problem, buffers, parallel_for);
  } else {
    BackwardAs<float>(problem, buffers, parallel_for);
  }
}

// The activation's gradient first, in A, so that it is not rounded.
template <typename A>
Status BackwardActivated(const BackwardProblem& problem, const BackwardBuffers& buffers,
                         const ParallelFor& parallel_for) {
  const std::unique_ptr<A[]> room = Room<A>(problem.geometry.elements);
  if (room == nullptr) return NoRoom<A>(problem.geometry.elements);
  PassGradient(problem, buffers, room.get(), parallel_for);
  BackwardProblem norm = problem;
  norm.dy = TypeOf<A>();
  BackwardBuffers from = buffers;
  from.dy = room.get();
  BackwardNorm(norm, from, parallel_for);
  return Status();
}

}  // namespace

Status Backward(const BackwardProblem& problem, const BackwardBuffers& buffers,
                const ParallelFor& parallel_for) {
  if (!TargetStatus().ok()) return TargetStatus();
  if (problem.geometry.elements == 0) {
    BackwardEmpty(problem, buffers);
  } else if (problem.activation.none()) {
    BackwardNorm(problem, buffers, parallel_for);
  } else {
    return problem.in_double() ? BackwardActivated<double>(problem, buffers, parallel_for)
                               : BackwardActivated<float>(problem, buffers, parallel_for);
  }
  return Status();
}

}  // namespace cpu
}  // namespace nv_norms
