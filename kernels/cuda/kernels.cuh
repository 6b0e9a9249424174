// The kernels of one layout each, for host code. workspace_bytes and launches agree on what is
// where.
#ifndef NV_NORMS_KERNELS_CUDA_KERNELS_CUH_
#define NV_NORMS_KERNELS_CUDA_KERNELS_CUH_

#include "kernels/cuda/norms.h"
#include "kernels/cuda/ring_shape.h"
#include "kernels/cuda/terms.cuh"

namespace nv_norms {
namespace cuda {

template <typename A>
struct SegmentSums;
template <typename A>
struct XhatLine;

// What mixed precision gives a norm that computes in float32: dy in 16 bits, x and dx in float32.
inline bool MixedGradient(const BackwardProblem& problem) {
  return problem.x == DType::kFloat && problem.dx == DType::kFloat && SizeOf(problem.dy) == 2;
}

inline int64_t SizeOfNumber(bool in_double) { return in_double ? 8 : 4; }
// Of GradientTerms for every statistic.
inline int64_t TermsBytes(const BackwardProblem& problem) {
  return problem.geometry.statistics * 7 * SizeOfNumber(problem.in_double());
}

// Fills numbers of this type with a value: statistics of nothing, gradients of nothing.
Status LaunchFill(DType type, void* to, int64_t count, double value, void* stream);

int64_t ForwardGeneralBytes(const ForwardPlan& plan);
Status LaunchForwardGeneral(const ForwardPlan& plan, const ForwardBuffers& buffers, void* workspace,
                            void* stream);
int64_t BackwardGeneralBytes(const BackwardPlan& plan);
Status LaunchBackwardGeneral(const BackwardPlan& plan, const BackwardBuffers& buffers,
                             void* workspace, void* stream);

// The ladders of the row kernels.
void PlanForwardRows(ForwardPlan* plan);
Status LaunchForwardRows(const ForwardPlan& plan, const ForwardBuffers& buffers, void* workspace,
                         void* stream);
void PlanBackwardRows(BackwardPlan* plan);
Status LaunchBackwardRows(const BackwardPlan& plan, const BackwardBuffers& buffers, void* workspace,
                          void* stream);

// Their rungs. *launched: whether types and alignment allowed it; those without take all.
constexpr int64_t kMostColumns = int64_t{1} << 31;  // and blocks

// Rows too few to give every multiprocessor one.
inline bool FewLongRows(const RowLayout& layout, const Device& device) {
  return layout.rows < device.multiprocessors / 2 && layout.cols > 16384;
}

Status LaunchForwardRowsWarp(const ForwardPlan& plan, const ForwardBuffers& buffers, void* stream,
                             bool* launched);
// Warps that go on from row to row, gamma and beta in shared memory.
Status LaunchForwardRowsGoing(const ForwardPlan& plan, const ForwardBuffers& buffers, void* stream,
                              bool* launched);
Status LaunchForwardRowsTile(const ForwardPlan& plan, const ForwardBuffers& buffers, void* stream,
                             bool* launched);
int64_t ForwardRingBytes(const ForwardPlan& plan);
RingShape ForwardRingShape(const ForwardPlan& plan);  // of tensors aligned to 16 bytes
Status LaunchForwardRowsRing(const ForwardPlan& plan, const ForwardBuffers& buffers,
                             void* workspace, void* stream, bool* launched);
bool ForwardAnyFits(const ForwardPlan& plan);
Status LaunchForwardRowsAny(const ForwardPlan& plan, const ForwardBuffers& buffers, void* stream);
int64_t ForwardSplitBytes(const ForwardProblem& problem);
Status LaunchForwardRowsSplit(const ForwardPlan& plan, const ForwardBuffers& buffers,
                              void* workspace, void* stream);

// The gradient's leave so many partial sums of dgamma and dbeta ([partials, cols], where not null)
// for LaunchFinish.
int64_t WarpPartials(const BackwardPlan& plan);  // 0: rows that warps do not have
Status LaunchBackwardRowsWarp(const BackwardPlan& plan, const BackwardBuffers& buffers,
                              int64_t partials, float* dgamma, float* dbeta, void* stream,
                              bool* launched);
int64_t GoingPartials(const BackwardPlan& plan);  // 0: rows that other kernels are faster with
Status LaunchBackwardRowsGoing(const BackwardPlan& plan, const BackwardBuffers& buffers,
                               int64_t partials, float* dgamma, float* dbeta, void* stream,
                               bool* launched);
bool SuitsTiles(const BackwardPlan& plan);
int64_t TilePartials(const BackwardPlan& plan);
Status LaunchBackwardRowsTile(const BackwardPlan& plan, const BackwardBuffers& buffers,
                              int64_t partials, float* dgamma, float* dbeta, void* stream,
                              bool* launched);
// Of rows that have parameters of their own; dgamma and dbeta too.
void PlanBackwardRowsTileOwn(BackwardPlan* plan);
Status LaunchBackwardRowsTileOwn(const BackwardPlan& plan, const BackwardBuffers& buffers,
                                 void* workspace, void* stream, bool* launched);
RingShape BackwardRingShape(const BackwardPlan& plan);  // a partial sum to a team
// Where a ring kernel leaves its sums: of columns [teams, cols], or of rows that have parameters of
// their own, with their lines (segments_sums.cuh). Null where not wanted.
struct RingSums {
  float* dgamma = nullptr;
  float* dbeta = nullptr;
  SegmentSums<float>* rows = nullptr;
  XhatLine<float>* lines = nullptr;
};
Status LaunchBackwardRowsRing(const BackwardPlan& plan, const RingShape& shape,
                              const BackwardBuffers& buffers, const RingSums& sums, void* mail,
                              void* stream, bool* launched);
bool BackwardAnyFits(const BackwardPlan& plan);
int64_t AnyPartials(const BackwardPlan& plan);  // of each sample that has parameters of its own
Status LaunchBackwardRowsAny(const BackwardPlan& plan, const BackwardBuffers& buffers, void* dgamma,
                             void* dbeta, void* stream);
int64_t SplitPartials(const BackwardPlan& plan);
int64_t BackwardSplitBytes(const BackwardProblem& problem);
Status LaunchBackwardRowsSplit(const BackwardPlan& plan, const BackwardBuffers& buffers,
                               void* terms, void* tile_sums, void* dgamma, void* dbeta,
                               void* stream);
Status LaunchFinish(const BackwardProblem& problem, int64_t cols, const BackwardBuffers& buffers,
                    const void* dgamma, const void* dbeta, int64_t partials, const Device& device,
                    void* stream);

// Rows of samples that have parameters of their own.
void PlanForwardSamples(ForwardPlan* plan);
Status LaunchForwardSamples(const ForwardPlan& plan, const ForwardBuffers& buffers, void* workspace,
                            void* stream);
void PlanBackwardSamples(BackwardPlan* plan);
Status LaunchBackwardSamples(const BackwardPlan& plan, const BackwardBuffers& buffers,
                             void* workspace, void* stream);

// Rows whose parameters do not belong to columns, but to segments of rows (segments.h). The forward
// ladder has a rung for them, the gradient is apart.
void PlanForwardSegments(ForwardPlan* plan);
Status LaunchForwardSegments(const ForwardPlan& plan, const ForwardBuffers& buffers,
                             void* workspace, void* stream, bool* launched);
// On the chip: the kernels of long rows for rows that are one segment each, or those of segments.
Status LaunchForwardRowsOwn(const ForwardPlan& plan, const ForwardBuffers& buffers, void* workspace,
                            void* stream, bool* launched);
Status LaunchForwardSegmentsOnChip(const ForwardPlan& plan, const ForwardBuffers& buffers,
                                   void* workspace, void* stream, bool* launched);
void PlanBackwardSegments(BackwardPlan* plan);
Status LaunchBackwardSegments(const BackwardPlan& plan, const BackwardBuffers& buffers,
                              void* workspace, void* stream);
void PlanBackwardRowsOwn(BackwardPlan* plan);
Status LaunchBackwardRowsOwn(const BackwardPlan& plan, const BackwardBuffers& buffers,
                             void* workspace, void* stream, bool* launched);
Status LaunchBackwardSegmentsOnChip(const BackwardPlan& plan, const BackwardBuffers& buffers,
                                    void* workspace, void* stream, bool* launched);
void PlanBackwardSegmentsResident(BackwardPlan* plan);
Status LaunchBackwardSegmentsResident(const BackwardPlan& plan, const BackwardBuffers& buffers,
                                      void* workspace, void* stream, bool* launched);

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
// Those much larger than the chip, on devices of capability 9.0; before the plan above.
void PlanForwardColumnsPipe(ForwardPlan* plan);
Status LaunchForwardColumnsPipe(const ForwardPlan& plan, const ForwardBuffers& buffers,
                                void* workspace, void* stream, bool* launched);
// Layer norms over a middle axis of few rows, a thread to some columns; of any alignment.
bool ForwardShortFits(const ForwardProblem& problem);
Status LaunchForwardColumnsShort(const ForwardPlan& plan, const ForwardBuffers& buffers,
                                 void* workspace, void* stream, bool* launched);
bool BackwardShortFits(const BackwardProblem& problem);
int64_t BackwardShortBytes(const BackwardPlan& plan);
Status LaunchBackwardColumnsShort(const BackwardPlan& plan, const BackwardBuffers& buffers,
                                  void* workspace, void* stream, bool* launched);
// Of more rows, whose strips are a block's, after the plans above.
void PlanForwardColumnsAxis(ForwardPlan* plan);
Status LaunchForwardColumnsAxis(const ForwardPlan& plan, const ForwardBuffers& buffers,
                                void* workspace, void* stream, bool* launched);
void PlanBackwardColumnsAxis(BackwardPlan* plan);
Status LaunchBackwardColumnsAxis(const BackwardPlan& plan, const BackwardBuffers& buffers,
                                 void* workspace, void* stream, bool* launched);
// And those that these do not take, for their alignment or as their rows are no whole vectors.
Status LaunchForwardColumnsOdd(const ForwardPlan& plan, const ForwardBuffers& buffers,
                               void* workspace, void* stream, bool* launched);
void PlanBackwardColumnsOdd(BackwardPlan* plan);
Status LaunchBackwardColumnsOdd(const BackwardPlan& plan, const BackwardBuffers& buffers,
                                void* workspace, void* stream, bool* launched);
// These, streaming, the pipe or the resident strips: the first that suits.
Status LaunchForwardColumnsOnChip(const ForwardPlan& plan, const ForwardBuffers& buffers,
                                  void* workspace, void* stream, bool* launched);
void PlanBackwardColumns(BackwardPlan* plan);
Status LaunchBackwardColumns(const BackwardPlan& plan, const BackwardBuffers& buffers,
                             void* workspace, void* stream);

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_KERNELS_CUH_
