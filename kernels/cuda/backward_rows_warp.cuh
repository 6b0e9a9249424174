// What the gradients of rows in registers share: 4 to 32 lanes of a warp have a row.
#ifndef NV_NORMS_KERNELS_CUDA_BACKWARD_ROWS_WARP_CUH_
#define NV_NORMS_KERNELS_CUDA_BACKWARD_ROWS_WARP_CUH_

#include "kernels/cuda/fetched_rows.cuh"
#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/staged.cuh"
#include "kernels/cuda/terms.cuh"
#include "kernels/cuda/warp_sums.cuh"

namespace nv_norms {
namespace cuda {

struct WarpGradientArguments {
  DType param;
  Formula formula;
  int64_t rows;  // of a sample, where each has parameters of its own
  int cols;
  unsigned samples;  // blocks are [lots, samples] then
  unsigned lots;
  BackwardBuffers buffers;
  float* dgamma;  // partial sums [blocks, cols], where wanted
  float* dbeta;
};

// A kernel, and how its blocks have rows; null where there is none.
struct WarpGradient {
  void (*kernel)(WarpGradientArguments) = nullptr;
  int threads = 32;  // to a block
  int resident = 1;  // blocks to a multiprocessor
  int rows = 1;      // of a block at once
};

// x and dy in 16 bits, rows that are whole vectors of so many numbers.
WarpGradient ChooseWarpGradient16(const BackwardProblem& problem, int vector);
// x in float32, rows of whole vectors of four.
WarpGradient ChooseWarpGradient32(const BackwardProblem& problem);

// A thread's gamma, in its registers.
template <int VEC, int LANES, int ITEMS, bool kShared>
struct WarpGamma {
  float values[ITEMS][VEC];

  template <typename Within>
  __device__ __forceinline__ void Load(const WarpGradientArguments& args, int64_t first, float*,
                                       int rank, const Within& within) {
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      if (within(i)) {
        LoadParams<float, VEC>({}, args.param, args.buffers.gamma, 0,
                               first + ColumnOf<VEC>(i, LANES, rank), 1, values[i]);
      }
    }
  }
  __device__ __forceinline__ void Get(int i, int, float (&to)[VEC]) const {
#pragma unroll
    for (int v = 0; v < VEC; ++v) to[v] = values[i][v];
  }
};

// The block's, in its shared memory, where registers are short.
template <int VEC, int LANES, int ITEMS>
struct WarpGamma<VEC, LANES, ITEMS, true> {
  const float* values;

  template <typename Within>
  __device__ __forceinline__ void Load(const WarpGradientArguments& args, int64_t first,
                                       float* shared, int, const Within&) {
    for (int c = static_cast<int>(threadIdx.x); c < args.cols; c += static_cast<int>(blockDim.x)) {
      float one[1];
      LoadParams<float, 1>({}, args.param, args.buffers.gamma, 0, first + c, 1, one);
      shared[c] = one[0];
    }
    __syncthreads();
    values = shared;
  }
  __device__ __forceinline__ void Get(int i, int rank, float (&to)[VEC]) const {
    uint32_t words[VEC];
#pragma unroll
    for (int v = 0; v < VEC; v += 4) {
      ReadShared<16>(values + ColumnOf<VEC>(i, LANES, rank) + v, words + v);
    }
#pragma unroll
    for (int v = 0; v < VEC; ++v) to[v] = __uint_as_float(words[v]);
  }
};

// T, D: of x and dx, and of dy. Each warp goes through rows, ROWS at once for each of its 32 /
// LANES groups of lanes; while it works on these the next ones are on their way to its registers.
// The sums of dgamma and dbeta stay in registers, too.
template <typename T, typename D, int VEC, int LANES, int ITEMS, int ROWS, int THREADS,
          int RESIDENT, bool kShared, bool kSamples>
__global__ void __launch_bounds__(THREADS, RESIDENT)
    WarpGradientKernel(const __grid_constant__ WarpGradientArguments args) {
  static_assert(VEC % 4 == 0);
  LetNextKernelStart();
  constexpr int kGroups = 32 / LANES;
  constexpr int kWarps = THREADS / 32;
  constexpr int kStep = ROWS * kGroups;
  extern __shared__ float4 space[];
  float* const shared = reinterpret_cast<float*>(space);  // gamma; in the end [warps][2][cols]
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int rank = lane % LANES;
  const int group = lane / LANES;
  const int cols = args.cols;
  const auto column = [&](int i) { return ColumnOf<VEC>(i, LANES, rank); };
  // All items but the last have a vector in every lane.
  const auto within = [&](int i) { return i + 1 < ITEMS || column(i) < cols; };
  const unsigned lot = kSamples ? blockIdx.x / args.samples : blockIdx.x;
  const unsigned sample = kSamples ? blockIdx.x - lot * args.samples : 0;
  const int64_t begin = kSamples ? sample * args.rows : 0;
  const int64_t end = begin + args.rows;
  using Rows = FetchedRows<T, D, VEC, ITEMS, ROWS>;
  const auto fetch = [&](int64_t at, Rows* to) {
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      const int64_t row = at + r * kGroups + group;
      if (row < end) to->Fetch(args.buffers, r, row, cols, column, within);
    }
  };
  const int64_t step = static_cast<int64_t>(kSamples ? args.lots : gridDim.x) * kWarps * kStep;
  int64_t at = begin + (static_cast<int64_t>(lot) * kWarps + warp) * kStep;
  Rows rows;
  fetch(at, &rows);
  WarpGamma<VEC, LANES, ITEMS, kShared> gammas;
  gammas.Load(args, kSamples ? static_cast<int64_t>(sample) * cols : 0, shared, rank, within);
  float dgamma[ITEMS][VEC] = {};
  float dbeta[ITEMS][VEC] = {};
  const float inverse = 1.0f / static_cast<float>(cols);
  for (; at < end; at += step) {
    Rows next;
    fetch(at + step, &next);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      const int64_t row = at + r * kGroups + group;
      const float rstd = rows.rstd[r];
      float e[kShared ? 1 : ITEMS][VEC];
      float d[kShared ? 1 : ITEMS][VEC];
      float sums[3] = {0, 0, 0};
#pragma unroll
      for (int i = 0; i < ITEMS; ++i) {
        if (within(i)) {
          const int k = kShared ? 0 : i;
          float gamma[VEC];
          gammas.Get(i, rank, gamma);
          rows.Take(r, i, e[k], d[k]);
#pragma unroll
          for (int v = 0; v < VEC; ++v) {
            const float w = d[k][v] * gamma[v];
            sums[0] += e[k][v];
            sums[1] += w;
            sums[2] += w * e[k][v];
          }
        }
      }
      // By all lanes together; what those without a row find out is not used.
      WarpSum(sums, LANES);
      const GradientLine line =
          LineOf(args.formula, rows.mean[r], rstd, sums[0], sums[1], sums[2], inverse);
      if (row >= end) continue;
      T* dx = static_cast<T*>(args.buffers.dx) + row * cols;
#pragma unroll
      for (int i = 0; i < ITEMS; ++i) {
        if (within(i)) {
          const int k = kShared ? 0 : i;
          float gamma[VEC];
          gammas.Get(i, rank, gamma);
          if constexpr (kShared) rows.TakeAgain(r, i, e[k], d[k]);
          float out[VEC];
#pragma unroll
          for (int v = 0; v < VEC; ++v) {
            const float w = d[k][v] * gamma[v];
            out[v] = w * rstd + (line.offset - e[k][v] * line.slope);
            dgamma[i][v] += d[k][v] * (e[k][v] * rstd + line.xhat_offset);
            dbeta[i][v] += d[k][v];
          }
          if (args.buffers.dx != nullptr) StoreAs(dx + column(i), out);
        }
      }
    }
    rows = next;
  }
  if (args.dgamma == nullptr && args.dbeta == nullptr) return;
  if constexpr (kShared) __syncthreads();  // all have read gamma
  // The groups of a warp, then the warps, are added in order.
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
#pragma unroll
    for (int v = 0; v < VEC; ++v) {
#pragma unroll
      for (int other = LANES; other < 32; other *= 2) {
        dgamma[i][v] += __shfl_xor_sync(0xffffffffu, dgamma[i][v], other);
        dbeta[i][v] += __shfl_xor_sync(0xffffffffu, dbeta[i][v], other);
      }
    }
    if (lane < LANES && within(i)) {
      StoreAs(shared + 2 * warp * cols + column(i), dgamma[i]);
      StoreAs(shared + (2 * warp + 1) * cols + column(i), dbeta[i]);
    }
  }
  AddWarpSums<THREADS>(shared, cols, args.dgamma, args.dbeta);
}

// Rows of up to LANES * ITEMS vectors, and of more than LANES * (ITEMS - 1).
template <int LANES, int ITEMS, bool kSamples = false>
struct WarpGradientStep {
  template <typename T, typename D, int VEC>
  static bool Take(int64_t cols, WarpGradient* out) {
    if (cols > LANES * ITEMS * VEC) return false;
    // How many rows, threads and blocks: see backward_rows_warp.cu.
    constexpr int kNumbers = ITEMS * VEC;
    constexpr bool kHalves = sizeof(T) == 2;
    constexpr bool kShared = kNumbers > (kHalves ? 24 : 16);
    constexpr bool kMostOfFloat = !kHalves && kNumbers == 16;  // with gamma in registers
    constexpr int kRows = kShared || kMostOfFloat ? 1 : 2;
    constexpr int kThreads = kMostOfFloat                              ? 384
                             : kShared || (!kHalves && kNumbers == 12) ? 256
                                                                       : 128;
    constexpr int kResident = kThreads > 128 ? 1 : kNumbers > 16 ? 2 : 3;
    out->kernel =
        WarpGradientKernel<T, D, VEC, LANES, ITEMS, kRows, kThreads, kResident, kShared, kSamples>;
    out->threads = kThreads;
    out->resident = kResident;
    out->rows = kThreads / LANES * kRows;
    return true;
  }
};

// The first of the steps that has room for a row.
template <typename T, typename D, int VEC, typename... Steps>
WarpGradient ClimbWarpGradient(int64_t cols) {
  WarpGradient out;
  (Steps::template Take<T, D, VEC>(cols, &out) || ...);
  return out;
}

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_BACKWARD_ROWS_WARP_CUH_
