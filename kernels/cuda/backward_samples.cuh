// The gradient of rows whose parameters are their sample's, too long for a warp: in the registers
// of a block, which goes through rows of one sample and keeps its columns' sums.
#ifndef NV_NORMS_KERNELS_CUDA_BACKWARD_SAMPLES_CUH_
#define NV_NORMS_KERNELS_CUDA_BACKWARD_SAMPLES_CUH_

#include "kernels/cuda/samples.cuh"

namespace nv_norms {
namespace cuda {

// T, D: of x and dx, and of dy. While a block works on ROWS rows the next are on their way.
template <typename T, typename D, int NUMBERS, int ROWS, int THREADS>
__global__ void __launch_bounds__(THREADS)
    SampleGradientKernel(const __grid_constant__ WarpGradientArguments args) {
  LetNextKernelStart();
  constexpr int VEC = 16 / sizeof(T);
  constexpr int ITEMS = NUMBERS / VEC;
  __shared__ BlockStorage<3 * ROWS, float> storage[2];
  const int threads = static_cast<int>(blockDim.x);
  const int rank = static_cast<int>(threadIdx.x);
  const int cols = args.cols;
  const unsigned lot = blockIdx.x / args.samples;
  const unsigned sample = blockIdx.x - lot * args.samples;
  const int64_t begin = sample * args.rows;
  const int64_t end = begin + args.rows;
  const int64_t step = static_cast<int64_t>(args.lots) * ROWS;
  const auto column = [&](int i) { return ColumnOf<VEC>(i, threads, rank); };
  const auto within = [&](int i) { return column(i) < cols; };
  using Rows = FetchedRows<T, D, VEC, ITEMS, ROWS>;
  const auto fetch = [&](int64_t at, Rows* to) {
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      const int64_t row = at + r;
      if (row < end) to->Fetch(args.buffers, r, row, cols, column, within);
    }
  };
  int64_t at = begin + static_cast<int64_t>(lot) * ROWS;
  Rows now;
  fetch(at, &now);
  float gamma[ITEMS][VEC];
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    if (within(i)) {
      LoadParams<float, VEC>({}, args.param, args.buffers.gamma, 0,
                             static_cast<int64_t>(sample) * cols + column(i), 1, gamma[i]);
    }
  }
  float dgamma[ITEMS][VEC] = {};
  float dbeta[ITEMS][VEC] = {};
  const float inverse = 1.0f / static_cast<float>(cols);
  int parity = 0;
  for (; at < end; at += step) {
    Rows next;
    fetch(at + step, &next);
    float sums[3 * ROWS] = {};
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
#pragma unroll
      for (int i = 0; i < ITEMS; ++i) {
        if (within(i)) {
          float e[VEC];
          float d[VEC];
          now.Take(r, i, e, d);
#pragma unroll
          for (int v = 0; v < VEC; ++v) {
            const float w = d[v] * gamma[i][v];
            sums[3 * r] += e[v];
            sums[3 * r + 1] += w;
            sums[3 * r + 2] += w * e[v];
          }
        }
      }
    }
    // Two storages by turns: a thread may still read one when another is some rows ahead.
    ShortBlockSum(sums, &storage[parity]);
    parity ^= 1;
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      const int64_t row = at + r;
      if (row >= end) break;
      const GradientLine line = LineOf(args.formula, now.mean[r], now.rstd[r], sums[3 * r],
                                       sums[3 * r + 1], sums[3 * r + 2], inverse);
      T* dx = static_cast<T*>(args.buffers.dx) + row * cols;
#pragma unroll
      for (int i = 0; i < ITEMS; ++i) {
        if (within(i)) {
          float e[VEC];
          float d[VEC];
          now.TakeAgain(r, i, e, d);
          float out[VEC];
#pragma unroll
          for (int v = 0; v < VEC; ++v) {
            out[v] = d[v] * gamma[i][v] * now.rstd[r] + (line.offset - e[v] * line.slope);
            dgamma[i][v] += d[v] * (e[v] * now.rstd[r] + line.xhat_offset);
            dbeta[i][v] += d[v];
          }
          if (args.buffers.dx != nullptr) StoreAs(dx + column(i), out);
        }
      }
    }
    now = next;
  }
  const int64_t to = static_cast<int64_t>(blockIdx.x) * cols;
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    if (within(i)) {
      if (args.dgamma != nullptr) StoreAs(args.dgamma + to + column(i), dgamma[i]);
      if (args.dbeta != nullptr) StoreAs(args.dbeta + to + column(i), dbeta[i]);
    }
  }
}

// Of rows of whole vectors. Warps: the steps of the rows that a warp has (WarpGradientStep).
template <typename T, typename D, typename... Warps>
SampleGradient ChooseSampleGradient(int64_t cols) {
  constexpr int VEC = 16 / sizeof(T);
  if (cols % VEC != 0) return {};
  const WarpGradient warp = ClimbWarpGradient<T, D, VEC, Warps...>(cols);
  if (warp.kernel != nullptr) {
    return {warp.kernel, warp.threads, warp.rows, int64_t{warp.threads / 32} * 2 * cols * 4};
  }
  if constexpr (sizeof(T) == 2) {
    const int threads = SampleThreads(cols, 16);
    if (threads <= 384) return {SampleGradientKernel<T, D, 16, 2, 384>, threads, 2, 0};
    if (threads <= 512) return {SampleGradientKernel<T, D, 16, 1, 512>, threads, 1, 0};
  } else {
    const int threads = SampleThreads(cols, 8);
    if (threads <= 512) return {SampleGradientKernel<T, D, 8, 1, 512>, threads, 1, 0};
    if (threads <= 1024)
      return {SampleGradientKernel<T, D, 16, 1, 512>, SampleThreads(cols, 16), 1, 0};
  }
  return {};
}

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_BACKWARD_SAMPLES_CUH_
