// The ladder of the row kernels: which one runs, by types, alignment, the columns of a row and the
// number of rows. Each rung says whether it fits; read from top to bottom.
#include "kernels/cuda/columns_held.h"
#include "kernels/cuda/held.h"
#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/split.cuh"

namespace nv_norms {
namespace cuda {

void PlanForwardRows(ForwardPlan* plan) {
  const ForwardProblem& problem = plan->problem;
  if (problem.geometry.rows.repeat > 1) return PlanForwardSamples(plan);
  plan->kernel = SplitFits(problem.geometry.rows) ? Kernel::kRows : Kernel::kGeneral;
  if (plan->kernel == Kernel::kGeneral) return;
  plan->workspace = ForwardRingBytes(*plan);
  if (!problem.geometry.rows.by_column()) PlanForwardSegments(plan);
  if (!ForwardAnyFits(*plan) || FewLongRows(problem.geometry.rows, plan->device)) {
    plan->workspace = std::max(plan->workspace, ForwardSplitBytes(problem));
  }
}

Status LaunchForwardSegmentsOnChip(const ForwardPlan& plan, const ForwardBuffers& buffers,
                                   void* workspace, void* stream, bool* launched) {
  *launched = false;
  if (plan.problem.geometry.rows.by_column()) return Status();
  Status status = LaunchForwardRowsTile(plan, buffers, stream, launched);
  if (*launched || !status.ok()) return status;
  status = LaunchForwardColumnsHeld(plan, buffers, workspace, stream, launched);
  if (*launched || !status.ok()) return status;
  status = LaunchForwardHeld(plan, buffers, stream, launched);
  if (*launched || !status.ok()) return status;
  status = LaunchForwardRowsOwn(plan, buffers, workspace, stream, launched);
  if (*launched || !status.ok()) return status;
  return LaunchForwardSegments(plan, buffers, workspace, stream, launched);
}

Status LaunchForwardRows(const ForwardPlan& plan, const ForwardBuffers& buffers, void* workspace,
                         void* stream) {
  if (plan.problem.geometry.rows.repeat > 1) {
    return LaunchForwardSamples(plan, buffers, workspace, stream);
  }
  bool launched = false;
  Status status = LaunchForwardSegmentsOnChip(plan, buffers, workspace, stream, &launched);
  if (launched || !status.ok()) return status;
  status = LaunchForwardRowsGoing(plan, buffers, stream, &launched);
  if (launched || !status.ok()) return status;
  status = LaunchForwardRowsWarp(plan, buffers, stream, &launched);
  if (launched || !status.ok()) return status;
  status = LaunchForwardRowsTile(plan, buffers, stream, &launched);
  if (launched || !status.ok()) return status;
  status = LaunchForwardRowsRing(plan, buffers, workspace, stream, &launched);
  if (launched || !status.ok()) return status;
  if (ForwardAnyFits(plan) && !FewLongRows(plan.problem.geometry.rows, plan.device)) {
    return LaunchForwardRowsAny(plan, buffers, stream);
  }
  return LaunchForwardRowsSplit(plan, buffers, workspace, stream);
}

namespace {

// Partial sums of dgamma and dbeta, the most that any rung of the gradient's ladder has.
struct Partials {
  int64_t going = 0;  // 0: that rung does not fit
  int64_t warp = 0;
  int64_t tile = 0;
  int64_t ring = 0;
  int64_t any = 0;
  int64_t split = 0;
  int64_t most() const { return std::max({going, warp, tile, ring, any, split}); }
};

Partials PartialsOf(const BackwardPlan& plan, const RingShape& ring) {
  Partials out;
  out.going = GoingPartials(plan);
  out.warp = WarpPartials(plan);
  if (SuitsTiles(plan)) out.tile = TilePartials(plan);
  if (out.tile == 0 && ring.blocks != 0) out.ring = ring.teams / ring.allies;
  if (BackwardAnyFits(plan) && !FewLongRows(plan.problem.geometry.rows, plan.device)) {
    out.any = AnyPartials(plan);
  } else {
    out.split = SplitPartials(plan);
  }
  return out;
}

// Where things lie in the workspace.
struct Places {
  int64_t dgamma = 0;
  int64_t dbeta = 0;
  int64_t terms = 0;
  int64_t rest = 0;  // what blocks post, or sums of tiles
  int64_t bytes = 0;
};

Places PlacesOf(const BackwardPlan& plan, const RingShape& ring, const Partials& partials) {
  const BackwardProblem& problem = plan.problem;
  const RowLayout& layout = problem.geometry.rows;
  Places out;
  const auto take = [&](int64_t bytes) {
    const int64_t at = out.bytes;
    out.bytes += Align16(bytes);
    return at;
  };
  if (plan.want_params) {
    const int64_t sums = partials.most() * layout.cols * SizeOfNumber(problem.in_double());
    out.dgamma = take(sums);
    out.dbeta = take(sums);
  }
  if (partials.split != 0) out.terms = take(TermsBytes(problem));
  out.rest = take(std::max(partials.ring != 0 ? MailBytes(ring, layout.rows) : 0,
                           partials.split != 0 ? BackwardSplitBytes(problem) : 0));
  return out;
}

}  // namespace

void PlanBackwardRows(BackwardPlan* plan) {
  const BackwardProblem& problem = plan->problem;
  if (problem.geometry.rows.repeat > 1) return PlanBackwardSamples(plan);
  if (!problem.geometry.rows.by_column()) return PlanBackwardSegments(plan);
  plan->kernel = SplitFits(problem.geometry.rows) ? Kernel::kRows : Kernel::kGeneral;
  if (plan->kernel == Kernel::kGeneral) return;
  const RingShape ring = BackwardRingShape(*plan);
  const Partials partials = PartialsOf(*plan, ring);
  plan->partials = partials.most();
  plan->workspace = PlacesOf(*plan, ring, partials).bytes;
}

Status LaunchBackwardRows(const BackwardPlan& plan, const BackwardBuffers& buffers, void* workspace,
                          void* stream) {
  const BackwardProblem& problem = plan.problem;
  const RowLayout& layout = problem.geometry.rows;
  if (layout.repeat > 1) return LaunchBackwardSamples(plan, buffers, workspace, stream);
  if (!layout.by_column()) return LaunchBackwardSegments(plan, buffers, workspace, stream);
  const RingShape ring = BackwardRingShape(plan);
  const Partials partials = PartialsOf(plan, ring);
  const Places places = PlacesOf(plan, ring, partials);
  char* const base = static_cast<char*>(workspace);
  const bool want_params = buffers.dgamma != nullptr || buffers.dbeta != nullptr;
  void* const dgamma = buffers.dgamma != nullptr ? base + places.dgamma : nullptr;
  void* const dbeta = buffers.dbeta != nullptr ? base + places.dbeta : nullptr;
  void* const terms = partials.split != 0 ? base + places.terms : nullptr;
  bool launched = false;
  int64_t count = 0;  // of partial sums
  if (partials.going != 0) {
    NV_NORMS_RETURN_IF_ERROR(
        LaunchBackwardRowsGoing(plan, buffers, partials.going, static_cast<float*>(dgamma),
                                static_cast<float*>(dbeta), stream, &launched));
    count = partials.going;
  }
  if (!launched && partials.warp != 0) {
    NV_NORMS_RETURN_IF_ERROR(LaunchBackwardRowsWarp(plan, buffers, partials.warp,
                                                    static_cast<float*>(dgamma),
                                                    static_cast<float*>(dbeta), stream, &launched));
    count = partials.warp;
  }
  if (!launched && partials.tile != 0) {
    NV_NORMS_RETURN_IF_ERROR(LaunchBackwardRowsTile(plan, buffers, partials.tile,
                                                    static_cast<float*>(dgamma),
                                                    static_cast<float*>(dbeta), stream, &launched));
    count = partials.tile;
  }
  if (!launched && partials.ring != 0) {
    // The sums of a single team are whole.
    const bool whole = partials.ring == 1 && problem.dparam == DType::kFloat &&
                       AlignedTo(buffers.dgamma, 16) && AlignedTo(buffers.dbeta, 16);
    RingSums sums;
    sums.dgamma = static_cast<float*>(whole ? buffers.dgamma : dgamma);
    sums.dbeta = static_cast<float*>(whole ? buffers.dbeta : dbeta);
    NV_NORMS_RETURN_IF_ERROR(
        LaunchBackwardRowsRing(plan, ring, buffers, sums, base + places.rest, stream, &launched));
    if (launched && whole) return Status();
    count = partials.ring;
  }
  if (!launched && partials.any != 0) {
    NV_NORMS_RETURN_IF_ERROR(LaunchBackwardRowsAny(plan, buffers, dgamma, dbeta, stream));
    count = partials.any;
  } else if (!launched) {
    NV_NORMS_RETURN_IF_ERROR(
        LaunchBackwardRowsSplit(plan, buffers, terms, base + places.rest, dgamma, dbeta, stream));
    count = partials.split;
  }
  if (!want_params) return Status();
  if (!launched && partials.any == 0 && count == 1) return Status();  // these sums are whole
  return LaunchFinish(problem, layout.cols, buffers, dgamma, dbeta, count, plan.device, stream);
}

}  // namespace cuda
}  // namespace nv_norms
