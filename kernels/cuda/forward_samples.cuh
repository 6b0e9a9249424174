// Rows whose parameters are their sample's, too long for what forward_rows_warp.cuh has: in the
// registers of a warp or a block, which goes through rows of one sample.
#ifndef NV_NORMS_KERNELS_CUDA_FORWARD_SAMPLES_CUH_
#define NV_NORMS_KERNELS_CUDA_FORWARD_SAMPLES_CUH_

#include "kernels/cuda/far.cuh"
#include "kernels/cuda/samples.cuh"

namespace nv_norms {
namespace cuda {

template <int VEC, int ITEMS>
struct FetchedSampleRow {
  Bits<float, VEC> x[ITEMS];
  float pivot;
};

// A vector of gamma or beta from shared memory.
template <typename P, int VEC>
__device__ __forceinline__ void ReadParams(const P* from, float (&to)[VEC]) {
  Bits<float, VEC> bits;
  LoadBits(from, &bits);
  ConvertBits<P>(bits, to);
}

// X, Y, P: the types of x, of y, and of gamma and beta, which a block keeps in its shared memory. A
// row has a warp (WARPS of them to a block) or, where that is 0, a block, which work on it while
// the next is on its way. Sums are of x - pivot; of float32 squares are about the mean that those
// give, of 16 bits about the pivot, and again where that is far from the mean.
template <typename X, typename Y, typename P, int WARPS, int ITEMS, int THREADS, int RESIDENT>
__global__ void __launch_bounds__(THREADS, RESIDENT)
    SampleRowsKernel(const __grid_constant__ WarpRowsArguments args) {
  constexpr int VEC = 16 / sizeof(X);
  constexpr bool kOnce = kInOnePass<X>;
  constexpr bool kWarp = WARPS != 0;
  constexpr int kSample = kOnce ? 4 : 1;  // numbers whose mean is the pivot
  __shared__ BlockStorage<1, float> mean_storage[2];
  __shared__ BlockStorage<2, float> storage[2];
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
  const int64_t step = static_cast<int64_t>(args.lots) * teams;
  const auto column = [&](int i) { return ColumnOf<VEC>(i, threads, rank); };
  // A warp's items but the last have a vector in every lane.
  const auto within = [&](int i) { return (kWarp && i + 1 < ITEMS) || column(i) < cols; };
  const bool center = args.formula != Formula::kRms;
  using Row = FetchedSampleRow<VEC, ITEMS>;
  const auto fetch = [&](int64_t row, Row* to) {
    if (row >= end) return;
    const X* x = static_cast<const X*>(args.buffers.x) + row * cols;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      if (within(i)) LoadBits(x + column(i), &to->x[i]);
    }
    if (center) {
      Bits<float, kSample> some;
      float pivot[kSample];
      LoadBits(x, &some);
      ConvertBits<X>(some, pivot);
      to->pivot = 0;
#pragma unroll
      for (int v = 0; v < kSample; ++v) to->pivot += pivot[v] * (1.0f / kSample);
    }
  };
  int64_t row = begin + static_cast<int64_t>(lot) * teams + team;
  Row now;
  fetch(row, &now);
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
  for (; row < end; row += step) {
    Row next;
    fetch(row + step, &next);
    const auto for_numbers = [&](const auto& visit) {
#pragma unroll
      for (int i = 0; i < ITEMS; ++i) {
        if (within(i)) {
          float values[VEC];
          ConvertBits<X>(now.x[i], values);
#pragma unroll
          for (int v = 0; v < VEC; ++v) visit(v, values[v]);
        }
      }
    };
    const auto add_up = [&](auto& sums, auto* at) {
      if constexpr (kWarp) {
        WarpSum(sums, 32);
      } else {
        ShortBlockSum(sums, at);
      }
    };
    float shift = center ? now.pivot : 0.0f;
    if (!kOnce && center) {
      float parts[2] = {0, 0};
      for_numbers([&](int v, float x) { parts[v % 2] += x - shift; });
      float sum[1] = {parts[0] + parts[1]};
      add_up(sum, &mean_storage[parity]);
      shift += sum[0] * inverse;
    }
    float low = 0;
    float m2 = 0;
    const auto sum_up = [&] {
      float parts[4] = {0, 0, 0, 0};
      for_numbers([&](int v, float x) {
        const float e = x - shift;
        parts[v % 2] += e;
        parts[2 + v % 2] += e * e;
      });
      float sums[2] = {parts[0] + parts[1], parts[2] + parts[3]};
      add_up(sums, &storage[parity]);
      m2 = sums[1];
      if (!center) return false;
      low = sums[0] * inverse;
      m2 -= sums[0] * low;
      m2 = m2 < 0 ? 0.0f : m2;  // keeps NaN
      return kOnce && IsFar(sums, low, m2);
    };
    // All that have the row have the same sums.
    if (sum_up()) {
      shift += low;
      if (!kWarp) __syncthreads();  // all have read the storage
      sum_up();
    }
    // Two storages by turns: a thread may still read one when another is a row ahead.
    parity ^= 1;
    const float rstd = ShortInverseRoot(m2 * inverse + args.epsilon);
    if (rank == 0) {
      if (args.buffers.mean != nullptr) {
        static_cast<float*>(args.buffers.mean)[row] = shift + low;
      }
      if (args.buffers.rstd != nullptr) static_cast<float*>(args.buffers.rstd)[row] = rstd;
    }
    if (args.formula == Formula::kScaleOnly) shift = low = 0;
    const float offset = -low * rstd;
    Y* y = static_cast<Y*>(args.buffers.y) + row * cols;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      if (within(i)) {
        if constexpr (kOnce) Forget<X>(&now.x[i]);  // the numbers need more registers than the bits
        float scale[VEC];
        float by[VEC];
        float values[VEC];
        ReadParams(gamma + column(i), scale);
        ReadParams(beta + column(i), by);
        ConvertBits<X>(now.x[i], values);
#pragma unroll
        for (int v = 0; v < VEC; ++v) {
          values[v] = ((values[v] - shift) * rstd + offset) * scale[v] + by[v];
        }
        StoreAs(y + column(i), values);
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
      return {SampleRowsKernel<X, Y, P, 4, ITEMS, 128, 3>, 128, 4, shared, true};
    }
    return {SampleRowsKernel<X, Y, P, 8, ITEMS, 256, 2>, 256, 8, shared, true};
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
    return {SampleRowsKernel<X, Y, P, 0, kItems, 256, 3>, threads, 1, shared, true};
  }
  if (threads <= 512) {
    return {SampleRowsKernel<X, Y, P, 0, kItems, 512, 1>, threads, 1, shared, true};
  }
  return {};
}

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_FORWARD_SAMPLES_CUH_
