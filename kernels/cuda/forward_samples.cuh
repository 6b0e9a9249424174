// Rows whose parameters are their sample's, too long for what forward_rows_warp.cuh has: in the
// registers of a warp or a block, which goes through rows of one sample.
#ifndef NV_NORMS_KERNELS_CUDA_FORWARD_SAMPLES_CUH_
#define NV_NORMS_KERNELS_CUDA_FORWARD_SAMPLES_CUH_

#include "kernels/cuda/far.cuh"
#include "kernels/cuda/samples.cuh"

namespace nv_norms {
namespace cuda {

template <int VEC, int ITEMS, int ROWS>
struct FetchedSampleRows {
  Bits<float, VEC> x[ROWS][ITEMS];
  float pivot[ROWS];
};

// A vector of gamma or beta from shared memory.
template <typename P, int VEC>
__device__ __forceinline__ void ReadParams(const P* from, float (&to)[VEC]) {
  Bits<float, VEC> bits;
  LoadBits(from, &bits);
  ConvertBits<P>(bits, to);
}

// X, Y, P: the types of x, of y, and of gamma and beta, which a block keeps in its shared memory. A
// team is a warp (WARPS of them to a block) or, where that is 0, a block. While it works on ROWS
// rows the next are on their way. Sums are of x - pivot; of float32 squares are about the mean that
// those give, of 16 bits about the pivot, and again where that is far from the mean.
template <typename X, typename Y, typename P, int WARPS, int ITEMS, int ROWS, int THREADS,
          int RESIDENT>
__global__ void __launch_bounds__(THREADS, RESIDENT)
    SampleRowsKernel(const __grid_constant__ WarpRowsArguments args) {
  constexpr int VEC = 16 / sizeof(X);
  constexpr bool kOnce = kInOnePass<X>;
  constexpr bool kWarp = WARPS != 0;
  constexpr int kSample = kOnce ? 4 : 1;  // numbers whose mean is the pivot
  __shared__ BlockStorage<ROWS, float> mean_storage[2];
  __shared__ BlockStorage<2 * ROWS, float> storage[2];
  extern __shared__ float4 space[];
  P* const gamma = reinterpret_cast<P*>(space);
  P* const beta = gamma + args.cols;
  const int threads = kWarp ? 32 : static_cast<int>(blockDim.x);
  const int rank = static_cast<int>(threadIdx.x) % threads;
  const int team = static_cast<int>(threadIdx.x) / threads;
  const int teams = kWarp ? WARPS : 1;
  const int cols = args.cols;
  const unsigned sample = blockIdx.x / args.lots;
  const unsigned lot = blockIdx.x - sample * args.lots;
  const int64_t begin = sample * args.rows;
  const int64_t end = begin + args.rows;
  const int64_t step = static_cast<int64_t>(args.lots) * teams * ROWS;
  const auto column = [&](int i) { return ColumnOf<VEC>(i, threads, rank); };
  // A warp's items but the last have a vector in every lane.
  const auto within = [&](int i) { return (kWarp && i + 1 < ITEMS) || column(i) < cols; };
  const bool center = args.formula != Formula::kRms;
  using Rows = FetchedSampleRows<VEC, ITEMS, ROWS>;
  const auto fetch = [&](int64_t at, Rows* to) {
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      if (at + r >= end) break;
      const X* x = static_cast<const X*>(args.buffers.x) + (at + r) * cols;
#pragma unroll
      for (int i = 0; i < ITEMS; ++i) {
        if (within(i)) LoadBits(x + column(i), &to->x[r][i]);
      }
      if (center) {
        Bits<float, kSample> some;
        float pivot[kSample];
        LoadBits(x, &some);
        ConvertBits<X>(some, pivot);
        to->pivot[r] = 0;
#pragma unroll
        for (int v = 0; v < kSample; ++v) to->pivot[r] += pivot[v] * (1.0f / kSample);
      }
    }
  };
  int64_t at = begin + (static_cast<int64_t>(lot) * teams + team) * ROWS;
  Rows now;
  fetch(at, &now);
  const auto keep = [&](const void* all, float absent, P* to) {
    const P* from = SampleParams<P, true>(all, sample, cols);
    for (int c = static_cast<int>(threadIdx.x) * VEC; c < cols;
         c += static_cast<int>(blockDim.x) * VEC) {
      float params[VEC];
      LoadParamAs(from, c, absent, params);
      StoreAs(to + c, params);
    }
  };
  keep(args.buffers.gamma, 1, gamma);
  keep(args.buffers.beta, 0, beta);
  __syncthreads();
  const float inverse = 1.0f / static_cast<float>(cols);
  int parity = 0;
  for (; at < end; at += step) {
    Rows next;
    fetch(at + step, &next);
    const auto for_numbers = [&](int r, const auto& visit) {
#pragma unroll
      for (int i = 0; i < ITEMS; ++i) {
        if (within(i)) {
          float values[VEC];
          ConvertBits<X>(now.x[r][i], values);
#pragma unroll
          for (int v = 0; v < VEC; ++v) visit(v, values[v]);
        }
      }
    };
    float shift[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) shift[r] = center ? now.pivot[r] : 0.0f;
    if (!kOnce && center) {
      float sums[ROWS];
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        float parts[2] = {0, 0};
        for_numbers(r, [&](int i, float v) { parts[i % 2] += v - shift[r]; });
        sums[r] = parts[0] + parts[1];
      }
      if constexpr (kWarp) {
        WarpSum(sums, 32);
      } else {
        ShortBlockSum(sums, &mean_storage[parity]);
      }
#pragma unroll
      for (int r = 0; r < ROWS; ++r) shift[r] += sums[r] * inverse;
    }
    float low[ROWS];
    float m2[ROWS];
    bool far[ROWS];
    bool any_far = false;
    const auto sum_up = [&](bool again) {
      float sums[2 * ROWS];
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        float parts[4] = {0, 0, 0, 0};
        for_numbers(r, [&](int i, float v) {
          const float e = v - shift[r];
          parts[i % 2] += e;
          parts[2 + i % 2] += e * e;
        });
        sums[2 * r] = parts[0] + parts[1];
        sums[2 * r + 1] = parts[2] + parts[3];
      }
      if constexpr (kWarp) {
        WarpSum(sums, 32);
      } else {
        ShortBlockSum(sums, &storage[parity]);
      }
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        // A row that was near keeps what it has, so that it does not depend on its neighbours.
        if (again && !far[r]) continue;
        const float of_row[2] = {sums[2 * r], sums[2 * r + 1]};
        low[r] = center ? of_row[0] * inverse : 0.0f;
        m2[r] = center ? of_row[1] - of_row[0] * low[r] : of_row[1];
        m2[r] = m2[r] < 0 ? 0.0f : m2[r];  // keeps NaN
        far[r] = kOnce && center && at + r < end && IsFar(of_row, low[r], m2[r]);
        any_far = any_far || far[r];
      }
    };
    sum_up(false);
    // All threads of the team have the same sums.
    if (kOnce && any_far) {
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        if (far[r]) shift[r] += low[r];
      }
      if (!kWarp) __syncthreads();  // all have read the storage
      sum_up(true);
    }
    // Two storages by turns: a thread may still read one when another is some rows ahead.
    parity ^= 1;
    float rstd[ROWS];
    float offset[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      rstd[r] = ShortInverseRoot(m2[r] * inverse + args.epsilon);
      if (rank == 0 && at + r < end) {
        if (args.buffers.mean != nullptr) {
          static_cast<float*>(args.buffers.mean)[at + r] = shift[r] + low[r];
        }
        if (args.buffers.rstd != nullptr) {
          static_cast<float*>(args.buffers.rstd)[at + r] = rstd[r];
        }
      }
      if (args.formula == Formula::kScaleOnly) shift[r] = low[r] = 0;
      offset[r] = -low[r] * rstd[r];
    }
    Y* y = static_cast<Y*>(args.buffers.y) + at * cols;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      if (within(i)) {
        float scale[VEC];
        float by[VEC];
        ReadParams(gamma + column(i), scale);
        ReadParams(beta + column(i), by);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
          if (at + r >= end) break;
          if constexpr (sizeof(X) == 2) Forget<X>(&now.x[r][i]);  // the numbers need more registers
          float values[VEC];
          ConvertBits<X>(now.x[r][i], values);
#pragma unroll
          for (int v = 0; v < VEC; ++v) {
            values[v] = ((values[v] - shift[r]) * rstd[r] + offset[r]) * scale[v] + by[v];
          }
          StoreAs(y + r * cols + column(i), values);
        }
      }
    }
    now = next;
  }
}

// Warps that go on, for rows of this many vectors to a lane; or else blocks.
template <typename X, typename Y, typename P, int ITEMS, int LEAST>
SampleRows ChooseSampleWarps(int64_t items, int64_t shared) {
  if constexpr (ITEMS < LEAST) {
    return {};
  } else {
    if (items < ITEMS) return ChooseSampleWarps<X, Y, P, ITEMS - 1, LEAST>(items, shared);
    if (items > ITEMS) return {};
    if constexpr (ITEMS > (sizeof(X) == 2 ? 8 : 9)) {
      return {SampleRowsKernel<X, Y, P, 4, ITEMS, 1, 128, 3>, 128, 4, shared, true};
    }
    return {SampleRowsKernel<X, Y, P, 8, ITEMS, 1, 256, 2>, 256, 8, shared, true};
  }
}

// Of rows of whole vectors. Warps: the steps of the rows that a warp has (WarpRowsStep).
template <typename X, typename Y, typename P, typename... Warps>
SampleRows ChooseSampleRows(const RowLayout& layout) {
  constexpr int VEC = 16 / sizeof(X);
  constexpr bool kHalves = sizeof(X) == 2;
  if (layout.cols % VEC != 0) return {};
  const WarpRows warp = ClimbWarpRows<X, Y, P, VEC, Warps...>(layout, Device());
  if (warp.kernel != nullptr) return {warp.kernel, 32, warp.rows};
  const int64_t shared = 2 * layout.cols * static_cast<int64_t>(sizeof(P));
  const SampleRows going = ChooseSampleWarps<X, Y, P, kHalves ? 10 : 12, kHalves ? 4 : 9>(
      CeilDiv(layout.cols, 32 * VEC), shared);
  if (going.kernel != nullptr) return going;
  constexpr int kItems = kHalves ? 3 : 4;
  const int threads = SampleThreads(layout.cols, kItems * VEC);
  if (threads <= 256) {
    return {SampleRowsKernel<X, Y, P, 0, kItems, 2, 256, 2>, threads, 2, shared, true};
  }
  if (threads <= 512) {
    return {SampleRowsKernel<X, Y, P, 0, kItems, 1, 512, 1>, threads, 1, shared, true};
  }
  return {};
}

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_FORWARD_SAMPLES_CUH_
