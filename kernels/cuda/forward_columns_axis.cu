// Layer norm over a middle axis whose strips fit into a block's shared memory: x is read once, and
// no block waits for another. See columns_axis.cuh.
#include "kernels/cuda/columns_axis.cuh"
#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/resident.cuh"
#include "kernels/cuda/staged.cuh"

namespace nv_norms {
namespace cuda {
namespace {

constexpr int kBatch = 4;       // of a thread's slots are filled, and read, at once
constexpr int kSums = 3;        // of a warp's columns: see Scratch
constexpr int kMostItems = 32;  // rows of a thread

// Threads of a block, at most, and blocks to a multiprocessor that have the registers they need.
template <int VEC>
constexpr int kThreads = VEC == 8 ? 256 : 512;
template <int VEC>
constexpr int kBlocks = VEC == 8 ? 3 : 2;

AxisNeeds NeedsOf(const ForwardProblem& problem) {
  AxisNeeds needs = {};
  needs.vector = AxisVector(problem.geometry.columns, problem.x);
  needs.slot_bytes = needs.vector * static_cast<int>(SizeOf(problem.x));
  needs.batch = kBatch;
  needs.threads = needs.vector == 8 ? kThreads<8> : kThreads<4>;
  needs.items = kMostItems;
  needs.row_floats = 2;
  needs.sum_floats = kSums;
  needs.column_floats = 3;
  return needs;
}

// Where things are in shared memory, after the slots.
struct Scratch {
  float2* params;  // [rows]
  float* columns;  // [3, columns]: y = ((x - high) * scale + shift) * gamma + beta
  float* pivots;   // [warps, pitch]: what a warp's sums are about
  float* means;    // its mean, about that
  float* squares;  // about the mean
  float* counts;   // [warps]: of rows

  __device__ __forceinline__ Scratch(const AxisShape& shape, void* at) {
    params = static_cast<float2*>(at);
    columns = reinterpret_cast<float*>(params + (shape.rows + 3) / 4 * 4);
    pivots = columns + 3 * shape.columns;
    means = pivots + shape.warps * shape.pitch;
    squares = means + shape.warps * shape.pitch;
    counts = squares + shape.warps * shape.pitch;
  }
};

#if __CUDA_ARCH__ >= 800

// mean and rstd of every column of a unit, and what its output is computed by.
__device__ __forceinline__ void StatsOfColumns(const AxisShape& shape,
                                               const ForwardProblem& problem,
                                               const ForwardBuffers& buffers,
                                               const Scratch& scratch, const AxisUnit& unit) {
  const double inverse = 1.0 / shape.rows;
  const int reader = threadIdx.x & (shape.readers - 1);
#pragma unroll 1
  for (int c = threadIdx.x / shape.readers; c < shape.columns;
       c += shape.threads() / shape.readers) {
    // Sums in double about one of the column's elements: however far that is from the others, the
    // squares of its distances are not much larger than the sum that is wanted.
    const double reference = scratch.pivots[c];
    double sums[2] = {0, 0};
#pragma unroll 1
    for (int warp = reader; warp < shape.warps; warp += shape.readers) {
      const int at = warp * shape.pitch + c;
      const double count = scratch.counts[warp];
      const double about = (scratch.pivots[at] - reference) + scratch.means[at];
      sums[0] += count * about;
      sums[1] += scratch.squares[at] + count * about * about;
    }
    WarpSum(sums, shape.readers);
    if (reader != 0) continue;
    const double low = sums[0] * inverse;
    const double m2 = sums[1] - sums[0] * low;
    const double mean = reference + low;
    const float rstd = static_cast<float>(rsqrt((m2 < 0 ? 0.0 : m2) * inverse + problem.epsilon));
    const float high = static_cast<float>(mean);
    const bool center = problem.formula == Formula::kCenter;
    scratch.columns[c] = center ? high : 0.0f;
    scratch.columns[shape.columns + c] = rstd;
    scratch.columns[2 * shape.columns + c] =
        center ? -static_cast<float>(mean - high) * rstd : 0.0f;
    if (c >= unit.columns) continue;
    if (buffers.mean != nullptr) static_cast<float*>(buffers.mean)[unit.stat + c] = high;
    if (buffers.rstd != nullptr) static_cast<float*>(buffers.rstd)[unit.stat + c] = rstd;
  }
}

#endif  // __CUDA_ARCH__ >= 800

template <typename X, typename Y, int VEC>
__global__ void __launch_bounds__(kThreads<VEC>, kBlocks<VEC>)
    ForwardAxisKernel(const __grid_constant__ AxisShape shape,
                      const __grid_constant__ ForwardProblem problem,
                      const ForwardBuffers buffers) {
#if __CUDA_ARCH__ >= 800
  constexpr int kBytes = VEC * sizeof(X);
  extern __shared__ uint4 shared[];
  const AxisPlace place(shape);
  const int slot_step = shape.threads() * kBytes;
  const int batches = (shape.items + kBatch - 1) / kBatch;
  char* const slots = reinterpret_cast<char*>(shared) + threadIdx.x * kBytes;
  const Scratch scratch(shape, reinterpret_cast<char*>(shared) + batches * kBatch * slot_step);
  const X* const x = static_cast<const X*>(buffers.x);
  const int64_t step = static_cast<int64_t>(shape.row_step) * shape.width * VEC;
  const bool about_mean = problem.formula != Formula::kRms;
  const auto load = [&](const AxisUnit& unit, int batch) {
    const X* from = x + unit.first + batch * kBatch * step;
    char* to = slots + batch * kBatch * slot_step;
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      if (batch * kBatch + j < unit.count) CopyAsync<kBytes>(to, from);
      from += step;
      to += slot_step;
    }
    CommitCopies();
  };
  AxisUnit unit(shape, place, blockIdx.x);
#pragma unroll 1
  for (int b = 0; b < batches; ++b) load(unit, b);
#pragma unroll 1
  for (int r = threadIdx.x; r < shape.rows; r += shape.threads()) {
    scratch.params[r] = make_float2(ParamOr<float>(problem.param, buffers.gamma, r, 1),
                                    ParamOr<float>(problem.param, buffers.beta, r, 0));
  }
#pragma unroll 1
  for (int at = blockIdx.x; at < shape.units; at += gridDim.x) {
    // Each thread sums about the mean of its first elements, which is equal to them where they are
    // equal. However far one of them is from the others, the squares about that mean are at most
    // three times those about the mean of the thread's up to kMostItems elements.
    float pivot[VEC];
    float mean[VEC];
    float squares[VEC];
#pragma unroll
    for (int v = 0; v < VEC; ++v) pivot[v] = mean[v] = squares[v] = 0;
#pragma unroll 1
    for (int b = 0; b < batches; ++b) {
      WaitForCopies(batches - 1 - b);
      const char* const from = slots + b * kBatch * slot_step;
      float values[kBatch][VEC];
#pragma unroll
      for (int j = 0; j < kBatch; ++j) Unpack<X>(from + j * slot_step, values[j]);
      if (b == 0 && about_mean) {
        const int first = min(kBatch, place.count);
        const float inverse = 1.0f / static_cast<float>(first);
#pragma unroll
        for (int v = 0; v < VEC; ++v) {
          float sum = 0;
#pragma unroll
          for (int j = 1; j < kBatch; ++j) {
            if (j < first) sum += values[j][v] - values[0][v];
          }
          pivot[v] = values[0][v] + sum * inverse;
        }
      }
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        if (b * kBatch + j >= unit.count) break;
#pragma unroll
        for (int v = 0; v < VEC; ++v) {
          const float e = values[j][v] - pivot[v];
          mean[v] += e;
          squares[v] += e * e;
        }
      }
    }
    float count = static_cast<float>(place.count);
    const float inverse = 1.0f / count;
#pragma unroll
    for (int v = 0; v < VEC; ++v) {
      const float sum = about_mean ? mean[v] : 0.0f;  // which may be infinite
      mean[v] = sum * inverse;
      squares[v] -= sum * mean[v];
    }
    if (shape.lanes < 32) {
#pragma unroll
      for (int v = 0; v < VEC; ++v) {
        const float common = __shfl_sync(0xffffffffu, pivot[v], place.lane);
        mean[v] += pivot[v] - common;
        pivot[v] = common;
      }
      MergeLanes(shape.lanes, count, mean, squares);
    }
    if (threadIdx.x % 32 < shape.lanes) {
      const int warp = threadIdx.x / 32;
      const int to = warp * shape.pitch + place.lane * VEC;
      PutColumns(scratch.pivots + to, pivot);
      PutColumns(scratch.means + to, mean);
      PutColumns(scratch.squares + to, squares);
      if (place.lane == 0) scratch.counts[warp] = count;
    }
    __syncthreads();
    StatsOfColumns(shape, problem, buffers, scratch, unit);
    __syncthreads();
    float high[VEC];
    float scale[VEC];
    float shift[VEC];
    const float* const columns = scratch.columns + place.lane * VEC;
    LoadColumns(columns, high);
    LoadColumns(columns + shape.columns, scale);
    LoadColumns(columns + 2 * shape.columns, shift);
    const AxisUnit next(shape, place, at + gridDim.x);
    int64_t to = unit.first;
#pragma unroll 1
    for (int b = 0; b < batches; ++b) {
      const char* const from = slots + b * kBatch * slot_step;
      float y[kBatch][VEC];
#pragma unroll
      for (int j = 0; j < kBatch; ++j) Unpack<X>(from + j * slot_step, y[j]);
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        const int item = b * kBatch + j;
        if (item < unit.count) {
          const float2 param = scratch.params[place.row + item * shape.row_step];
#pragma unroll
          for (int v = 0; v < VEC; ++v) {
            y[j][v] = ((y[j][v] - high[v]) * scale[v] + shift[v]) * param.x + param.y;
          }
          StoreStrip<Y>(problem.y, buffers.y, to, y[j], shape.keep);
        }
        to += step;
      }
      load(next, b);
    }
    unit = next;
  }
#endif
}

using ForwardKernel = void (*)(AxisShape, ForwardProblem, ForwardBuffers);

// Null where y has a type of its own.
ForwardKernel KernelFor(const ForwardProblem& problem, int vector) {
  return ForwardKernelOf(problem.x, problem.y, [&](auto* x, auto* y) -> ForwardKernel {
    using X = std::remove_pointer_t<decltype(x)>;
    using Y = std::remove_pointer_t<decltype(y)>;
    if constexpr (!std::is_void_v<Y>) {
      if (vector == 4) return ForwardAxisKernel<X, Y, 4>;
      if constexpr (sizeof(X) == 2) return ForwardAxisKernel<X, Y, 8>;
    }
    return nullptr;
  });
}

}  // namespace

void PlanForwardColumnsAxis(ForwardPlan* plan) {
  const ForwardProblem& problem = plan->problem;
  if (problem.in_double() || !problem.activation.none()) return;
  const AxisNeeds needs = NeedsOf(problem);
  const ForwardKernel kernel = KernelFor(problem, needs.vector);
  if (kernel == nullptr) return;
  plan->axis =
      CutAxis(problem.geometry, plan->device, needs, reinterpret_cast<const void*>(kernel));
}

Status LaunchForwardColumnsAxis(const ForwardPlan& plan, const ForwardBuffers& buffers, void*,
                                void* stream, bool* launched) {
  const ForwardProblem& problem = plan.problem;
  *launched = plan.axis.lanes > 0 && AlignedTo(buffers.x, kVectorBytes) &&
              AlignedTo(buffers.y, kVectorBytes);
  if (!*launched) return Status();
  const AxisNeeds needs = NeedsOf(problem);
  const AxisShape shape = AxisShapeOf(problem.geometry, needs, plan.axis);
  const ForwardKernel kernel = KernelFor(problem, needs.vector);
  const char* const name = "normalization over a middle axis";
  NV_NORMS_RETURN_IF_ERROR(AllowShared(kernel, plan.axis.shared, name));
  return LaunchKernel(name, kernel, static_cast<unsigned>(plan.axis.blocks),
                      static_cast<unsigned>(shape.threads()), static_cast<size_t>(plan.axis.shared),
                      1, stream, shape, problem, buffers);
}

}  // namespace cuda
}  // namespace nv_norms
