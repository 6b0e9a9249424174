// Any geometry: x and dy are read for the sums of each statistic, again for dx, and once more for
// dgamma and dbeta.
#include "kernels/cuda/general.cuh"
#include "kernels/cuda/kernels.cuh"

namespace nv_norms {
namespace cuda {
namespace {

template <typename A, typename Index>
__global__ void __launch_bounds__(kGeneralThreads)
    BackwardKernel(const __grid_constant__ BackwardProblem problem, const BackwardBuffers buffers,
                   const __grid_constant__ Reduction reduction, Phase phase,
                   GeneralSums<3>* partials, GradientTerms<A>* terms) {
  __shared__ GeneralSums<3> shared[kGeneralThreads];
  const int64_t works = reduction.tiles * reduction.chunks;
  for (int64_t work = blockIdx.x; work < works; work += gridDim.x) {
    const GeneralTask task(reduction, work);
    const GeneralPlace base =
        reduction.outputs.At<Index>(static_cast<Index>(task.output), GeneralPlace());
    const A mean = StoredMean<A>(buffers, problem.stat(), base.stat);
    const A rstd = LoadOne<A>(problem.stat(), buffers.rstd, base.stat);
    GeneralSums<3> sums = {};  // of e = x - stored mean, of w = dy * gamma, of w * e
    if (phase == Phase::kRest) {
      sums = MergeChunks(reduction, task, partials, sums, AddSums());
    } else {
      ForInputs<Index>(reduction, task, base, [&](const auto& places, int count) {
        A x[kGeneralUnroll];
        A dy[kGeneralUnroll];
        A gamma[kGeneralUnroll];
        LoadAt(problem.x, buffers.x, places, x);
        LoadAt(problem.dy, buffers.dy, places, dy);
        LoadParamsAt<A>(problem.param, buffers.gamma, places, 1, gamma);
#pragma unroll
        for (int j = 0; j < kGeneralUnroll; ++j) {
          if (j >= count) break;
          const double e = x[j] - mean;
          const double w = dy[j] * gamma[j];
          sums.of[0] += e;
          sums.of[1] += w;
          sums.of[2] += w * e;
        }
      });
    }
    sums = MergeTile(reduction, task, sums, shared, AddSums());
    const bool first = task.live && task.lane == 0;
    if (phase == Phase::kPartial) {
      if (first) partials[task.output * reduction.chunks + task.chunk] = sums;
      continue;
    }
    const GradientTerms<A> t =
        TermsOf<A, double>(problem.formula, mean, rstd, sums.of[0], sums.of[1], sums.of[2],
                           static_cast<double>(reduction.inputs.count));
    if (first && task.chunk == 0) terms[base.stat] = t;
    if (buffers.dx == nullptr) continue;
    ForInputs<Index>(reduction, task, base, [&](const auto& places, int count) {
      A x[kGeneralUnroll];
      A dy[kGeneralUnroll];
      A gamma[kGeneralUnroll];
      LoadAt(problem.x, buffers.x, places, x);
      LoadAt(problem.dy, buffers.dy, places, dy);
      LoadParamsAt<A>(problem.param, buffers.gamma, places, 1, gamma);
#pragma unroll
      for (int j = 0; j < kGeneralUnroll; ++j) {
        x[j] = t.rstd * (dy[j] * gamma[j] - t.w_mean - ((x[j] - t.high) - t.low) * t.slope);
      }
      StoreAt(problem.dx, buffers.dx, places, count, x);
    });
  }
}

template <typename A, typename Index>
__global__ void __launch_bounds__(kGeneralThreads)
    ParamsKernel(const __grid_constant__ BackwardProblem problem, const BackwardBuffers buffers,
                 const __grid_constant__ Reduction reduction, Phase phase, GeneralSums<2>* partials,
                 const GradientTerms<A>* terms) {
  __shared__ GeneralSums<2> shared[kGeneralThreads];
  const int64_t works = reduction.tiles * (phase == Phase::kRest ? 1 : reduction.chunks);
  for (int64_t work = blockIdx.x; work < works; work += gridDim.x) {
    const GeneralTask task(reduction, phase == Phase::kRest ? work * reduction.chunks : work);
    const GeneralPlace base =
        reduction.outputs.At<Index>(static_cast<Index>(task.output), GeneralPlace());
    GeneralSums<2> sums = {};  // of dy * xhat, and of dy
    if (phase == Phase::kRest) {
      sums = MergeChunks(reduction, task, partials, sums, AddSums());
    } else {
      ForInputs<Index>(reduction, task, base, [&](const auto& places, int count) {
        A x[kGeneralUnroll];
        A dy[kGeneralUnroll];
        LoadAt(problem.x, buffers.x, places, x);
        LoadAt(problem.dy, buffers.dy, places, dy);
#pragma unroll
        for (int j = 0; j < kGeneralUnroll; ++j) {
          if (j >= count) break;
          const GradientTerms<A>& t = terms[places[j].stat];
          sums.of[0] += dy[j] * (((x[j] - t.xhat_high) - t.xhat_low) * t.rstd);
          sums.of[1] += dy[j];
        }
      });
    }
    sums = MergeTile(reduction, task, sums, shared, AddSums());
    if (!task.live || task.lane != 0) continue;
    if (phase == Phase::kPartial) {
      partials[task.output * reduction.chunks + task.chunk] = sums;
      continue;
    }
    if (buffers.dgamma != nullptr) {
      StoreOne<double>(problem.dparam, buffers.dgamma, base.param, sums.of[0]);
    }
    if (buffers.dbeta != nullptr) {
      StoreOne<double>(problem.dparam, buffers.dbeta, base.param, sums.of[1]);
    }
  }
}

Reduction OfStatistics(const BackwardPlan& plan) {
  return Reduction::Of(plan.problem.geometry, plan.device,
                       [](const Axis& axis) { return !axis.reduced; });
}

Reduction OfParams(const BackwardPlan& plan) {
  return Reduction::Of(plan.problem.geometry, plan.device,
                       [](const Axis& axis) { return axis.param_stride != 0; });
}

template <typename A, typename Index>
Status LaunchSums(const BackwardPlan& plan, const BackwardBuffers& buffers,
                  const Reduction& reduction, GradientTerms<A>* terms, void* partials,
                  void* stream) {
  return LaunchPhases(reduction, [&](unsigned blocks, Phase phase) {
    return LaunchKernel("normalization gradient of a general layout", BackwardKernel<A, Index>,
                        blocks, kGeneralThreads, 0, 1, stream, plan.problem, buffers, reduction,
                        phase, static_cast<GeneralSums<3>*>(partials), terms);
  });
}

template <typename A, typename Index>
Status LaunchParams(const BackwardPlan& plan, const BackwardBuffers& buffers,
                    const Reduction& reduction, const GradientTerms<A>* terms, void* partials,
                    void* stream) {
  return LaunchPhases(reduction, [&](unsigned blocks, Phase phase) {
    return LaunchKernel("parameter gradients of a general layout", ParamsKernel<A, Index>, blocks,
                        kGeneralThreads, 0, 1, stream, plan.problem, buffers, reduction, phase,
                        static_cast<GeneralSums<2>*>(partials), terms);
  });
}

template <typename A>
Status LaunchAs(const BackwardPlan& plan, const BackwardBuffers& buffers, void* workspace,
                void* stream) {
  auto* const terms = static_cast<GradientTerms<A>*>(workspace);
  void* const partials = static_cast<char*>(workspace) + Align16(TermsBytes(plan.problem));
  const Reduction statistics = OfStatistics(plan);
  NV_NORMS_RETURN_IF_ERROR((statistics.small() ? LaunchSums<A, unsigned>
                                               : LaunchSums<A, int64_t>)(plan, buffers, statistics,
                                                                         terms, partials, stream));
  if (buffers.dgamma == nullptr && buffers.dbeta == nullptr) return Status();
  const Reduction params = OfParams(plan);
  return (params.small() ? LaunchParams<A, unsigned> : LaunchParams<A, int64_t>)(plan, buffers,
                                                                                 params, terms,
                                                                                 partials, stream);
}

}  // namespace

int64_t BackwardGeneralBytes(const BackwardPlan& plan) {
  const auto of_statistics =
      OfStatistics(plan).partials() * static_cast<int64_t>(sizeof(GeneralSums<3>));
  const auto of_params =
      plan.want_params ? OfParams(plan).partials() * static_cast<int64_t>(sizeof(GeneralSums<2>))
                       : 0;
  return Align16(TermsBytes(plan.problem)) + Align16(std::max(of_statistics, of_params));
}

Status LaunchBackwardGeneral(const BackwardPlan& plan, const BackwardBuffers& buffers,
                             void* workspace, void* stream) {
  return plan.problem.in_double() ? LaunchAs<double>(plan, buffers, workspace, stream)
                                  : LaunchAs<float>(plan, buffers, workspace, stream);
}

}  // namespace cuda
}  // namespace nv_norms
