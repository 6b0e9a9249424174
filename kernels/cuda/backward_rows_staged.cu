// x is [rows, cols], a statistic a row. A block (or a cluster) goes through rows; while it works on
// one, x and dy of the next are on their way to shared memory, and its threads keep their columns'
// sums for dgamma and dbeta. For aligned rows of one type of more than a warp's registers hold.
#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/staged.cuh"

namespace nv_norms {
namespace cuda {
namespace {

struct Arguments {
  DType param;
  Formula formula;
  int64_t rows;
  int cols;
  int blocks;  // to a row
  int share;   // vectors of a row to a block
  BackwardBuffers buffers;
  float* dgamma;  // partial sums [partials, cols], where wanted
  float* dbeta;
};

template <typename T, typename P>
__global__ void __launch_bounds__(kStagedThreads)
    StagedKernel(const __grid_constant__ Arguments args) {
  extern __shared__ uint4 stage[];  // [2][x, dy][share]
  __shared__ BlockStorage<3, float> storage[2];
  constexpr int kVector = kVectorOf<T>;
  constexpr int kItems = kStagedColumns / kVector;
  ArriveAtCluster(args.blocks);
  const int begin = BlockRankInCluster() * args.share;
  const int count = min(args.share, args.cols / kVector - begin);
  const int64_t cluster = blockIdx.x / args.blocks;
  const int64_t clusters = gridDim.x / args.blocks;
  const int slot = threadIdx.x;
  const auto copy = [&](int64_t row, int parity) {
    if (row < args.rows) {
      const int64_t base = row * args.cols + static_cast<int64_t>(begin) * kVector;
      const uint4* x = reinterpret_cast<const uint4*>(static_cast<const T*>(args.buffers.x) + base);
      const uint4* dy =
          reinterpret_cast<const uint4*>(static_cast<const T*>(args.buffers.dy) + base);
      uint4* to = stage + parity * 2 * args.share;
#pragma unroll
      for (int k = 0; k < kItems; ++k) {
        const int i = k * blockDim.x + slot;
        if (i < count) {
          CopyAsync(&to[i], x + i);
          CopyAsync(&to[args.share + i], dy + i);
        }
      }
    }
    CommitCopies();
  };
  const float* means = static_cast<const float*>(args.buffers.mean);
  const float* rstds = static_cast<const float*>(args.buffers.rstd);
  float dgamma[kItems][kVector] = {};
  float dbeta[kItems][kVector] = {};
  int parity = 0;
  copy(cluster, parity);
  float next_mean = cluster < args.rows && means != nullptr ? means[cluster] : 0.0f;
  float next_rstd = cluster < args.rows ? rstds[cluster] : 0.0f;
  WaitForCluster(args.blocks);
  for (int64_t row = cluster; row < args.rows; row += clusters) {
    const float mean = next_mean;
    const float rstd = next_rstd;
    const int64_t next = row + clusters;
    copy(next, parity ^ 1);
    if (next < args.rows) {
      if (means != nullptr) next_mean = means[next];
      next_rstd = rstds[next];
    }
    WaitForCopies<1>();
    const uint4* x = stage + parity * 2 * args.share;
    const uint4* dy = x + args.share;
    float sums[3] = {0, 0, 0};
#pragma unroll
    for (int k = 0; k < kItems; ++k) {
      const int i = k * blockDim.x + slot;
      if (i < count) {
        float e[kVector];
        float d[kVector];
        float gamma[kVector];
        LoadParamVector<P, kVector>(args.param, args.buffers.gamma, (begin + i) * kVector, 1.0f,
                                    gamma);
        Unpack<T>(x[i], e);
        Unpack<T>(dy[i], d);
#pragma unroll
        for (int v = 0; v < kVector; ++v) {
          e[v] -= mean;
          const float w = d[v] * gamma[v];
          sums[0] += e[v];
          sums[1] += w;
          sums[2] += w * e[v];
        }
      }
    }
    // Two storages by turns: a thread may still read one when another is a row ahead.
    ClusterSum(sums, &storage[parity], args.blocks);
    const GradientTerms<float> t = TermsOf<float, float>(args.formula, mean, rstd, sums[0], sums[1],
                                                         sums[2], static_cast<float>(args.cols));
    const float shift = args.formula == Formula::kScaleOnly ? -mean : t.low;
#pragma unroll
    for (int k = 0; k < kItems; ++k) {
      const int i = k * blockDim.x + slot;
      if (i < count) {
        float e[kVector];
        float d[kVector];
        float gamma[kVector];
        LoadParamVector<P, kVector>(args.param, args.buffers.gamma, (begin + i) * kVector, 1.0f,
                                    gamma);
        Unpack<T>(x[i], e);
        Unpack<T>(dy[i], d);
        alignas(16) T dx[kVector];
#pragma unroll
        for (int v = 0; v < kVector; ++v) {
          e[v] -= mean;
          dx[v] = From<T>::Of(t.rstd * (d[v] * gamma[v] - t.w_mean - (e[v] - t.low) * t.slope));
          dgamma[k][v] += d[v] * ((e[v] - shift) * t.rstd);
          dbeta[k][v] += d[v];
        }
        if (args.buffers.dx != nullptr) {
          T* to = static_cast<T*>(args.buffers.dx) + row * args.cols;
          reinterpret_cast<uint4*>(to)[begin + i] = *reinterpret_cast<const uint4*>(dx);
        }
      }
    }
    parity ^= 1;
  }
  WaitForCopies<0>();
  if (args.blocks > 1) SyncCluster();
#pragma unroll
  for (int k = 0; k < kItems; ++k) {
    const int i = k * blockDim.x + slot;
    if (i < count) {
#pragma unroll
      for (int v = 0; v < kVector; v += 4) {
        const int64_t at = cluster * args.cols + (begin + i) * kVector + v;
        if (args.dgamma != nullptr) {
          *reinterpret_cast<float4*>(args.dgamma + at) =
              make_float4(dgamma[k][v], dgamma[k][v + 1], dgamma[k][v + 2], dgamma[k][v + 3]);
        }
        if (args.dbeta != nullptr) {
          *reinterpret_cast<float4*>(args.dbeta + at) =
              make_float4(dbeta[k][v], dbeta[k][v + 1], dbeta[k][v + 2], dbeta[k][v + 3]);
        }
      }
    }
  }
}

using KernelPointer = void (*)(Arguments);

template <typename T>
KernelPointer KernelFor(DType param) {
  return param == DType::kFloat ? StagedKernel<T, Fixed<float>> : StagedKernel<T, Any<float>>;
}

}  // namespace

// The launch may use fewer partials than planned, never more.
Status LaunchBackwardRowsStaged(const BackwardPlan& plan, const BackwardBuffers& buffers,
                                float* dgamma, float* dbeta, void* stream, int64_t* partials) {
  const BackwardProblem& problem = plan.problem;
  const RowLayout& layout = problem.geometry.rows;
  *partials = 0;
  const int64_t vector = 16 / SizeOf(problem.x);
  if (problem.in_double() || !RowParams::Of(layout).by_column || problem.dy != problem.x ||
      problem.dx != problem.x || layout.cols % vector != 0 || !AlignedTo(buffers.x, 16) ||
      !AlignedTo(buffers.dy, 16) || !AlignedTo(buffers.dx, 16) || !AlignedTo(buffers.gamma, 16)) {
    return Status();
  }
  const int blocks = plan.tile.blocks;
  Arguments args = {};
  args.param = problem.param;
  args.formula = problem.formula;
  args.rows = layout.rows;
  args.cols = static_cast<int>(layout.cols);
  args.blocks = blocks;
  args.share = static_cast<int>(CeilDiv(layout.cols / vector, blocks));
  args.buffers = buffers;
  args.dgamma = dgamma;
  args.dbeta = dbeta;
  const int64_t shared = args.share * int64_t{16} * 4;
  const int64_t items = kStagedColumns / vector;
  const int64_t threads = std::max<int64_t>(64, CeilDiv(CeilDiv(args.share, items), 32) * 32);
  if (shared > plan.device.shared_bytes - 2048 || threads > kStagedThreads) return Status();
  const KernelPointer kernel = problem.x == DType::kFloat ? KernelFor<float>(problem.param)
                               : problem.x == DType::kHalf
                                   ? KernelFor<__half>(problem.param)
                                   : KernelFor<__nv_bfloat16>(problem.param);
  if (shared > 40 * 1024) {
    NV_NORMS_RETURN_IF_ERROR(FromCuda(
        cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                             cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)),
        "shared memory of a normalization gradient"));
  }
  *partials = plan.partials;
  return LaunchKernel("normalization gradient of staged rows", kernel,
                      static_cast<unsigned>(plan.partials * blocks), static_cast<unsigned>(threads),
                      static_cast<size_t>(shared), blocks, stream, args);
}

}  // namespace cuda
}  // namespace nv_norms
