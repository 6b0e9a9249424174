// What the kernels of rows in registers share: 4 to 32 lanes of a warp have a row.
#ifndef NV_NORMS_KERNELS_CUDA_FORWARD_ROWS_WARP_CUH_
#define NV_NORMS_KERNELS_CUDA_FORWARD_ROWS_WARP_CUH_

#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/short_row.cuh"

namespace nv_norms {
namespace cuda {

struct WarpRowsArguments {
  Formula formula;
  float epsilon;
  int64_t rows;  // of a sample, where each has parameters of its own
  int cols;
  unsigned lots;  // blocks to a sample then
  ForwardBuffers buffers;
};

// A kernel and how many rows a warp of it has; null where other kernels are faster.
struct WarpRows {
  void (*kernel)(WarpRowsArguments) = nullptr;
  int rows = 1;
};

// Rows that are whole vectors of so many numbers. x and y in 16 bits, in float32, and in both.
WarpRows ChooseWarpRows16(const ForwardProblem& problem, int vector, const Device& device);
WarpRows ChooseWarpRows32(const ForwardProblem& problem, int vector, const Device& device);
WarpRows ChooseWarpRowsMixed(const ForwardProblem& problem, int vector, const Device& device);

// Numbers of type P of gamma or beta.
template <typename P, int VEC>
__device__ __forceinline__ void LoadParamAs(const P* from, int c, float absent, float (&to)[VEC]) {
  if (from == nullptr) {
#pragma unroll
    for (int v = 0; v < VEC; ++v) to[v] = absent;
  } else {
    Bits<float, VEC> bits;
    LoadBits(from + c, &bits);
    ConvertBits<P>(bits, to);
  }
}

// gamma or beta, of a sample if each has its own.
template <typename P, bool kSamples>
__device__ __forceinline__ const P* SampleParams(const void* all, unsigned sample, int cols) {
  const P* const from = static_cast<const P*>(all);
  return kSamples && from != nullptr ? from + static_cast<int64_t>(sample) * cols : from;
}

// X, Y, P: the types of x, of y, and of gamma and beta. A block is one warp. It has ROWS rows for
// each of its 32 / LANES groups of lanes, asks for all of them at once, and ends with them: blocks
// start in turn and go through memory side by side. Loads are plain ones: past the L1 cache 65536 x
// 512 bfloat16 takes 38.8 us in place of 38.1, 65536 x 1024 69.6 in place of 68.0.
template <typename X, typename Y, typename P, int VEC, int LANES, int ITEMS, int ROWS,
          bool kSamples>
__global__ void __launch_bounds__(32)
    WarpRowsKernel(const __grid_constant__ WarpRowsArguments args) {
  static_assert(ROWS <= LANES);
  constexpr int kGroups = 32 / LANES;
  // Between branches the compiler works on one row at a time, and has registers for it: of
  // bfloat16 1000 columns 0.88 of a copy's speed without, 0.985 with, but 192 1.01 and 0.98.
  constexpr bool kInTurn = ITEMS * VEC >= 32;
  const int rank = static_cast<int>(threadIdx.x) % LANES;
  const int group = static_cast<int>(threadIdx.x) / LANES;
  const int cols = args.cols;
  const unsigned sample = kSamples ? blockIdx.x / args.lots : 0;
  const unsigned lot = kSamples ? blockIdx.x - sample * args.lots : blockIdx.x;
  const int64_t in_sample = static_cast<int64_t>(lot) * (ROWS * kGroups) + group;
  const int64_t left = args.rows - in_sample;
  const int64_t first = kSamples ? sample * args.rows + in_sample : in_sample;
  // All items but the last have a vector in every lane.
  const auto within = [&](int i) { return i + 1 < ITEMS || ColumnOf<VEC>(i, LANES, rank) < cols; };
  const X* x = static_cast<const X*>(args.buffers.x) + first * cols;
  Bits<float, VEC> bits[ROWS][ITEMS];
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      if (r * kGroups < left && within(i)) {
        LoadBits(x + r * kGroups * cols + ColumnOf<VEC>(i, LANES, rank), &bits[r][i]);
      }
    }
  }
  float gamma[ITEMS][VEC];
  float beta[ITEMS][VEC];
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    if (within(i)) {
      const int c = ColumnOf<VEC>(i, LANES, rank);
      LoadParamAs(SampleParams<P, kSamples>(args.buffers.gamma, sample, cols), c, 1, gamma[i]);
      LoadParamAs(SampleParams<P, kSamples>(args.buffers.beta, sample, cols), c, 0, beta[i]);
    }
  }
  const bool center = args.formula != Formula::kRms;
  float mean = 0;  // of the group's row `rank`
  float rstd = 0;
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    if (kInTurn && r > 0 && r * kGroups >= left + group) break;  // all lanes or none
    float values[ITEMS][VEC];
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) ConvertBits<X>(bits[r][i], values[i]);
    const auto reload = [&](int i, float (&item)[VEC]) {
      if (r * kGroups >= left) return;
      Bits<float, VEC> again;
      LoadBits(x + r * kGroups * cols + ColumnOf<VEC>(i, LANES, rank), &again);
      ConvertBits<X>(again, item);
    };
    // By all lanes together; what those without a row find out is not used.
    const ShortRow found = CenterShortRow<kInOnePass<X>>(values, within, reload, LANES,
                                                         group * LANES, center, cols, args.epsilon);
    if (rank == r) {
      mean = found.mean;
      rstd = found.rstd;
    }
    if (r * kGroups < left) {
      const float offset = found.Offset(args.formula);
      Y* y = static_cast<Y*>(args.buffers.y) + (first + r * kGroups) * cols;
#pragma unroll
      for (int i = 0; i < ITEMS; ++i) {
        if (within(i)) {
#pragma unroll
          for (int v = 0; v < VEC; ++v) {
            values[i][v] = (values[i][v] * found.rstd + offset) * gamma[i][v] + beta[i][v];
          }
          StoreAs(y + ColumnOf<VEC>(i, LANES, rank), values[i]);
        }
      }
    }
  }
  if (rank < ROWS && rank * kGroups < left) {
    const int64_t row = first + rank * kGroups;
    if (args.buffers.mean != nullptr) static_cast<float*>(args.buffers.mean)[row] = mean;
    if (args.buffers.rstd != nullptr) static_cast<float*>(args.buffers.rstd)[row] = rstd;
  }
}

// Rows of up to LANES * ITEMS vectors, and of more than LANES * (ITEMS - 1). A group of lanes has
// MANY rows where each multiprocessor has 64 warps and more to go through, else FEW (0: other
// kernels are faster).
template <int LANES, int ITEMS, int MANY, int FEW, bool kSamples = false>
struct WarpRowsStep {
  template <typename X, typename Y, typename P, int VEC>
  static bool Take(const RowLayout& layout, const Device& device, WarpRows* out) {
    constexpr int kGroups = 32 / LANES;
    if (layout.cols > LANES * ITEMS * VEC) return false;
    if (layout.rows >= int64_t{64} * MANY * kGroups * device.multiprocessors) {
      *out = {WarpRowsKernel<X, Y, P, VEC, LANES, ITEMS, MANY, kSamples>, MANY * kGroups};
    } else if constexpr (FEW != 0) {
      *out = {WarpRowsKernel<X, Y, P, VEC, LANES, ITEMS, FEW, kSamples>, FEW * kGroups};
    }
    return true;
  }
};

// The first of the steps that has room for a row.
template <typename X, typename Y, typename P, int VEC, typename... Steps>
WarpRows ClimbWarpRows(const RowLayout& layout, const Device& device) {
  WarpRows out;
  (Steps::template Take<X, Y, P, VEC>(layout, device, &out) || ...);
  return out;
}

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_FORWARD_ROWS_WARP_CUH_
