// Any geometry: x is read for its moments, and again for the output.
#include "kernels/cuda/general.cuh"
#include "kernels/cuda/kernels.cuh"

namespace nv_norms {
namespace cuda {
namespace {

// Sums in float64 about an element: the squares about the mean lose no more than the number of a
// thread's elements times 1e-16, as that element's own square is one of them.
template <typename A, typename Index>
__device__ __forceinline__ Moments MomentsOf(const Reduction& reduction, const GeneralTask& task,
                                             const GeneralPlace& base, DType type, const void* x,
                                             bool rms) {
  Moments out = {0, 0, 0};
  double first = 0;
  double sum = 0;
  ForInputs<Index>(reduction, task, base, [&](const auto& places, int count) {
    A values[kGeneralUnroll];
    LoadAt(type, x, places, values);
    if (out.count == 0 && !rms) first = values[0];
#pragma unroll
    for (int j = 0; j < kGeneralUnroll; ++j) {
      const double e = j < count ? values[j] - first : 0.0;
      sum += e;
      out.m2 += e * e;
    }
    out.count += count;
  });
  if (rms || out.count == 0) return out;
  out.mean = first + sum / out.count;
  const double m2 = out.m2 - sum * (sum / out.count);
  out.m2 = m2 < 0 ? 0 : m2;  // keeps NaN
  return out;
}

template <typename A, typename Index>
__global__ void __launch_bounds__(kGeneralThreads)
    ForwardKernel(const __grid_constant__ ForwardProblem problem, const ForwardBuffers buffers,
                  const __grid_constant__ Reduction reduction, Phase phase, Moments* partials) {
  __shared__ Moments shared[kGeneralThreads];
  const int64_t works = reduction.tiles * reduction.chunks;
  for (int64_t work = blockIdx.x; work < works; work += gridDim.x) {
    const GeneralTask task(reduction, work);
    const GeneralPlace base =
        reduction.outputs.At<Index>(static_cast<Index>(task.output), GeneralPlace());
    Moments moments = phase == Phase::kRest
                          ? MergeChunks(reduction, task, partials, {0, 0, 0}, MergeMoments())
                          : MomentsOf<A, Index>(reduction, task, base, problem.x, buffers.x,
                                                problem.formula == Formula::kRms);
    moments = MergeTile(reduction, task, moments, shared, MergeMoments());
    const bool first = task.live && task.lane == 0;
    if (phase == Phase::kPartial) {
      if (first) partials[task.output * reduction.chunks + task.chunk] = moments;
      continue;
    }
    const Scaling<A> scaling = ScalingOf<A>(problem, buffers, base.stat, moments,
                                            /*store=*/first && task.chunk == 0);
    ForInputs<Index>(reduction, task, base, [&](const auto& places, int count) {
      A x[kGeneralUnroll];
      A gamma[kGeneralUnroll];
      A beta[kGeneralUnroll];
      LoadAt(problem.x, buffers.x, places, x);
      LoadParamsAt<A>(problem.param, buffers.gamma, places, 1, gamma);
      LoadParamsAt<A>(problem.param, buffers.beta, places, 0, beta);
#pragma unroll
      for (int j = 0; j < kGeneralUnroll; ++j) {
        x[j] = ((x[j] - scaling.high) - scaling.low) * scaling.rstd * gamma[j] + beta[j];
      }
      StoreAt(problem.y, buffers.y, places, count, x);
    });
  }
}

Reduction ReductionOf(const ForwardPlan& plan) {
  return Reduction::Of(plan.problem.geometry, plan.device,
                       [](const Axis& axis) { return !axis.reduced; });
}

}  // namespace

int64_t ForwardGeneralBytes(const ForwardPlan& plan) {
  return Align16(ReductionOf(plan).partials() * static_cast<int64_t>(sizeof(Moments)));
}

Status LaunchForwardGeneral(const ForwardPlan& plan, const ForwardBuffers& buffers, void* workspace,
                            void* stream) {
  const Reduction reduction = ReductionOf(plan);
  const bool small = reduction.small();
  auto* kernel = small ? ForwardKernel<float, unsigned> : ForwardKernel<float, int64_t>;
  if (plan.problem.in_double()) {
    kernel = small ? ForwardKernel<double, unsigned> : ForwardKernel<double, int64_t>;
  }
  return LaunchPhases(reduction, [&](unsigned blocks, Phase phase) {
    return LaunchKernel("normalization of a general layout", kernel, blocks, kGeneralThreads, 0, 1,
                        stream, plan.problem, buffers, reduction, phase,
                        static_cast<Moments*>(workspace));
  });
}

}  // namespace cuda
}  // namespace nv_norms
