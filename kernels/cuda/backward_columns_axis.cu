// Gradients of forward_columns_axis.cu's norms: x and dy are read once, and dgamma and dbeta are
// summed up on the way to dx. See columns_axis.cuh.
#include "kernels/cuda/columns_axis.cuh"
#include "kernels/cuda/columns_partials.cuh"
#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/resident.cuh"
#include "kernels/cuda/staged.cuh"

namespace nv_norms {
namespace cuda {
namespace {

constexpr int kBatch = 2;  // of a thread's slots are filled, and read, at once
constexpr int kSums = 3;   // of a column, e = x - mean: of e, w = dy * gamma, and w * e

// Threads of a block, and rows of a thread, whose sums are in registers, at most: with more of
// either the compiler puts numbers into local memory.
template <int VEC>
constexpr int kThreads = VEC == 8 ? 512 : 768;
template <int VEC>
constexpr int kItems = VEC == 8 ? 12 : 8;

AxisNeeds NeedsOf(const BackwardProblem& problem) {
  AxisNeeds needs = {};
  needs.vector = AxisVector(problem.geometry.columns, problem.x);
  needs.slot_bytes = needs.vector * static_cast<int>(SizeOf(problem.x) + SizeOf(problem.dy));
  needs.batch = kBatch;
  needs.threads = needs.vector == 8 ? kThreads<8> : kThreads<4>;
  needs.items = needs.vector == 8 ? kItems<8> : kItems<4>;
  needs.row_floats = 1;
  needs.sum_floats = kSums;
  needs.column_floats = 8;
  needs.gradient = true;
  return needs;
}

// Where things are in shared memory, after the slots.
struct Scratch {
  float* gammas;   // [rows]
  float* columns;  // [4, columns]: rstd, and of GradientLine
  float* means;    // [2, columns], as the forward pass stored them: of every other unit
  float* rstds;    // likewise
  float* sums;     // [kSums, warps, pitch]

  __device__ __forceinline__ Scratch(const AxisShape& shape, void* at) {
    gammas = static_cast<float*>(at);
    columns = gammas + (shape.rows + 3) / 4 * 4;
    means = columns + 4 * shape.columns;
    rstds = means + 2 * shape.columns;
    sums = rstds + 2 * shape.columns;
  }
};

#if __CUDA_ARCH__ >= 800

// A column's mean and rstd, on their way from the forward pass's to shared memory.
struct Stat {
  float mean = 0;
  float rstd = 0;

  __device__ __forceinline__ void Load(const BackwardBuffers& buffers, const AxisUnit& unit,
                                       int column) {
    if (column >= unit.columns) return;
    const int64_t at = unit.stat + column;
    if (buffers.mean != nullptr) mean = static_cast<const float*>(buffers.mean)[at];
    rstd = static_cast<const float*>(buffers.rstd)[at];
  }

  __device__ __forceinline__ void Put(const AxisShape& shape, const Scratch& scratch, int half,
                                      int column) const {
    if (column >= shape.columns) return;
    scratch.means[half * shape.columns + column] = mean;
    scratch.rstds[half * shape.columns + column] = rstd;
  }
};

// What the output of every column of a unit is computed by.
__device__ __forceinline__ void LinesOfColumns(const AxisShape& shape, Formula formula,
                                               const Scratch& scratch, int half) {
  const float inverse = 1.0f / static_cast<float>(shape.rows);
  const int reader = threadIdx.x & (shape.readers - 1);
#pragma unroll 1
  for (int c = threadIdx.x / shape.readers; c < shape.columns;
       c += shape.threads() / shape.readers) {
    float sums[kSums] = {};
#pragma unroll 1
    for (int warp = reader; warp < shape.warps; warp += shape.readers) {
#pragma unroll
      for (int k = 0; k < kSums; ++k) {
        sums[k] += scratch.sums[(k * shape.warps + warp) * shape.pitch + c];
      }
    }
    WarpSum(sums, shape.readers);
    if (reader != 0) continue;
    const float rstd = scratch.rstds[half * shape.columns + c];
    const GradientLine line = LineOf(formula, scratch.means[half * shape.columns + c], rstd,
                                     sums[0], sums[1], sums[2], inverse);
    scratch.columns[c] = rstd;
    scratch.columns[shape.columns + c] = line.offset;
    scratch.columns[2 * shape.columns + c] = line.slope;
    scratch.columns[3 * shape.columns + c] = line.xhat_offset;
  }
}

#endif  // __CUDA_ARCH__ >= 800

// dgamma, dbeta: [blocks, rows], or null.
template <typename X, typename D, int VEC>
__global__ void __launch_bounds__(kThreads<VEC>)
    BackwardAxisKernel(const __grid_constant__ AxisShape shape,
                       const __grid_constant__ BackwardProblem problem,
                       const BackwardBuffers buffers, float* dgamma, float* dbeta) {
#if __CUDA_ARCH__ >= 800
  constexpr int kBytes = VEC * sizeof(X);
  constexpr int kBeside = VEC * sizeof(D);
  constexpr int kBatches = kItems<VEC> / kBatch;
  extern __shared__ uint4 shared[];
  const AxisPlace place(shape);
  const int threads = shape.threads();
  const int slot_step = threads * (kBytes + kBeside);
  char* const x_slots = reinterpret_cast<char*>(shared) + threadIdx.x * kBytes;
  char* const dy_slots = reinterpret_cast<char*>(shared) + threads * kBytes + threadIdx.x * kBeside;
  const Scratch scratch(shape, reinterpret_cast<char*>(shared) +
                                   (shape.items + kBatch - 1) / kBatch * kBatch * slot_step);
  const X* const x = static_cast<const X*>(buffers.x);
  const D* const dy = static_cast<const D*>(buffers.dy);
  const int64_t step = static_cast<int64_t>(shape.row_step) * shape.width * VEC;
  const auto load = [&](const AxisUnit& unit, int batch) {
#pragma unroll
    for (int j = batch * kBatch; j < (batch + 1) * kBatch; ++j) {
      if (j < unit.count) {
        CopyAsync<kBytes>(x_slots + j * slot_step, x + unit.first + j * step);
        CopyAsync<kBeside>(dy_slots + j * slot_step, dy + unit.first + j * step);
      }
    }
    CommitCopies();
  };
  // e = x - mean, and d = dy, of the thread's row j.
  const auto take = [&](int j, const float (&mean)[VEC], float (&e)[VEC], float (&d)[VEC]) {
    Unpack<X>(x_slots + j * slot_step, e);
    Unpack<D>(dy_slots + j * slot_step, d);
#pragma unroll
    for (int v = 0; v < VEC; ++v) e[v] -= mean[v];
  };
  AxisUnit unit(shape, place, blockIdx.x);
#pragma unroll
  for (int b = 0; b < kBatches; ++b) load(unit, b);
#pragma unroll 1
  for (int r = threadIdx.x; r < shape.rows; r += threads) {
    scratch.gammas[r] = ParamOr<float>(problem.param, buffers.gamma, r, 1);
  }
  // A thread has a column's mean and rstd, of the next unit. There are no more columns than
  // threads.
  Stat stat;
  stat.Load(buffers, unit, threadIdx.x);
  stat.Put(shape, scratch, 0, threadIdx.x);
  AxisUnit next(shape, place, blockIdx.x + gridDim.x);
  stat.Load(buffers, next, threadIdx.x);
  float dgammas[kItems<VEC>] = {};
  float dbetas[kItems<VEC>] = {};
  int half = 0;
  __syncthreads();
#pragma unroll 1
  for (int at = blockIdx.x; at < shape.units; at += gridDim.x) {
    float mean[VEC];
    float e_sum[VEC];
    float w_sum[VEC];
    float we_sum[VEC];
    LoadColumns(scratch.means + half * shape.columns + place.lane * VEC, mean);
#pragma unroll
    for (int v = 0; v < VEC; ++v) e_sum[v] = w_sum[v] = we_sum[v] = 0;
#pragma unroll
    for (int b = 0; b < kBatches; ++b) {
      WaitForCopies(kBatches - 1 - b);
#pragma unroll
      for (int j = b * kBatch; j < (b + 1) * kBatch; ++j) {
        if (j >= unit.count) break;
        float e[VEC];
        float w[VEC];
        take(j, mean, e, w);
        const float gamma = scratch.gammas[place.row + j * shape.row_step];
#pragma unroll
        for (int v = 0; v < VEC; ++v) {
          w[v] *= gamma;
          e_sum[v] += e[v];
          w_sum[v] += w[v];
          we_sum[v] += w[v] * e[v];
        }
      }
    }
#pragma unroll 1
    for (int lanes = shape.lanes; lanes < 32; lanes *= 2) {
#pragma unroll
      for (int v = 0; v < VEC; ++v) {
        e_sum[v] += __shfl_xor_sync(0xffffffffu, e_sum[v], lanes);
        w_sum[v] += __shfl_xor_sync(0xffffffffu, w_sum[v], lanes);
        we_sum[v] += __shfl_xor_sync(0xffffffffu, we_sum[v], lanes);
      }
    }
    if (threadIdx.x % 32 < shape.lanes) {
      float* const to = scratch.sums + threadIdx.x / 32 * shape.pitch + place.lane * VEC;
      PutColumns(to, e_sum);
      PutColumns(to + shape.warps * shape.pitch, w_sum);
      PutColumns(to + 2 * shape.warps * shape.pitch, we_sum);
    }
    __syncthreads();
    LinesOfColumns(shape, problem.formula, scratch, half);
    half ^= 1;
    stat.Put(shape, scratch, half, threadIdx.x);
    __syncthreads();
    float rstd[VEC];
    float offset[VEC];
    float slope[VEC];
    float xhat_offset[VEC];
    const float* const columns = scratch.columns + place.lane * VEC;
    LoadColumns(scratch.means + (half ^ 1) * shape.columns + place.lane * VEC, mean);
    LoadColumns(columns, rstd);
    LoadColumns(columns + shape.columns, offset);
    LoadColumns(columns + 2 * shape.columns, slope);
    LoadColumns(columns + 3 * shape.columns, xhat_offset);
    stat.Load(buffers, AxisUnit(shape, place, at + 2 * gridDim.x), threadIdx.x);
    next = AxisUnit(shape, place, at + gridDim.x);
#pragma unroll
    for (int b = 0; b < kBatches; ++b) {
#pragma unroll
      for (int j = b * kBatch; j < (b + 1) * kBatch; ++j) {
        if (j >= unit.count) break;
        float e[VEC];
        float d[VEC];
        take(j, mean, e, d);
        const float gamma = scratch.gammas[place.row + j * shape.row_step];
#pragma unroll
        for (int v = 0; v < VEC; ++v) {
          dgammas[j] += d[v] * (e[v] * rstd[v] + xhat_offset[v]);
          dbetas[j] += d[v];
          d[v] = d[v] * (gamma * rstd[v]) + (offset[v] - e[v] * slope[v]);
        }
        if (buffers.dx != nullptr) {
          StoreStrip<X>(problem.dx, buffers.dx, unit.first + j * step, d, shape.keep);
        }
      }
      load(next, b);
    }
    unit = next;
  }
  LetNextKernelStart();
  if (dgamma == nullptr && dbeta == nullptr) return;
#pragma unroll
  for (int j = 0; j < kItems<VEC>; ++j) {
    if (j >= shape.items) break;
    float sums[2] = {dgammas[j], dbetas[j]};
    WarpSum(sums, shape.lanes);
    if (place.lane != 0 || j >= place.count) continue;
    const int64_t to =
        static_cast<int64_t>(blockIdx.x) * shape.rows + place.row + j * shape.row_step;
    if (dgamma != nullptr) dgamma[to] = sums[0];
    if (dbeta != nullptr) dbeta[to] = sums[1];
  }
#endif
}

using BackwardKernel = void (*)(AxisShape, BackwardProblem, BackwardBuffers, float*, float*);

// Null where dx has a type of its own.
BackwardKernel KernelFor(const BackwardProblem& problem, int vector) {
  return BackwardKernelOf(problem, [&](auto* x, auto* dy, auto* dx) -> BackwardKernel {
    using X = std::remove_pointer_t<decltype(x)>;
    using D = std::remove_pointer_t<decltype(dy)>;
    if constexpr (!std::is_void_v<std::remove_pointer_t<decltype(dx)>>) {
      if (vector == 4) return BackwardAxisKernel<X, D, 4>;
      if constexpr (sizeof(X) == 2) return BackwardAxisKernel<X, D, 8>;
    }
    return nullptr;
  });
}

}  // namespace

void PlanBackwardColumnsAxis(BackwardPlan* plan) {
  const BackwardProblem& problem = plan->problem;
  if (!HasGradientKernel(problem)) return;
  const AxisNeeds needs = NeedsOf(problem);
  const BackwardKernel kernel = KernelFor(problem, needs.vector);
  if (kernel == nullptr) return;
  plan->axis =
      CutAxis(problem.geometry, plan->device, needs, reinterpret_cast<const void*>(kernel));
  if (plan->axis.lanes > 0 && plan->want_params) {
    plan->workspace = std::max(plan->workspace, RowPartials::Bytes(*plan, plan->axis.blocks));
  }
}

Status LaunchBackwardColumnsAxis(const BackwardPlan& plan, const BackwardBuffers& buffers,
                                 void* workspace, void* stream, bool* launched) {
  const BackwardProblem& problem = plan.problem;
  *launched = plan.axis.lanes > 0 && AlignedTo(buffers.x, kVectorBytes) &&
              AlignedTo(buffers.dy, kVectorBytes) && AlignedTo(buffers.dx, kVectorBytes);
  if (!*launched) return Status();
  const AxisNeeds needs = NeedsOf(problem);
  const AxisShape shape = AxisShapeOf(problem.geometry, needs, plan.axis);
  const BackwardKernel kernel = KernelFor(problem, needs.vector);
  const RowPartials partials = RowPartials::In(workspace, plan, buffers, plan.axis.blocks);
  const char* const name = "normalization gradient over a middle axis";
  NV_NORMS_RETURN_IF_ERROR(AllowShared(kernel, plan.axis.shared, name));
  NV_NORMS_RETURN_IF_ERROR(LaunchKernel(name, kernel, static_cast<unsigned>(plan.axis.blocks),
                                        static_cast<unsigned>(shape.threads()),
                                        static_cast<size_t>(plan.axis.shared), 1, stream, shape,
                                        problem, buffers, partials.dgamma, partials.dbeta));
  if (!partials.wanted()) return Status();
  return LaunchFinish(problem, problem.geometry.columns.s, buffers, partials.dgamma, partials.dbeta,
                      plan.axis.blocks, plan.device, stream);
}

}  // namespace cuda
}  // namespace nv_norms
