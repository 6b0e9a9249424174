// x is [rows, cols], a statistic a row. A block (or a cluster) goes through rows; while it works on
// one, x and dy of the next are on their way to shared memory, and its threads keep their columns'
// sums for dgamma and dbeta. For aligned rows of one type of more than a warp's registers hold.
#include <map>
#include <mutex>
#include <tuple>

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

// Rows in shared memory, the one at work included: some 48 KB a multiprocessor must be under way to
// keep an H200's memory busy.
template <typename T>
constexpr int kStages = sizeof(T) == 4 ? 2 : 3;

template <typename T, typename P>
__global__ void __launch_bounds__(kStagedThreads)
    StagedKernel(const __grid_constant__ Arguments args) {
  extern __shared__ uint4 stage[];  // [kStages][x, dy][share]
  __shared__ BlockStorage<3, float> storage[2];
  constexpr int kVector = kVectorOf<T>;
  constexpr int kItems = kStagedColumns / kVector;
  ArriveAtCluster(args.blocks);
  const int begin = BlockRankInCluster() * args.share;
  const int count = min(args.share, args.cols / kVector - begin);
  const int64_t cluster = blockIdx.x / args.blocks;
  const int64_t clusters = gridDim.x / args.blocks;
  const int slot = threadIdx.x;
  const auto copy = [&](int64_t row, int at) {
    if (row < args.rows) {
      const int64_t base = row * args.cols + static_cast<int64_t>(begin) * kVector;
      const uint4* x = reinterpret_cast<const uint4*>(static_cast<const T*>(args.buffers.x) + base);
      const uint4* dy =
          reinterpret_cast<const uint4*>(static_cast<const T*>(args.buffers.dy) + base);
      uint4* to = stage + at * 2 * args.share;
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
  float gamma[kItems][kVector];
#pragma unroll
  for (int k = 0; k < kItems; ++k) {
    const int i = k * blockDim.x + slot;
    if (i < count) {
      LoadParamVector<P, kVector>(args.param, args.buffers.gamma, (begin + i) * kVector, 1.0f,
                                  gamma[k]);
    }
  }
#pragma unroll
  for (int k = 0; k < kStages<T> - 1; ++k) copy(cluster + k * clusters, k);
  int at = 0;
  int parity = 0;
  float next_mean = cluster < args.rows && means != nullptr ? means[cluster] : 0.0f;
  float next_rstd = cluster < args.rows ? rstds[cluster] : 0.0f;
  WaitForCluster(args.blocks);
  for (int64_t row = cluster; row < args.rows; row += clusters) {
    const float mean = next_mean;
    const float rstd = next_rstd;
    const int64_t next = row + clusters;
    copy(row + (kStages<T> - 1) * clusters, at == 0 ? kStages<T> - 1 : at - 1);
    if (next < args.rows) {
      if (means != nullptr) next_mean = means[next];
      next_rstd = rstds[next];
    }
    WaitForCopies<kStages<T> - 1>();
    const uint4* x = stage + at * 2 * args.share;
    const uint4* dy = x + args.share;
    float sums[3] = {0, 0, 0};
#pragma unroll
    for (int k = 0; k < kItems; ++k) {
      const int i = k * blockDim.x + slot;
      if (i < count) {
        float e[kVector];
        float d[kVector];
        Unpack<T>(x[i], e);
        Unpack<T>(dy[i], d);
#pragma unroll
        for (int v = 0; v < kVector; ++v) {
          e[v] -= mean;
          const float w = d[v] * gamma[k][v];
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
        Unpack<T>(x[i], e);
        Unpack<T>(dy[i], d);
        float dx[kVector];
#pragma unroll
        for (int v = 0; v < kVector; ++v) {
          e[v] -= mean;
          dx[v] = t.rstd * (d[v] * gamma[k][v] - t.w_mean - (e[v] - t.low) * t.slope);
          dgamma[k][v] += d[v] * ((e[v] - shift) * t.rstd);
          dbeta[k][v] += d[v];
        }
        if (args.buffers.dx != nullptr) {
          StoreAs(static_cast<T*>(args.buffers.dx) + row * args.cols + (begin + i) * kVector, dx);
        }
      }
    }
    at = at == kStages<T> - 1 ? 0 : at + 1;
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
        const int64_t to = cluster * args.cols + (begin + i) * kVector + v;
        if (args.dgamma != nullptr) {
          *reinterpret_cast<float4*>(args.dgamma + to) =
              make_float4(dgamma[k][v], dgamma[k][v + 1], dgamma[k][v + 2], dgamma[k][v + 3]);
        }
        if (args.dbeta != nullptr) {
          *reinterpret_cast<float4*>(args.dbeta + to) =
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

KernelPointer KernelFor(const BackwardProblem& problem) {
  return problem.x == DType::kFloat  ? KernelFor<float>(problem.param)
         : problem.x == DType::kHalf ? KernelFor<__half>(problem.param)
                                     : KernelFor<__nv_bfloat16>(problem.param);
}

struct Shape {
  int64_t share;    // vectors of a row to a block
  int64_t shared;   // bytes
  int64_t threads;  // to a block
};

Shape ShapeOf(const BackwardPlan& plan) {
  const int64_t vector = 16 / SizeOf(plan.problem.x);
  Shape out;
  out.share = CeilDiv(plan.problem.geometry.rows.cols / vector, plan.tile.blocks);
  out.shared = out.share * 16 * 2 * (vector == 4 ? kStages<float> : kStages<__half>);
  out.threads =
      std::max<int64_t>(64, CeilDiv(CeilDiv(out.share, kStagedColumns / vector), 32) * 32);
  return out;
}

Status AllowShared(KernelPointer kernel, int64_t shared) {
  if (shared <= 40 * 1024) return Status();
  return FromCuda(
      cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                           cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)),
      "shared memory of a normalization gradient");
}

}  // namespace

int64_t ClustersThatFit(const BackwardPlan& plan) {
  static std::mutex mutex;
  static std::map<std::tuple<int, KernelPointer, int, int64_t, int64_t>, int64_t> known;
  if (plan.problem.in_double()) return 0;
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return 0;
  const KernelPointer kernel = KernelFor(plan.problem);
  const Shape shape = ShapeOf(plan);
  std::lock_guard<std::mutex> lock(mutex);
  const auto key = std::make_tuple(device, kernel, plan.tile.blocks, shape.shared, shape.threads);
  const auto found = known.find(key);
  if (found != known.end()) return found->second;
  cudaLaunchAttribute attribute[1];
  attribute[0].id = cudaLaunchAttributeClusterDimension;
  attribute[0].val.clusterDim.x = plan.tile.blocks;
  attribute[0].val.clusterDim.y = 1;
  attribute[0].val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(plan.tile.blocks * plan.device.multiprocessors);
  config.blockDim = dim3(static_cast<unsigned>(shape.threads));
  config.dynamicSmemBytes = static_cast<size_t>(shape.shared);
  config.attrs = attribute;
  config.numAttrs = 1;
  int fit = 0;
  if (!AllowShared(kernel, shape.shared).ok() ||
      cudaOccupancyMaxActiveClusters(&fit, kernel, &config) != cudaSuccess) {
    cudaGetLastError();  // not an error of the launches to come
    fit = 0;
  }
  return known[key] = fit;
}

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
  args.share = static_cast<int>(ShapeOf(plan).share);
  args.buffers = buffers;
  args.dgamma = dgamma;
  args.dbeta = dbeta;
  const Shape shape = ShapeOf(plan);
  if (shape.shared > plan.device.shared_bytes - 2048 || shape.threads > kStagedThreads) {
    return Status();
  }
  const KernelPointer kernel = KernelFor(problem);
  NV_NORMS_RETURN_IF_ERROR(AllowShared(kernel, shape.shared));
  *partials = plan.partials;
  return LaunchKernel("normalization gradient of staged rows", kernel,
                      static_cast<unsigned>(plan.partials * blocks),
                      static_cast<unsigned>(shape.threads), static_cast<size_t>(shape.shared),
                      blocks, stream, args);
}

}  // namespace cuda
}  // namespace nv_norms
