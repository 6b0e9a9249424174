// x is [rows, cols], a statistic a row. Some rows (or a cluster's share of them) lie in a block's
// shared memory: x is read once, and gamma and beta once for all of these rows. For aligned rows of
// more than a warp's registers hold.
#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/staged.cuh"

namespace nv_norms {
namespace cuda {
namespace {

constexpr int kThreads = 512;  // at most
// Of a row, to a thread: on an H200 32768 x 4096 float32 took 0.264 ms with 64, 0.278 with 128 and
// 0.368 with 256.
constexpr int64_t kBytesPerThread = 64;
// Of rows, to a block, so that several are at work on a multiprocessor and one stores while another
// loads: with 32 KB 16384 x 16384 float32 took 0.641 ms, with 64 KB 0.579, with 107 KB 0.580.
constexpr int64_t kBytesPerBlock = 65536;

struct Arguments {
  DType param;
  Formula formula;
  float epsilon;
  int64_t rows;
  int cols;
  int blocks;  // to a row
  int share;   // vectors of a row to a block
  ForwardBuffers buffers;
};

template <typename T, typename P, typename Y, int ROWS>
__global__ void __launch_bounds__(kThreads) StagedKernel(const __grid_constant__ Arguments args) {
  extern __shared__ uint4 stage[];  // [ROWS][share]
  __shared__ BlockStorage<ROWS, float> first_storage;
  __shared__ BlockStorage<2 * ROWS, float> second_storage;
  constexpr int kVector = kVectorOf<T>;
  ArriveAtCluster(args.blocks);
  const int64_t row = static_cast<int64_t>(blockIdx.x / args.blocks) * ROWS;
  const int rows = static_cast<int>(min(static_cast<int64_t>(ROWS), args.rows - row));
  const int begin = BlockRankInCluster() * args.share;
  const int count = min(args.share, args.cols / kVector - begin);
  const T* input = static_cast<const T*>(args.buffers.x) + row * args.cols;
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    if (r < rows) {
      const uint4* x = reinterpret_cast<const uint4*>(input + static_cast<int64_t>(r) * args.cols);
      for (int i = threadIdx.x; i < count; i += blockDim.x) {
        CopyAsync(&stage[r * args.share + i], x + begin + i);
      }
    }
  }
  CommitCopies();
  const bool center = args.formula != Formula::kRms;  // the statistics, at least
  const float inverse = 1.0f / static_cast<float>(args.cols);
  float shift[ROWS];
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    shift[r] =
        center && r < rows ? To<float>::Of(input[static_cast<int64_t>(r) * args.cols]) : 0.0f;
  }
  WaitForCopies<0>();
  WaitForCluster(args.blocks);

  if (center) {
    float sum[ROWS] = {};
    for (int i = threadIdx.x; i < count; i += blockDim.x) {
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        if (r < rows) {
          float v[kVector];
          Unpack<T>(stage[r * args.share + i], v);
#pragma unroll
          for (int j = 0; j < kVector; ++j) sum[r] += v[j] - shift[r];
        }
      }
    }
    ClusterSum(sum, &first_storage, args.blocks);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) shift[r] += sum[r] * inverse;
  }
  float sums[2 * ROWS] = {};
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      if (r < rows) {
        float v[kVector];
        Unpack<T>(stage[r * args.share + i], v);
#pragma unroll
        for (int j = 0; j < kVector; ++j) {
          const float e = v[j] - shift[r];
          sums[2 * r] += e;
          sums[2 * r + 1] += e * e;
        }
      }
    }
  }
  ClusterSum(sums, &second_storage, args.blocks);
  float low[ROWS];
  float rstd[ROWS];
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    low[r] = 0;
    float m2 = sums[2 * r + 1];
    if (center) {
      low[r] = sums[2 * r] * inverse;
      m2 -= sums[2 * r] * low[r];
      m2 = m2 < 0 ? 0.0f : m2;  // keeps NaN
    }
    rstd[r] = InverseRoot(m2 * inverse + args.epsilon);
    if (begin == 0 && threadIdx.x == 0 && r < rows) {
      if (args.buffers.mean != nullptr) {
        static_cast<float*>(args.buffers.mean)[row + r] = shift[r] + low[r];
      }
      static_cast<float*>(args.buffers.rstd)[row + r] = rstd[r];
    }
    if (args.formula != Formula::kCenter) {
      shift[r] = 0;
      low[r] = 0;
    }
  }
  Y* output = static_cast<Y*>(args.buffers.y) + row * args.cols;
#pragma unroll 2
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    const int c = (begin + i) * kVector;
    float gamma[kVector];
    float beta[kVector];
    LoadParamVector<P, kVector>(args.param, args.buffers.gamma, c, 1.0f, gamma);
    LoadParamVector<P, kVector>(args.param, args.buffers.beta, c, 0.0f, beta);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      if (r < rows) {
        float v[kVector];
        Unpack<T>(stage[r * args.share + i], v);
#pragma unroll
        for (int j = 0; j < kVector; ++j) {
          v[j] = ((v[j] - shift[r]) - low[r]) * rstd[r] * gamma[j] + beta[j];
        }
        StoreAs(output + static_cast<int64_t>(r) * args.cols + c, v);
      }
    }
  }
  if (args.blocks > 1) SyncCluster();
}

using KernelPointer = void (*)(Arguments);

template <typename T, typename P, typename Y>
KernelPointer KernelFor(int rows) {
  return rows == 2 ? StagedKernel<T, P, Y, 2> : StagedKernel<T, P, Y, 1>;
}

template <typename T, typename Y>
KernelPointer KernelFor(DType param, int rows) {
  return param == DType::kFloat ? KernelFor<T, Fixed<float>, Y>(rows)
                                : KernelFor<T, Any<float>, Y>(rows);
}

// Null where there is none for these types.
KernelPointer KernelFor(DType x, DType param, DType y, int rows) {
  if (x == DType::kFloat) {
    if (y == DType::kFloat) return KernelFor<float, float>(param, rows);
    if (y == DType::kHalf) return KernelFor<float, __half>(param, rows);
    if (y == DType::kBfloat16) return KernelFor<float, __nv_bfloat16>(param, rows);
  } else if (x == DType::kHalf) {
    if (y == DType::kHalf) return KernelFor<__half, __half>(param, rows);
    if (y == DType::kFloat) return KernelFor<__half, float>(param, rows);
  } else if (x == DType::kBfloat16) {
    if (y == DType::kBfloat16) return KernelFor<__nv_bfloat16, __nv_bfloat16>(param, rows);
    if (y == DType::kFloat) return KernelFor<__nv_bfloat16, float>(param, rows);
  }
  return nullptr;
}

}  // namespace

Status LaunchForwardRowsStaged(const ForwardPlan& plan, const ForwardBuffers& buffers, void* stream,
                               bool* launched) {
  *launched = false;
  const ForwardProblem& problem = plan.problem;
  const RowLayout& layout = problem.geometry.rows;
  if (problem.in_double() || !RowParams::Of(layout).by_column) return Status();
  const int64_t size = SizeOf(problem.x);
  const int64_t vector = 16 / size;
  if (layout.cols % vector != 0 || !AlignedTo(buffers.x, 16) || !AlignedTo(buffers.y, 16) ||
      !AlignedTo(buffers.gamma, 16) || !AlignedTo(buffers.beta, 16)) {
    return Status();
  }
  const int64_t bytes = layout.cols * size;
  const int most = plan.device.capability >= 90 ? kMaxCluster : 1;
  const int64_t most_shared = plan.device.shared_bytes - 4096;
  int blocks = 1;
  while (blocks < most && blocks * std::min(kBytesPerBlock, most_shared) < bytes) blocks *= 2;
  // Two short rows to a block share gamma, beta and the barriers: 65536 x 1024 bfloat16 took 0.086
  // ms with two and 0.096 with four; 32768 x 2048 0.088 with two and 0.086 with one.
  const int rows =
      size == 2 && layout.cols <= 1024 && layout.rows >= 32 * plan.device.multiprocessors ? 2 : 1;
  const KernelPointer kernel = KernelFor(problem.x, problem.param, problem.y, rows);
  if (kernel == nullptr) return Status();
  Arguments args = {};
  args.param = problem.param;
  args.formula = problem.formula;
  args.epsilon = static_cast<float>(problem.epsilon);
  args.rows = layout.rows;
  args.cols = static_cast<int>(layout.cols);
  args.blocks = blocks;
  args.share = static_cast<int>(CeilDiv(layout.cols / vector, blocks));
  args.buffers = buffers;
  const int64_t shared = args.share * int64_t{16} * rows;
  if (shared > most_shared) return Status();
  const int64_t threads = std::min<int64_t>(
      kThreads, CeilDiv(CeilDiv(args.share * int64_t{16}, kBytesPerThread), 32) * 32);
  const int64_t grid = CeilDiv(layout.rows, rows) * blocks;
  if (grid >= int64_t{1} << 31) return Status();
  if (shared > 40 * 1024) {
    NV_NORMS_RETURN_IF_ERROR(FromCuda(
        cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                             cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)),
        "shared memory of a normalization"));
  }
  *launched = true;
  return LaunchKernel("normalization of staged rows", kernel, static_cast<unsigned>(grid),
                      static_cast<unsigned>(threads), static_cast<size_t>(shared), blocks, stream,
                      args);
}

}  // namespace cuda
}  // namespace nv_norms
