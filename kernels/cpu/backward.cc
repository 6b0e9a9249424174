#include "kernels/cpu/layouts.h"
#include "kernels/cpu/norms.h"

namespace nv_norms {
namespace cpu {
namespace {

void BackwardEmpty(const BackwardProblem& problem, const BackwardBuffers& buffers) {
  for (int64_t i = 0; i < problem.geometry.params; ++i) {
    StoreOne(problem.dparam, 0.0, buffers.dgamma, i);
    StoreOne(problem.dparam, 0.0, buffers.dbeta, i);
  }
}

template <typename A>
void BackwardAs(const BackwardProblem& problem, const BackwardBuffers& buffers,
                const ParallelFor& parallel_for) {
  switch (problem.geometry.layout) {
    case Layout::kRows:
      return BackwardRows<A>(problem, buffers, parallel_for);
    case Layout::kColumns:
      return BackwardColumns<A>(problem, buffers, parallel_for);
    case Layout::kGeneral:
      return BackwardGeneral<A>(problem, buffers, parallel_for);
  }
}

}  // namespace

Status Backward(const BackwardProblem& problem, const BackwardBuffers& buffers,
                const ParallelFor& parallel_for) {
  if (problem.geometry.elements == 0) {
    BackwardEmpty(problem, buffers);
  } else if (problem.in_double()) {
    BackwardAs<double>(problem, buffers, parallel_for);
  } else {
    BackwardAs<float>(problem, buffers, parallel_for);
  }
  return Status();
}

}  // namespace cpu
}  // namespace nv_norms
