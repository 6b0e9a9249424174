// Kernels: sums of each channel of each slab; the terms of each statistic; dgamma and dbeta; dx. x
// and dy are read twice.
#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/columns.cuh"
#include "kernels/cuda/columns_held.h"
#include "kernels/cuda/columns_stream.h"
#include "kernels/cuda/columns_sums.cuh"
#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/reduce.cuh"

namespace nv_norms {
namespace cuda {
namespace {

constexpr int kFinishColumns = 32;
constexpr int kFinishRows = 8;

// With an activation behind the norm, dy is multiplied by its derivative at t = e * scale + beta.
template <typename A, int VEC, bool ACTIVATED>
__global__ void __launch_bounds__(kColumnThreads)
    SumsKernel(const __grid_constant__ ColumnShape shape, DType x_type, DType dy_type,
               DType param_type, DType stat_type, const BackwardBuffers buffers,
               ChannelSums* partials, Activation activation) {
  __shared__ ChannelSums shared[kColumnThreads * VEC];
  const ColumnPlace at(shape, VEC);
  A mean[VEC];
  A e_sum[VEC] = {};
  A dy_sum[VEC] = {};
  A dy_e_sum[VEC] = {};
  A scale[ACTIVATED ? VEC : 1];
  A beta[ACTIVATED ? VEC : 1];
  const bool live = at.channel < shape.channels;
#pragma unroll
  for (int v = 0; v < VEC; ++v) {
    const int64_t stat = at.n * shape.groups + (at.channel + v) / shape.depth;
    mean[v] = live ? StoredMean<A>(buffers, stat_type, stat) : A(0);
    if constexpr (ACTIVATED) {
      if (!live) continue;
      const int64_t param = shape.ParamOf(at.n, at.channel + v);
      scale[v] = LoadOne<A>(stat_type, buffers.rstd, stat) *
                 ParamOr<A>(param_type, buffers.gamma, param, 1);
      beta[v] = ParamOr<A>(param_type, buffers.beta, param, 0);
    }
  }
  for (int64_t s = at.begin + threadIdx.y; live && s < at.end; s += kUnroll * blockDim.y) {
    A x[kUnroll][VEC];
    A dy[kUnroll][VEC];
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) {
      const int64_t row = s + j * static_cast<int64_t>(blockDim.y);
      if (row < at.end) {
        LoadVector<A, VEC>(x_type, buffers.x, at.base + row * shape.channels, x[j]);
        LoadVector<A, VEC>(dy_type, buffers.dy, at.base + row * shape.channels, dy[j]);
      }
    }
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) {
      const int64_t row = s + j * static_cast<int64_t>(blockDim.y);
      if (row >= at.end) break;
      const A gamma = shape.s_stride == 0
                          ? A(1)
                          : ParamOr<A>(param_type, buffers.gamma, row * shape.s_stride, 1);
#pragma unroll
      for (int v = 0; v < VEC; ++v) {
        x[j][v] -= mean[v];
        dy[j][v] *= gamma;
      }
      if constexpr (ACTIVATED) {
        A t[VEC];
#pragma unroll
        for (int v = 0; v < VEC; ++v) t[v] = fma(x[j][v], scale[v], beta[v]);
        Activator<A>(activation).Derive(t, dy[j]);
      }
#pragma unroll
      for (int v = 0; v < VEC; ++v) {
        e_sum[v] += x[j][v];
        dy_sum[v] += dy[j][v];
        dy_e_sum[v] += dy[j][v] * x[j][v];
      }
    }
  }
  ChannelSums* mine = shared + (threadIdx.y * blockDim.x + threadIdx.x) * VEC;
#pragma unroll
  for (int v = 0; v < VEC; ++v) mine[v] = {e_sum[v], dy_sum[v], dy_e_sum[v]};
  for (int step = blockDim.y / 2; step > 0; step /= 2) {
    __syncthreads();
    if (threadIdx.y < step) {
      const ChannelSums* other = mine + step * blockDim.x * VEC;
#pragma unroll
      for (int v = 0; v < VEC; ++v) {
        mine[v].e += other[v].e;
        mine[v].dy += other[v].dy;
        mine[v].dy_e += other[v].dy_e;
      }
    }
  }
  if (threadIdx.y != 0 || !live) return;
  ChannelSums* to = partials + (at.n * shape.slabs + at.slab) * shape.channels + at.channel;
#pragma unroll
  for (int v = 0; v < VEC; ++v) to[v] = mine[v];
}

// A warp to a statistic.
template <typename A>
__global__ void __launch_bounds__(32)
    TermsKernel(const __grid_constant__ ColumnShape shape, Formula formula, DType param_type,
                DType stat_type, const BackwardBuffers buffers, const ChannelSums* partials,
                GradientTerms<A>* terms, XhatLine<A>* lines) {
  const int64_t stat = blockIdx.x;
  const int64_t n = stat / shape.groups;
  const int64_t first = stat % shape.groups * shape.depth;
  double sums[3] = {0, 0, 0};
  for (int64_t i = threadIdx.x; i < shape.slabs * shape.depth; i += 32) {
    const int64_t channel = first + i % shape.depth;
    const ChannelSums& at =
        partials[(n * shape.slabs + i / shape.depth) * shape.channels + channel];
    const double gamma = shape.s_stride != 0
                             ? 1.0
                             : ParamOr<A>(param_type, buffers.gamma, shape.ParamOf(n, channel), 1);
    sums[0] += at.e;
    sums[1] += gamma * at.dy;
    sums[2] += gamma * at.dy_e;
  }
  WarpSum(sums, 32);
  if (threadIdx.x != 0) return;
  const A mean = StoredMean<A>(buffers, stat_type, stat);
  const A rstd = LoadOne<A>(stat_type, buffers.rstd, stat);
  const double count = static_cast<double>(shape.s) * static_cast<double>(shape.depth);
  terms[stat] = TermsOf<A, double>(formula, mean, rstd, sums[0], sums[1], sums[2], count);
  lines[stat] = XhatLineOf(terms[stat]);
}

// dgamma and dbeta where a parameter belongs to a channel, of all samples or of one. `strips`:
// blocks along the channels.
template <typename A>
__global__ void __launch_bounds__(kFinishColumns* kFinishRows)
    ParamsKernel(const __grid_constant__ ColumnShape shape, DType type, void* dgamma, void* dbeta,
                 const ChannelSums* partials, const XhatLine<A>* lines, unsigned strips) {
  __shared__ double shared[2][kFinishRows][kFinishColumns];
  const int64_t n = blockIdx.x / strips;  // 0 where all samples share the parameters
  const int64_t samples = shape.n_stride == 0 ? shape.n : 1;
  const int64_t channel = static_cast<int64_t>(blockIdx.x % strips) * kFinishColumns + threadIdx.x;
  double sums[2] = {0, 0};
  if (channel < shape.channels) {
    const int64_t end = (n + samples) * shape.slabs;
    for (int64_t i = n * shape.slabs + threadIdx.y; i < end; i += kFinishRows) {
      const ChannelSums& at = partials[i * shape.channels + channel];
      const XhatLine<A>& line = lines[i / shape.slabs * shape.groups + channel / shape.depth];
      sums[0] += line.rstd * at.dy_e + line.offset * at.dy;
      sums[1] += at.dy;
    }
  }
  shared[0][threadIdx.y][threadIdx.x] = sums[0];
  shared[1][threadIdx.y][threadIdx.x] = sums[1];
  __syncthreads();
  if (threadIdx.y != 0 || channel >= shape.channels) return;
  for (int i = 1; i < kFinishRows; ++i) {
    sums[0] += shared[0][i][threadIdx.x];
    sums[1] += shared[1][i][threadIdx.x];
  }
  const int64_t param = shape.ParamOf(n, channel);
  if (dgamma != nullptr) StoreOne<double>(type, dgamma, param, sums[0]);
  if (dbeta != nullptr) StoreOne<double>(type, dbeta, param, sums[1]);
}

template <typename A, int VEC, bool ACTIVATED>
__global__ void __launch_bounds__(kColumnThreads)
    ApplyKernel(const __grid_constant__ ColumnShape shape, DType x_type, DType dy_type,
                DType param_type, DType dx_type, const BackwardBuffers buffers,
                const GradientTerms<A>* terms, Activation activation) {
  const ColumnPlace at(shape, VEC);
  if (at.channel >= shape.channels) return;
  GradientTerms<A> t[VEC];
  A gamma[VEC];
  A beta[ACTIVATED ? VEC : 1];
#pragma unroll
  for (int v = 0; v < VEC; ++v) {
    t[v] = terms[at.n * shape.groups + (at.channel + v) / shape.depth];
    gamma[v] = ParamOr<A>(param_type, buffers.gamma, shape.ParamOf(at.n, at.channel + v), 1);
    if constexpr (ACTIVATED) {
      beta[v] = ParamOr<A>(param_type, buffers.beta, shape.ParamOf(at.n, at.channel + v), 0);
    }
  }
  for (int64_t s = at.begin + threadIdx.y; s < at.end; s += kUnroll * blockDim.y) {
    A x[kUnroll][VEC];
    A dy[kUnroll][VEC];
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) {
      const int64_t row = s + j * static_cast<int64_t>(blockDim.y);
      if (row < at.end) {
        LoadVector<A, VEC>(x_type, buffers.x, at.base + row * shape.channels, x[j]);
        LoadVector<A, VEC>(dy_type, buffers.dy, at.base + row * shape.channels, dy[j]);
      }
    }
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) {
      const int64_t row = s + j * static_cast<int64_t>(blockDim.y);
      if (row >= at.end) break;
      if (shape.s_stride != 0) {
        gamma[0] = ParamOr<A>(param_type, buffers.gamma, row * shape.s_stride, 1);
#pragma unroll
        for (int v = 1; v < VEC; ++v) gamma[v] = gamma[0];
      }
      if constexpr (ACTIVATED) {
        A before[VEC];
#pragma unroll
        for (int v = 0; v < VEC; ++v) {
          before[v] = fma(x[j][v] - t[v].high, t[v].rstd * gamma[v], beta[v]);
        }
        Activator<A>(activation).Derive(before, dy[j]);
      }
      A dx[VEC];
#pragma unroll
      for (int v = 0; v < VEC; ++v) {
        dx[v] = t[v].rstd * (dy[j][v] * gamma[v] - t[v].w_mean -
                             ((x[j][v] - t[v].high) - t[v].low) * t[v].slope);
      }
      StoreVector<A, VEC>(dx_type, buffers.dx, at.base + row * shape.channels, dx);
    }
  }
}

template <typename A>
Status LaunchParams(const ColumnShape& shape, DType type, const ChannelSums* partials,
                    const XhatLine<A>* lines, const BackwardBuffers& buffers, void* stream) {
  const auto strips = static_cast<unsigned>(CeilDiv(shape.channels, kFinishColumns));
  const auto samples = static_cast<unsigned>(shape.n_stride == 0 ? 1 : shape.n);
  return LaunchKernel("parameter gradients of columns", ParamsKernel<A>, samples * strips,
                      dim3(kFinishColumns, kFinishRows), 0, 1, stream, shape, type, buffers.dgamma,
                      buffers.dbeta, partials, lines, strips);
}

int64_t PartialsBytes(const BackwardPlan& plan) {
  const ColumnLayout& layout = plan.problem.geometry.columns;
  return Align16(layout.n * plan.slabs.count * layout.channels() * sizeof(ChannelSums));
}

template <typename A, int VEC, bool ACTIVATED>
Status LaunchAs(const BackwardPlan& plan, const BackwardBuffers& buffers, void* workspace,
                void* stream) {
  const BackwardProblem& problem = plan.problem;
  const ColumnLayout& layout = problem.geometry.columns;
  const dim3 block = ColumnBlock(layout.channels(), VEC);
  const ColumnShape shape = ColumnShape::Of(layout, plan.slabs, block, VEC);
  auto* partials = static_cast<ChannelSums*>(workspace);
  auto* terms =
      reinterpret_cast<GradientTerms<A>*>(static_cast<char*>(workspace) + PartialsBytes(plan));
  auto* lines =
      reinterpret_cast<XhatLine<A>*>(reinterpret_cast<char*>(terms) + Align16(TermsBytes(problem)));
  const unsigned blocks = static_cast<unsigned>(ColumnBlocks(shape));
  NV_NORMS_RETURN_IF_ERROR(LaunchKernel(
      "gradient sums of columns", SumsKernel<A, VEC, ACTIVATED>, blocks, block, 0, 1, stream, shape,
      problem.x, problem.dy, problem.param, problem.stat(), buffers, partials, problem.activation));
  NV_NORMS_RETURN_IF_ERROR(LaunchKernel("gradient terms of columns", TermsKernel<A>,
                                        static_cast<unsigned>(problem.geometry.statistics), 32, 0,
                                        1, stream, shape, problem.formula, problem.param,
                                        problem.stat(), buffers,
                                        static_cast<const ChannelSums*>(partials), terms, lines));
  if (buffers.dx != nullptr) {
    NV_NORMS_RETURN_IF_ERROR(
        LaunchKernel("normalization gradient of columns", ApplyKernel<A, VEC, ACTIVATED>, blocks,
                     block, 0, 1, stream, shape, problem.x, problem.dy, problem.param, problem.dx,
                     buffers, static_cast<const GradientTerms<A>*>(terms), problem.activation));
  }
  if (buffers.dgamma == nullptr && buffers.dbeta == nullptr) return Status();
  if (layout.s_stride != 0) {
    void* const behind = reinterpret_cast<char*>(lines) + Align16(XhatLineBytes(problem));
    return LaunchRowParams(plan, buffers, lines, behind, stream);
  }
  return LaunchParams<A>(shape, problem.dparam, partials, lines, buffers, stream);
}

// The general kernels have no activation inside: its gradient is a pass of its own, to the
// workspace behind theirs.
int64_t GeneralBytes(const BackwardPlan& plan) {
  return BackwardGeneralBytes(plan) +
         (ActivatedInColumns(plan.problem) ? ActivationGradientBytes(plan.problem) : 0);
}

Status LaunchGeneral(const BackwardPlan& plan, const BackwardBuffers& buffers, void* workspace,
                     void* stream) {
  if (!ActivatedInColumns(plan.problem)) {
    return LaunchBackwardGeneral(plan, buffers, workspace, stream);
  }
  void* const dy = static_cast<char*>(workspace) + BackwardGeneralBytes(plan);
  return LaunchApart(plan, buffers, dy, stream,
                     [&](const BackwardPlan& plain, const BackwardBuffers& activated) {
                       return LaunchBackwardGeneral(plain, activated, workspace, stream);
                     });
}

}  // namespace

void PlanBackwardColumns(BackwardPlan* plan) {
  const Geometry& geometry = plan->problem.geometry;
  plan->kernel = Kernel::kColumns;
  if (BackwardShortFits(plan->problem)) {
    plan->workspace = BackwardShortBytes(*plan);
    return;
  }
  plan->slabs = ColumnSlabs(geometry.columns, plan->device.multiprocessors);
  const int64_t blocks = geometry.columns.n * plan->slabs.count * geometry.columns.channels();
  if (blocks >= int64_t{1} << 31 || geometry.statistics >= int64_t{1} << 31) {
    plan->kernel = Kernel::kGeneral;
    return;
  }
  plan->workspace = PartialsBytes(*plan) + Align16(TermsBytes(plan->problem)) +
                    Align16(XhatLineBytes(plan->problem)) + RowParamsBytes(*plan);
  if (GeneralMaySuitColumns(geometry.columns, plan->slabs, /*backward=*/true)) {
    plan->workspace = std::max(plan->workspace, GeneralBytes(*plan));
  }
  PlanBackwardColumnsResident(plan);
  PlanBackwardColumnsStream(plan);
  PlanBackwardColumnsAxis(plan);
  PlanBackwardColumnsOdd(plan);
  PlanBackwardColumnsHeld(plan);
}

Status LaunchColumnParams(const ColumnLayout& layout, DType type, int64_t slabs,
                          const ChannelSums* sums, const XhatLine<float>* lines,
                          const BackwardBuffers& buffers, void* stream) {
  const Slabs cut = {CeilDiv(layout.s, slabs), slabs};
  const ColumnShape shape = ColumnShape::Of(layout, cut, ColumnBlock(layout.channels(), 1), 1);
  return LaunchParams<float>(shape, type, sums, lines, buffers, stream);
}

Status LaunchBackwardColumns(const BackwardPlan& plan, const BackwardBuffers& buffers,
                             void* workspace, void* stream) {
  const BackwardProblem& problem = plan.problem;
  for (const auto launch :
       {LaunchBackwardColumnsShort, LaunchBackwardColumnsHeld, LaunchBackwardColumnsAxis,
        LaunchBackwardColumnsOdd, LaunchBackwardColumnsStream, LaunchBackwardColumnsResident}) {
    bool launched = false;
    const Status status = launch(plan, buffers, workspace, stream, &launched);
    if (!status.ok() || launched) return status;
  }
  const bool vectors = problem.geometry.columns.channels() % kColumnVector == 0 &&
                       VectorAligned(buffers.x, problem.x, kColumnVector) &&
                       VectorAligned(buffers.dy, problem.dy, kColumnVector) &&
                       VectorAligned(buffers.dx, problem.dx, kColumnVector);
  const int vector = vectors ? kColumnVector : 1;
  if (GeneralSuitsColumns(problem.geometry.columns, plan.slabs, vector, /*backward=*/true)) {
    return LaunchGeneral(plan, buffers, workspace, stream);
  }
  const auto launch = [&](auto* tag) {
    using A = std::remove_pointer_t<decltype(tag)>;
    if (ActivatedInColumns(problem)) {
      return vectors ? LaunchAs<A, kColumnVector, true>(plan, buffers, workspace, stream)
                     : LaunchAs<A, 1, true>(plan, buffers, workspace, stream);
    }
    return vectors ? LaunchAs<A, kColumnVector, false>(plan, buffers, workspace, stream)
                   : LaunchAs<A, 1, false>(plan, buffers, workspace, stream);
  };
  return problem.in_double() ? launch(static_cast<double*>(nullptr))
                             : launch(static_cast<float*>(nullptr));
}

}  // namespace cuda
}  // namespace nv_norms
