// x is [rows, cols] of up to four vectors to a lane. A warp has one to eight rows, asks for all
// of them at once, into its registers, and ends with them: blocks start in turn and go through
// memory side by side.
#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/short_row.cuh"
#include "kernels/cuda/staged.cuh"

namespace nv_norms {
namespace cuda {
namespace {

constexpr int kMostThreads = 128;

struct Arguments {
  DType param;
  Formula formula;
  float epsilon;
  int64_t rows;
  int cols;
  ForwardBuffers buffers;
};

// 16 bytes past the L1 cache; of float32 they are last to leave L2 (see warp_copies.cuh; of 16 bits
// 512 columns took 38.0 us without, 39.4 with).
template <typename T>
__device__ __forceinline__ void LoadPast(const T* from, uint64_t policy, uint32_t* words) {
#if __CUDA_ARCH__ >= 800
  if constexpr (sizeof(T) == 4) {
    asm volatile("ld.global.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "l"(from), "l"(policy));
    return;
  }
#endif
  Chunk<16>::Split(__ldcs(reinterpret_cast<const uint4*>(from)), words);
}

template <typename T, int ITEMS, int ROWS>
__global__ void __launch_bounds__(kMostThreads) WarpKernel(const __grid_constant__ Arguments args) {
  constexpr int VEC = kVectorOf<T>;
  const int lane = threadIdx.x % 32;
  const int cols = args.cols;
  const int64_t warp = static_cast<int64_t>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
  const int64_t first = warp * ROWS;
  if (first >= args.rows) return;
  // All items but the last have a vector in every lane.
  const auto within = [&](int i) { return i + 1 < ITEMS || ColumnOf<VEC>(i, 32, lane) < cols; };
  const T* x = static_cast<const T*>(args.buffers.x) + first * cols;
  const uint64_t policy = KeepPolicy();
  Bits<float, VEC> bits[ROWS][ITEMS];
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      if (first + r < args.rows && within(i)) {
        LoadPast(x + static_cast<int64_t>(r) * cols + ColumnOf<VEC>(i, 32, lane), policy,
                 bits[r][i].words);
      }
    }
  }
  float gamma[ITEMS][VEC];
  float beta[ITEMS][VEC];
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    if (within(i)) {
      const int c = ColumnOf<VEC>(i, 32, lane);
      LoadParams<float, VEC>({}, args.param, args.buffers.gamma, 0, c, 1, gamma[i]);
      LoadParams<float, VEC>({}, args.param, args.buffers.beta, 0, c, 0, beta[i]);
    }
  }
  const bool center = args.formula != Formula::kRms;
  float mean = 0;  // of the lane's row
  float rstd = 0;
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    const int64_t row = first + r;
    if (row >= args.rows) break;
    float values[ITEMS][VEC];
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) ConvertBits<T>(bits[r][i], values[i]);
    const auto reload = [&](int i, float (&item)[VEC]) {
      Bits<float, VEC> again;
      LoadBits(x + static_cast<int64_t>(r) * cols + ColumnOf<VEC>(i, 32, lane), &again);
      ConvertBits<T>(again, item);
    };
    const ShortRow found =
        CenterShortRow<kInOnePass<T>>(values, within, reload, 32, 0, center, cols, args.epsilon);
    if (lane == r) {
      mean = found.mean;
      rstd = found.rstd;
    }
    const float offset = found.Offset(args.formula);
    T* y = static_cast<T*>(args.buffers.y) + row * cols;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      if (within(i)) {
#pragma unroll
        for (int v = 0; v < VEC; ++v) {
          values[i][v] = (values[i][v] * found.rstd + offset) * gamma[i][v] + beta[i][v];
        }
        StoreAs(y + ColumnOf<VEC>(i, 32, lane), values[i]);
      }
    }
  }
  if (lane < ROWS && first + lane < args.rows) {
    if (args.buffers.mean != nullptr) static_cast<float*>(args.buffers.mean)[first + lane] = mean;
    static_cast<float*>(args.buffers.rstd)[first + lane] = rstd;
  }
}

using KernelPointer = void (*)(Arguments);

struct Choice {
  KernelPointer kernel = nullptr;
  int rows = 1;  // to a warp
  int threads = kMostThreads;
};

// Of a copy's speed on an H200, 2^27 numbers, with so many rows to a warp, beside tiles or rings
// (in brackets). float32 100 columns 4: 0.93, 8: 0.97 (0.99), 112 0.97, 0.99 (0.98), 128 0.99, 1.00
// (0.98), 144 4: 0.93 (0.98), 176 1.00 (0.97), 384 2 and 4: 1.00, 512 one, in blocks of 64 threads:
// 1.00. bfloat16 192 4: 0.81 (0.88), 256 0.92 (0.85), 320 2: 0.73 (0.80), 400 0.85 (0.88), 512
// 0.89, 3: 0.90, 576 2, 3 and 4: 0.84, 0.90, 0.85 (0.83), 640 0.88, 0.93, 0.90 (0.89), 704 0.90,
// 0.94, 0.92 (0.85), 768 0.94, 0.94, 0.95 (0.96; of 2^26 numbers 0.93, 0.94 and 0.92), 1000 2 and
// 3: 0.93, 0.96 (0.94), 1024 0.92, 0.95 (0.96). From float32 to bfloat16 tiles took less: 200
// columns 116 us of 2^25 numbers (104), 512 106 (103).
template <typename T>
Choice ChoiceFor(const RowLayout& layout) {
  const int64_t cols = layout.cols;
  const int64_t bytes = cols * static_cast<int64_t>(sizeof(T));
  if constexpr (std::is_same_v<T, float>) {
    if (bytes < 448 || (bytes > 512 && bytes < 672)) return {};  // too many idle lanes
    if (bytes <= 512) return {WarpKernel<T, 1, 8>, 8, 64};
    if (bytes <= 1024) return {WarpKernel<T, 2, 4>, 4};
    if (bytes <= 1536) return {WarpKernel<T, 3, 4>, 4};
    if (bytes <= 2048) return {WarpKernel<T, 4, 1>, 1, 64};
  } else {
    if (bytes < 416 || (bytes > 512 && bytes < 832)) return {};
    if (bytes <= 512) return {WarpKernel<T, 1, 4>, 4};
    if (bytes <= 1024) return {WarpKernel<T, 2, 2>, 2};
    const bool ring = cols == 1024 || (cols == 768 && layout.rows * cols > (int64_t{1} << 26));
    if (bytes <= 1536 && !ring) return {WarpKernel<T, 3, 3>, 3, 64};
    if (bytes <= 2048 && !ring) return {WarpKernel<T, 4, 3>, 3, 64};
  }
  return {};
}

}  // namespace

Status LaunchForwardRowsWarp(const ForwardPlan& plan, const ForwardBuffers& buffers, void* stream,
                             bool* launched) {
  *launched = false;
  const ForwardProblem& problem = plan.problem;
  const RowLayout& layout = problem.geometry.rows;
  if (problem.in_double() || problem.x != problem.y || !layout.by_column() ||
      layout.cols * SizeOf(problem.x) % 16 != 0 || !AlignedTo(buffers.x, 16) ||
      !AlignedTo(buffers.y, 16) || !AlignedTo(buffers.gamma, 16) || !AlignedTo(buffers.beta, 16)) {
    return Status();
  }
  const Choice choice = problem.x == DType::kFloat  ? ChoiceFor<float>(layout)
                        : problem.x == DType::kHalf ? ChoiceFor<__half>(layout)
                                                    : ChoiceFor<__nv_bfloat16>(layout);
  if (choice.kernel == nullptr) return Status();
  Arguments args = {};
  args.param = problem.param;
  args.formula = problem.formula;
  args.epsilon = static_cast<float>(problem.epsilon);
  args.rows = layout.rows;
  args.cols = static_cast<int>(layout.cols);
  args.buffers = buffers;
  *launched = true;
  const int64_t blocks = CeilDiv(layout.rows, int64_t{choice.rows} * (choice.threads / 32));
  return LaunchKernel("normalization of rows by warps", choice.kernel,
                      static_cast<unsigned>(blocks), choice.threads, 0, 1, stream, args);
}

}  // namespace cuda
}  // namespace nv_norms
