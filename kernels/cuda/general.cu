// Any geometry, by index arithmetic: a block to a statistic, then a block to a parameter.
#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/reduce.cuh"

namespace nv_norms {
namespace cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 1 << 20;

// Where an element lies in x, in gamma, and in mean.
struct Place {
  int64_t offset = 0;
  int64_t param = 0;
  int64_t stat = 0;
};

enum class Which { kKept, kReduced, kWithParams, kWithoutParams };

__device__ bool Picked(const Axis& axis, Which which) {
  switch (which) {
    case Which::kKept:
      return !axis.reduced;
    case Which::kReduced:
      return axis.reduced;
    case Which::kWithParams:
      return axis.param_stride != 0;
    default:
      return axis.param_stride == 0;
  }
}

// The index-th place over the picked axes, the last one fastest, counted from `place`.
__device__ Place PlaceAt(const Geometry& geometry, Which which, int64_t index, Place place) {
  for (int i = geometry.rank - 1; i >= 0; --i) {
    const Axis& axis = geometry.axes[i];
    if (!Picked(axis, which)) continue;
    const int64_t at = index % axis.size;
    index /= axis.size;
    place.offset += at * axis.stride;
    place.param += at * axis.param_stride;
    place.stat += at * axis.stat_stride;
  }
  return place;
}

template <typename A>
__global__ void __launch_bounds__(kThreads)
    ForwardKernel(const __grid_constant__ ForwardProblem problem, const ForwardBuffers buffers) {
  __shared__ BlockStorage<1, double> first_storage;
  __shared__ BlockStorage<2, double> second_storage;
  const Geometry& geometry = problem.geometry;
  const double count = static_cast<double>(geometry.reduced);
  for (int64_t stat = blockIdx.x; stat < geometry.statistics; stat += gridDim.x) {
    __syncthreads();  // the storage is used again
    const Place base = PlaceAt(geometry, Which::kKept, stat, Place());
    A shift = 0;
    if (problem.formula != Formula::kRms) {
      const A first = LoadOne<A>(problem.x, buffers.x, base.offset);
      double sum[1] = {0};
      for (int64_t i = threadIdx.x; i < geometry.reduced; i += kThreads) {
        const Place at = PlaceAt(geometry, Which::kReduced, i, base);
        sum[0] += LoadOne<A>(problem.x, buffers.x, at.offset) - first;
      }
      BlockSum(sum, &first_storage);
      shift = static_cast<A>(first + sum[0] / count);
    }
    double sums[2] = {0, 0};
    for (int64_t i = threadIdx.x; i < geometry.reduced; i += kThreads) {
      const Place at = PlaceAt(geometry, Which::kReduced, i, base);
      const double e = LoadOne<A>(problem.x, buffers.x, at.offset) - shift;
      sums[0] += e;
      sums[1] += e * e;
    }
    BlockSum(sums, &second_storage);
    Moments moments = {count, 0, sums[1]};
    if (problem.formula != Formula::kRms) {
      const double low = sums[0] / count;
      moments.mean = shift + low;
      const double m2 = sums[1] - sums[0] * low;
      moments.m2 = m2 < 0 ? 0 : m2;  // keeps NaN
    }
    const Scaling<A> scaling =
        ScalingOf<A>(problem, buffers, stat, moments, /*store=*/threadIdx.x == 0);
    for (int64_t i = threadIdx.x; i < geometry.reduced; i += kThreads) {
      const Place at = PlaceAt(geometry, Which::kReduced, i, base);
      const A x = LoadOne<A>(problem.x, buffers.x, at.offset);
      const A gamma = ParamOr<A>(problem.param, buffers.gamma, at.param, 1);
      const A beta = ParamOr<A>(problem.param, buffers.beta, at.param, 0);
      const A y = ((x - scaling.high) - scaling.low) * scaling.rstd * gamma + beta;
      StoreOne(problem.y, buffers.y, at.offset, y);
    }
  }
}

template <typename A>
__global__ void __launch_bounds__(kThreads)
    BackwardKernel(const __grid_constant__ BackwardProblem problem, const BackwardBuffers buffers,
                   GradientTerms<A>* terms) {
  __shared__ BlockStorage<3, double> storage;
  const Geometry& geometry = problem.geometry;
  for (int64_t stat = blockIdx.x; stat < geometry.statistics; stat += gridDim.x) {
    __syncthreads();  // the storage is used again
    const Place base = PlaceAt(geometry, Which::kKept, stat, Place());
    const A mean = StoredMean<A>(buffers, problem.stat(), stat);
    const A rstd = LoadOne<A>(problem.stat(), buffers.rstd, stat);
    double sums[3] = {0, 0, 0};
    for (int64_t i = threadIdx.x; i < geometry.reduced; i += kThreads) {
      const Place at = PlaceAt(geometry, Which::kReduced, i, base);
      const double e = LoadOne<A>(problem.x, buffers.x, at.offset) - mean;
      const double w = LoadOne<A>(problem.dy, buffers.dy, at.offset) *
                       ParamOr<A>(problem.param, buffers.gamma, at.param, 1);
      sums[0] += e;
      sums[1] += w;
      sums[2] += w * e;
    }
    BlockSum(sums, &storage);
    const GradientTerms<A> t = TermsOf<A, double>(problem.formula, mean, rstd, sums[0], sums[1],
                                                  sums[2], static_cast<double>(geometry.reduced));
    if (threadIdx.x == 0) terms[stat] = t;
    if (buffers.dx == nullptr) continue;
    for (int64_t i = threadIdx.x; i < geometry.reduced; i += kThreads) {
      const Place at = PlaceAt(geometry, Which::kReduced, i, base);
      const A x = LoadOne<A>(problem.x, buffers.x, at.offset);
      const A w = LoadOne<A>(problem.dy, buffers.dy, at.offset) *
                  ParamOr<A>(problem.param, buffers.gamma, at.param, 1);
      StoreOne(problem.dx, buffers.dx, at.offset,
               t.rstd * (w - t.w_mean - ((x - t.high) - t.low) * t.slope));
    }
  }
}

template <typename A>
__global__ void __launch_bounds__(kThreads)
    ParamGradientsKernel(const __grid_constant__ BackwardProblem problem,
                         const BackwardBuffers buffers, const GradientTerms<A>* terms) {
  __shared__ BlockStorage<2, double> storage;
  const Geometry& geometry = problem.geometry;
  const int64_t count = geometry.elements / geometry.params;
  for (int64_t index = blockIdx.x; index < geometry.params; index += gridDim.x) {
    __syncthreads();  // the storage is used again
    const Place base = PlaceAt(geometry, Which::kWithParams, index, Place());
    double sums[2] = {0, 0};
    for (int64_t i = threadIdx.x; i < count; i += kThreads) {
      const Place at = PlaceAt(geometry, Which::kWithoutParams, i, base);
      const GradientTerms<A>& t = terms[at.stat];
      const A x = LoadOne<A>(problem.x, buffers.x, at.offset);
      const A dy = LoadOne<A>(problem.dy, buffers.dy, at.offset);
      sums[0] += dy * (((x - t.xhat_high) - t.xhat_low) * t.rstd);
      sums[1] += dy;
    }
    BlockSum(sums, &storage);
    if (threadIdx.x != 0) continue;
    if (buffers.dgamma != nullptr) {
      StoreOne<double>(problem.dparam, buffers.dgamma, base.param, sums[0]);
    }
    if (buffers.dbeta != nullptr) {
      StoreOne<double>(problem.dparam, buffers.dbeta, base.param, sums[1]);
    }
  }
}

__global__ void FillKernel(DType type, void* to, int64_t count, double value) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < count;
       i += step) {
    StoreOne(type, to, i, value);
  }
}

}  // namespace

Status LaunchFill(DType type, void* to, int64_t count, double value, void* stream) {
  if (to == nullptr || count == 0) return Status();
  const int64_t blocks = std::min<int64_t>(1024, CeilDiv(count, kThreads));
  return LaunchKernel("fill", FillKernel, static_cast<unsigned>(blocks), kThreads, 0, 1, stream,
                      type, to, count, value);
}

Status LaunchForwardGeneral(const ForwardPlan& plan, const ForwardBuffers& buffers, void* stream) {
  const unsigned blocks =
      static_cast<unsigned>(std::min(kMaxBlocks, plan.problem.geometry.statistics));
  return LaunchKernel("normalization of a general layout",
                      plan.problem.in_double() ? ForwardKernel<double> : ForwardKernel<float>,
                      blocks, kThreads, 0, 1, stream, plan.problem, buffers);
}

Status LaunchBackwardGeneral(const BackwardPlan& plan, const BackwardBuffers& buffers, void* terms,
                             void* stream) {
  const unsigned blocks =
      static_cast<unsigned>(std::min(kMaxBlocks, plan.problem.geometry.statistics));
  const char* name = "normalization gradient of a general layout";
  if (plan.problem.in_double()) {
    return LaunchKernel(name, BackwardKernel<double>, blocks, kThreads, 0, 1, stream, plan.problem,
                        buffers, static_cast<GradientTerms<double>*>(terms));
  }
  return LaunchKernel(name, BackwardKernel<float>, blocks, kThreads, 0, 1, stream, plan.problem,
                      buffers, static_cast<GradientTerms<float>*>(terms));
}

Status LaunchParamGradients(const BackwardPlan& plan, const BackwardBuffers& buffers,
                            const void* terms, void* stream) {
  if (buffers.dgamma == nullptr && buffers.dbeta == nullptr) return Status();
  const unsigned blocks = static_cast<unsigned>(std::min(kMaxBlocks, plan.problem.geometry.params));
  const char* name = "parameter gradients of a general layout";
  if (plan.problem.in_double()) {
    return LaunchKernel(name, ParamGradientsKernel<double>, blocks, kThreads, 0, 1, stream,
                        plan.problem, buffers, static_cast<const GradientTerms<double>*>(terms));
  }
  return LaunchKernel(name, ParamGradientsKernel<float>, blocks, kThreads, 0, 1, stream,
                      plan.problem, buffers, static_cast<const GradientTerms<float>*>(terms));
}

}  // namespace cuda
}  // namespace nv_norms
