// x is [rows, cols], a statistic a row, and the row (or a cluster's share of it) lies in a block's
// shared memory: x is read once. For aligned rows of more than a warp's registers hold.
#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/staged.cuh"

namespace nv_norms {
namespace cuda {
namespace {

constexpr int kMaxThreads = 512;
constexpr int64_t kBytesPerThread = 128;

struct Arguments {
  DType param;
  Formula formula;
  float epsilon;
  int cols;
  int blocks;  // to a row
  int share;   // vectors of a row to a block
  ForwardBuffers buffers;
};

template <typename T, typename P, typename Y>
__global__ void __launch_bounds__(kMaxThreads)
    StagedKernel(const __grid_constant__ Arguments args) {
  extern __shared__ uint4 stage[];
  __shared__ BlockStorage<1, float> first_storage;
  __shared__ BlockStorage<2, float> second_storage;
  constexpr int kVector = kVectorOf<T>;
  ArriveAtCluster(args.blocks);
  const int64_t row = blockIdx.x / args.blocks;
  const int begin = BlockRankInCluster() * args.share;
  const int count = min(args.share, args.cols / kVector - begin);
  const int64_t base = row * args.cols;
  const uint4* x =
      reinterpret_cast<const uint4*>(static_cast<const T*>(args.buffers.x) + base) + begin;
  for (int i = threadIdx.x; i < count; i += blockDim.x) CopyAsync(&stage[i], x + i);
  CommitCopies();
  const bool center = args.formula != Formula::kRms;  // the statistics, at least
  const float first = center ? To<float>::Of(static_cast<const T*>(args.buffers.x)[base]) : 0.0f;
  const float total = static_cast<float>(args.cols);
  WaitForCopies<0>();
  WaitForCluster(args.blocks);

  float shift = 0;
  if (center) {
    float sum[1] = {0};
#pragma unroll 4
    for (int i = threadIdx.x; i < count; i += blockDim.x) {
      float v[kVector];
      Unpack<T>(stage[i], v);
#pragma unroll
      for (int j = 0; j < kVector; ++j) sum[0] += v[j] - first;
    }
    ClusterSum(sum, &first_storage, args.blocks);
    shift = first + sum[0] / total;
  }
  float sums[2] = {0, 0};
#pragma unroll 4
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    float v[kVector];
    Unpack<T>(stage[i], v);
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      const float e = v[j] - shift;
      sums[0] += e;
      sums[1] += e * e;
    }
  }
  ClusterSum(sums, &second_storage, args.blocks);
  float low = 0;
  float m2 = sums[1];
  if (center) {
    low = sums[0] / total;
    m2 -= sums[0] * low;
    m2 = m2 < 0 ? 0.0f : m2;  // keeps NaN
  }
  const float rstd = InverseRoot(m2 / total + args.epsilon);
  if (begin == 0 && threadIdx.x == 0) {
    if (args.buffers.mean != nullptr) static_cast<float*>(args.buffers.mean)[row] = shift + low;
    static_cast<float*>(args.buffers.rstd)[row] = rstd;
  }
  if (args.formula != Formula::kCenter) {
    shift = 0;
    low = 0;
  }
#pragma unroll 4
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    const int c = (begin + i) * kVector;
    float gamma[kVector];
    float beta[kVector];
    LoadParamVector<P, kVector>(args.param, args.buffers.gamma, c, 1.0f, gamma);
    LoadParamVector<P, kVector>(args.param, args.buffers.beta, c, 0.0f, beta);
    float v[kVector];
    Unpack<T>(stage[i], v);
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      v[j] = ((v[j] - shift) - low) * rstd * gamma[j] + beta[j];
    }
    constexpr int kBytes = kVector * sizeof(Y);
    constexpr int kStep = kBytes < 16 ? kBytes : 16;
    using C = typename Chunk<kStep>::Type;
    alignas(16) Y values[kVector];
#pragma unroll
    for (int j = 0; j < kVector; ++j) values[j] = From<Y>::Of(v[j]);
#pragma unroll
    for (int k = 0; k < kBytes / kStep; ++k) {
      reinterpret_cast<C*>(static_cast<Y*>(args.buffers.y) + base + c)[k] =
          reinterpret_cast<const C*>(values)[k];
    }
  }
  if (args.blocks > 1) SyncCluster();
}

using KernelPointer = void (*)(Arguments);

template <typename T, typename Y>
KernelPointer KernelFor(DType param) {
  return param == DType::kFloat ? StagedKernel<T, Fixed<float>, Y> : StagedKernel<T, Any<float>, Y>;
}

// Null where there is none for these types.
KernelPointer KernelFor(DType x, DType param, DType y) {
  if (x == DType::kFloat) {
    if (y == DType::kFloat) return KernelFor<float, float>(param);
    if (y == DType::kHalf) return KernelFor<float, __half>(param);
    if (y == DType::kBfloat16) return KernelFor<float, __nv_bfloat16>(param);
  } else if (x == DType::kHalf) {
    if (y == DType::kHalf) return KernelFor<__half, __half>(param);
    if (y == DType::kFloat) return KernelFor<__half, float>(param);
  } else if (x == DType::kBfloat16) {
    if (y == DType::kBfloat16) return KernelFor<__nv_bfloat16, __nv_bfloat16>(param);
    if (y == DType::kFloat) return KernelFor<__nv_bfloat16, float>(param);
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
  const KernelPointer kernel = KernelFor(problem.x, problem.param, problem.y);
  const int64_t size = SizeOf(problem.x);
  const int64_t vector = 16 / size;
  if (kernel == nullptr || layout.cols % vector != 0 || !AlignedTo(buffers.x, 16) ||
      !AlignedTo(buffers.y, 16) || !AlignedTo(buffers.gamma, 16) || !AlignedTo(buffers.beta, 16)) {
    return Status();
  }
  // Shares of up to 64 KB: three blocks to a multiprocessor of 227 KB, so that one stores while
  // another loads. Not tuned yet.
  const int64_t bytes = layout.cols * size;
  const int64_t most = std::min<int64_t>(65536, plan.device.shared_bytes - 1024);
  int blocks = 1;
  while (blocks * most < bytes) blocks *= 2;
  if (blocks > (plan.device.capability >= 90 ? kMaxCluster : 1)) return Status();
  if (layout.rows * blocks >= int64_t{1} << 31) return Status();
  Arguments args = {};
  args.param = problem.param;
  args.formula = problem.formula;
  args.epsilon = static_cast<float>(problem.epsilon);
  args.cols = static_cast<int>(layout.cols);
  args.blocks = blocks;
  args.share = static_cast<int>(CeilDiv(layout.cols / vector, blocks));
  args.buffers = buffers;
  const int64_t shared = args.share * int64_t{16};
  const int64_t threads =
      std::min<int64_t>(kMaxThreads, CeilDiv(CeilDiv(shared, kBytesPerThread), 32) * 32);
  if (shared > 40 * 1024) {
    NV_NORMS_RETURN_IF_ERROR(FromCuda(
        cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                             cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)),
        "shared memory of a normalization"));
  }
  *launched = true;
  return LaunchKernel("normalization of staged rows", kernel,
                      static_cast<unsigned>(layout.rows * blocks), static_cast<unsigned>(threads),
                      static_cast<size_t>(shared), blocks, stream, args);
}

}  // namespace cuda
}  // namespace nv_norms
