// The kernels of one layout each, for host code. workspace_bytes and launches agree on what is
// where.
#ifndef NV_NORMS_KERNELS_CUDA_KERNELS_CUH_
#define NV_NORMS_KERNELS_CUDA_KERNELS_CUH_

#include "kernels/cuda/norms.h"
#include "kernels/cuda/terms.cuh"

namespace nv_norms {
namespace cuda {

inline int64_t SizeOfNumber(bool in_double) { return in_double ? 8 : 4; }
// Of GradientTerms for every statistic.
inline int64_t TermsBytes(const BackwardProblem& problem) {
  return problem.geometry.statistics * 7 * SizeOfNumber(problem.in_double());
}

// Fills numbers of this type with a value: statistics of nothing, gradients of nothing.
Status LaunchFill(DType type, void* to, int64_t count, double value, void* stream);

Status LaunchForwardGeneral(const ForwardPlan& plan, const ForwardBuffers& buffers, void* stream);
// dx (if wanted), and the terms of every statistic into `terms`.
Status LaunchBackwardGeneral(const BackwardPlan& plan, const BackwardBuffers& buffers, void* terms,
                             void* stream);
// dgamma and dbeta of any geometry, given the terms of every statistic; reads x and dy again.
Status LaunchParamGradients(const BackwardPlan& plan, const BackwardBuffers& buffers,
                            const void* terms, void* stream);

void PlanForwardRows(ForwardPlan* plan);
Status LaunchForwardRows(const ForwardPlan& plan, const ForwardBuffers& buffers, void* workspace,
                         void* stream);
// Rows in shared memory. *launched: whether types and alignment allowed it.
Status LaunchForwardRowsStaged(const ForwardPlan& plan, const ForwardBuffers& buffers, void* stream,
                               bool* launched);
Status LaunchForwardRowsTiny(const ForwardPlan& plan, const ForwardBuffers& buffers, void* stream,
                             bool* launched);
void PlanBackwardRows(BackwardPlan* plan);
Status LaunchBackwardRows(const BackwardPlan& plan, const BackwardBuffers& buffers, void* workspace,
                          void* stream);

// Tiny rows; plan.partials blocks. *launched: whether types and alignment allowed it.
bool SuitsTinyRows(const BackwardProblem& problem);
Status LaunchBackwardRowsTiny(const BackwardPlan& plan, const BackwardBuffers& buffers,
                              float* dgamma, float* dbeta, void* stream, bool* launched);
constexpr int kTinyColumns = 64;  // at most, of tiny rows

// Rows in shared memory, dgamma and dbeta as plan.partials partial sums where not null. *partials:
// how many there are, 0 where types and alignment did not allow it and nothing was launched.
Status LaunchBackwardRowsStaged(const BackwardPlan& plan, const BackwardBuffers& buffers,
                                float* dgamma, float* dbeta, void* stream, int64_t* partials);
// Clusters of that kernel that the device holds at once; 0 where it cannot tell.
int64_t ClustersThatFit(const BackwardPlan& plan);
constexpr int kStagedThreads = 512;
constexpr int kStagedColumns = 16;  // whose sums a thread of the staged gradient keeps

void PlanForwardColumns(ForwardPlan* plan);
Status LaunchForwardColumns(const ForwardPlan& plan, const ForwardBuffers& buffers, void* workspace,
                            void* stream);
// Columns that stay on the chip. After the plan above, which they fall back on: *launched says
// whether alignment and the device allowed them.
void PlanForwardColumnsResident(ForwardPlan* plan);
Status LaunchForwardColumnsResident(const ForwardPlan& plan, const ForwardBuffers& buffers,
                                    void* workspace, void* stream, bool* launched);
void PlanBackwardColumnsResident(BackwardPlan* plan);
Status LaunchBackwardColumnsResident(const BackwardPlan& plan, const BackwardBuffers& buffers,
                                     void* workspace, void* stream, bool* launched);
void PlanBackwardColumns(BackwardPlan* plan);
Status LaunchBackwardColumns(const BackwardPlan& plan, const BackwardBuffers& buffers,
                             void* workspace, void* stream);

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_KERNELS_CUH_
