// Three kernels: moments of each channel of each slab, then of each statistic, then the output. x
// is read twice.
#include "kernels/cuda/columns.cuh"
#include "kernels/cuda/columns_held.h"
#include "kernels/cuda/columns_stream.h"
#include "kernels/cuda/kernels.cuh"

namespace nv_norms {
namespace cuda {
namespace {

// Moments of a channel of a slab: its number of elements is known.
struct Partial {
  double mean;
  double m2;
};

template <typename A, int VEC>
__global__ void __launch_bounds__(kColumnThreads)
    MomentsKernel(const __grid_constant__ ColumnShape shape, DType type, const void* x, bool rms,
                  Partial* partials) {
  __shared__ Moments shared[kColumnThreads * VEC];
  const ColumnPlace at(shape, VEC);
  A count = 0;
  A first[VEC];
  A mean[VEC] = {};  // of x - first
  A m2[VEC] = {};
  if (at.channel < shape.channels && at.begin + threadIdx.y < at.end) {
    LoadVector<A, VEC>(type, x, at.base + (at.begin + threadIdx.y) * shape.channels, first);
  }
  if (rms) {
#pragma unroll
    for (int v = 0; v < VEC; ++v) first[v] = 0;
  }
  for (int64_t s = at.begin + threadIdx.y; s < at.end; s += kUnroll * blockDim.y) {
    if (at.channel >= shape.channels) break;
    // Two passes over a few rows in registers, whose moments are then merged with those so far.
    A rows[kUnroll][VEC];
    int loaded = 0;
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) {
      const int64_t row = s + j * static_cast<int64_t>(blockDim.y);
      if (row < at.end) {
        LoadVector<A, VEC>(type, x, at.base + row * shape.channels, rows[j]);
        ++loaded;
      }
    }
    const A some = static_cast<A>(loaded);
    const A total = count + some;
    const A share = some / total;
#pragma unroll
    for (int v = 0; v < VEC; ++v) {
      A sum = 0;
#pragma unroll
      for (int j = 0; j < kUnroll; ++j) {
        if (j < loaded) sum += rows[j][v] - first[v];
      }
      const A center = rms ? A(0) : sum / some;
      A squares = 0;
#pragma unroll
      for (int j = 0; j < kUnroll; ++j) {
        if (j < loaded) {
          const A e = (rows[j][v] - first[v]) - center;
          squares += e * e;
        }
      }
      const A step = center - mean[v];
      mean[v] += step * share;
      m2[v] += squares + step * step * (count * share);
    }
    count = total;
  }
  Moments* mine = shared + (threadIdx.y * blockDim.x + threadIdx.x) * VEC;
#pragma unroll
  for (int v = 0; v < VEC; ++v) {
    mine[v].count = count;
    mine[v].mean = count == 0 ? 0.0 : static_cast<double>(first[v]) + mean[v];
    mine[v].m2 = m2[v];
  }
  for (int step = blockDim.y / 2; step > 0; step /= 2) {
    __syncthreads();
    if (threadIdx.y < step) {
      const Moments* other = mine + step * blockDim.x * VEC;
#pragma unroll
      for (int v = 0; v < VEC; ++v) mine[v] = Merge(mine[v], other[v]);
    }
  }
  if (threadIdx.y != 0 || at.channel >= shape.channels) return;
  Partial* to = partials + (at.n * shape.slabs + at.slab) * shape.channels + at.channel;
#pragma unroll
  for (int v = 0; v < VEC; ++v) to[v] = {mine[v].mean, mine[v].m2};
}

// A warp to a statistic.
template <typename A>
__global__ void __launch_bounds__(32)
    MergeKernel(const __grid_constant__ ColumnShape shape,
                const __grid_constant__ ForwardProblem problem, const ForwardBuffers buffers,
                const Partial* partials, Scaling<A>* scaling) {
  const int64_t stat = blockIdx.x;
  const int64_t n = stat / shape.groups;
  const int64_t channel = stat % shape.groups * shape.depth;
  Moments moments = {0, 0, 0};
  for (int64_t i = threadIdx.x; i < shape.slabs * shape.depth; i += 32) {
    const int64_t slab = i / shape.depth;
    const Partial& at =
        partials[(n * shape.slabs + slab) * shape.channels + channel + i % shape.depth];
    const int64_t rows = min(shape.slab_rows, shape.s - slab * shape.slab_rows);
    moments = Merge(moments, {static_cast<double>(rows), at.mean, at.m2});
  }
  moments = WarpMerge(moments);
  const Scaling<A> out = ScalingOf<A>(problem, buffers, stat, moments, threadIdx.x == 0);
  if (threadIdx.x == 0) scaling[stat] = out;
}

template <typename A, int VEC>
__global__ void __launch_bounds__(kColumnThreads)
    ApplyKernel(const __grid_constant__ ColumnShape shape, DType x_type, DType param_type,
                DType y_type, const ForwardBuffers buffers, const Scaling<A>* scaling) {
  const ColumnPlace at(shape, VEC);
  if (at.channel >= shape.channels) return;
  Scaling<A> scale[VEC];
  A gamma[VEC];
  A beta[VEC];
#pragma unroll
  for (int v = 0; v < VEC; ++v) {
    const int64_t channel = at.channel + v;
    scale[v] = scaling[at.n * shape.groups + channel / shape.depth];
    const int64_t param = shape.ParamOf(at.n, channel);
    gamma[v] = ParamOr<A>(param_type, buffers.gamma, param, 1);
    beta[v] = ParamOr<A>(param_type, buffers.beta, param, 0);
  }
  for (int64_t s = at.begin + threadIdx.y; s < at.end; s += kUnroll * blockDim.y) {
    A rows[kUnroll][VEC];
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) {
      const int64_t row = s + j * static_cast<int64_t>(blockDim.y);
      if (row < at.end) {
        LoadVector<A, VEC>(x_type, buffers.x, at.base + row * shape.channels, rows[j]);
      }
    }
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) {
      const int64_t row = s + j * static_cast<int64_t>(blockDim.y);
      if (row >= at.end) break;
      if (shape.s_stride != 0) {  // one parameter to a row: there is no depth then
        const int64_t param = row * shape.s_stride;
        gamma[0] = ParamOr<A>(param_type, buffers.gamma, param, 1);
        beta[0] = ParamOr<A>(param_type, buffers.beta, param, 0);
#pragma unroll
        for (int v = 1; v < VEC; ++v) {
          gamma[v] = gamma[0];
          beta[v] = beta[0];
        }
      }
      A y[VEC];
#pragma unroll
      for (int v = 0; v < VEC; ++v) {
        y[v] = ((rows[j][v] - scale[v].high) - scale[v].low) * scale[v].rstd * gamma[v] + beta[v];
      }
      StoreVector<A, VEC>(y_type, buffers.y, at.base + row * shape.channels, y);
    }
  }
}

int64_t PartialsBytes(const ForwardPlan& plan) {
  const ColumnLayout& layout = plan.problem.geometry.columns;
  return Align16(layout.n * plan.slabs.count * layout.channels() * sizeof(Partial));
}

template <typename A, int VEC>
Status LaunchAs(const ForwardPlan& plan, const ForwardBuffers& buffers, void* workspace,
                void* stream) {
  const ForwardProblem& problem = plan.problem;
  const ColumnLayout& layout = problem.geometry.columns;
  const dim3 block = ColumnBlock(layout.channels(), VEC);
  const ColumnShape shape = ColumnShape::Of(layout, plan.slabs, block, VEC);
  auto* partials = static_cast<Partial*>(workspace);
  auto* scaling =
      reinterpret_cast<Scaling<A>*>(static_cast<char*>(workspace) + PartialsBytes(plan));
  const unsigned blocks = static_cast<unsigned>(ColumnBlocks(shape));
  NV_NORMS_RETURN_IF_ERROR(LaunchKernel("moments of columns", MomentsKernel<A, VEC>, blocks, block,
                                        0, 1, stream, shape, problem.x, buffers.x,
                                        problem.formula == Formula::kRms, partials));
  NV_NORMS_RETURN_IF_ERROR(LaunchKernel(
      "merging of columns", MergeKernel<A>, static_cast<unsigned>(problem.geometry.statistics), 32,
      0, 1, stream, shape, problem, buffers, static_cast<const Partial*>(partials), scaling));
  return LaunchKernel("normalization of columns", ApplyKernel<A, VEC>, blocks, block, 0, 1, stream,
                      shape, problem.x, problem.param, problem.y, buffers,
                      static_cast<const Scaling<A>*>(scaling));
}

}  // namespace

void PlanForwardColumns(ForwardPlan* plan) {
  const Geometry& geometry = plan->problem.geometry;
  plan->kernel = Kernel::kColumns;
  if (ForwardShortFits(plan->problem)) return;
  plan->slabs = ColumnSlabs(geometry.columns, plan->device.multiprocessors);
  const int64_t blocks = geometry.columns.n * plan->slabs.count * geometry.columns.channels();
  if (blocks >= int64_t{1} << 31 || geometry.statistics >= int64_t{1} << 31) {
    plan->kernel = Kernel::kGeneral;
    return;
  }
  plan->workspace = PartialsBytes(*plan) +
                    Align16(geometry.statistics * 3 * SizeOfNumber(plan->problem.in_double()));
  if (GeneralMaySuitColumns(geometry.columns, plan->slabs, /*backward=*/false)) {
    plan->workspace = std::max(plan->workspace, ForwardGeneralBytes(*plan));
  }
  PlanForwardColumnsResident(plan);
  PlanForwardColumnsPipe(plan);
  PlanForwardColumnsStream(plan);
  PlanForwardColumnsAxis(plan);
}

Status LaunchForwardColumnsOnChip(const ForwardPlan& plan, const ForwardBuffers& buffers,
                                  void* workspace, void* stream, bool* launched) {
  for (const auto launch :
       {LaunchForwardColumnsShort, LaunchForwardColumnsHeld, LaunchForwardColumnsAxis,
        LaunchForwardColumnsOdd, LaunchForwardColumnsStream, LaunchForwardColumnsPipe,
        LaunchForwardColumnsResident}) {
    const Status status = launch(plan, buffers, workspace, stream, launched);
    if (!status.ok() || *launched) return status;
  }
  return Status();
}

Status LaunchForwardColumns(const ForwardPlan& plan, const ForwardBuffers& buffers, void* workspace,
                            void* stream) {
  const ForwardProblem& problem = plan.problem;
  bool launched = false;
  NV_NORMS_RETURN_IF_ERROR(LaunchForwardColumnsOnChip(plan, buffers, workspace, stream, &launched));
  if (launched) return Status();
  const bool vectors = problem.geometry.columns.channels() % kColumnVector == 0 &&
                       VectorAligned(buffers.x, problem.x, kColumnVector) &&
                       VectorAligned(buffers.y, problem.y, kColumnVector);
  const int vector = vectors ? kColumnVector : 1;
  if (GeneralSuitsColumns(problem.geometry.columns, plan.slabs, vector, /*backward=*/false)) {
    return LaunchForwardGeneral(plan, buffers, workspace, stream);
  }
  if (problem.in_double()) {
    return vectors ? LaunchAs<double, kColumnVector>(plan, buffers, workspace, stream)
                   : LaunchAs<double, 1>(plan, buffers, workspace, stream);
  }
  return vectors ? LaunchAs<float, kColumnVector>(plan, buffers, workspace, stream)
                 : LaunchAs<float, 1>(plan, buffers, workspace, stream);
}

}  // namespace cuda
}  // namespace nv_norms
