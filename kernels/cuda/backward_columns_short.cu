// Gradients of forward_columns_short.cu's norms: x and dy are read once, and dgamma and dbeta are
// summed up on the way to dx. See columns_short.cuh.
#include "kernels/cuda/columns_partials.cuh"
#include "kernels/cuda/columns_short.cuh"
#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/resident.cuh"

namespace nv_norms {
namespace cuda {
namespace {

constexpr int kMostBlocks = 8;  // to a multiprocessor
constexpr int kWarps = kShortThreads / 32;

// dgamma, dbeta: [blocks, rows], or null.
template <typename X, typename D, typename Y, int VEC, int ROWS, int UNITS>
__global__ void __launch_bounds__(kShortThreads)
    BackwardShortKernel(const __grid_constant__ ShortShape shape,
                        const __grid_constant__ BackwardProblem problem,
                        const BackwardBuffers buffers, float* dgamma, float* dbeta) {
  __shared__ float gammas[ROWS];
  __shared__ float sums_of_warps[kWarps][2 * ROWS];
  if (threadIdx.x < shape.rows) {
    gammas[threadIdx.x] = ParamOr<float>(problem.param, buffers.gamma, threadIdx.x, 1);
  }
  __syncthreads();
  const float inverse = 1.0f / static_cast<float>(shape.rows);
  const int64_t step = static_cast<int64_t>(shape.width.value) * VEC;
  float sums[2 * ROWS] = {};  // of dgamma, and of dbeta
#pragma unroll 1
  for (unsigned begin = blockIdx.x * (UNITS * kShortThreads) + threadIdx.x; begin < shape.units;
       begin += gridDim.x * (UNITS * kShortThreads)) {
    Bits<float, VEC> x_bits[UNITS][ROWS];
    Bits<float, VEC> dy_bits[UNITS][ROWS];
    float mean[UNITS][VEC] = {};
    float rstd[UNITS][VEC];
#pragma unroll
    for (int u = 0; u < UNITS; ++u) {
      const unsigned unit = begin + u * kShortThreads;
      if (unit >= shape.units) break;
      const ShortPlace place(shape, unit, VEC);
      LoadShort<X>(shape, buffers.x, place.first, x_bits[u]);
      LoadShort<D>(shape, buffers.dy, place.first, dy_bits[u]);
      if (buffers.mean != nullptr) {
        LoadVector<float, VEC, Fixed<float>>(DType::kFloat, buffers.mean, place.stat, mean[u]);
      }
      LoadVector<float, VEC, Fixed<float>>(DType::kFloat, buffers.rstd, place.stat, rstd[u]);
    }
#pragma unroll
    for (int u = 0; u < UNITS; ++u) {
      const unsigned unit = begin + u * kShortThreads;
      if (unit >= shape.units) break;
      const ShortPlace place(shape, unit, VEC);
      // e = x - mean and d = dy of row r.
      const auto take = [&](int r, float (&e)[VEC], float (&d)[VEC]) {
        ConvertBits<X>(x_bits[u][r], e);
        ConvertBits<D>(dy_bits[u][r], d);
#pragma unroll
        for (int v = 0; v < VEC; ++v) e[v] -= mean[u][v];
      };
      float e_sum[VEC] = {};
      float w_sum[VEC] = {};
      float we_sum[VEC] = {};
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        if (r >= shape.rows) break;
        float e[VEC];
        float w[VEC];
        take(r, e, w);
        const float gamma = gammas[r];
#pragma unroll
        for (int v = 0; v < VEC; ++v) {
          w[v] *= gamma;
          e_sum[v] += e[v];
          w_sum[v] += w[v];
          we_sum[v] += w[v] * e[v];
        }
      }
      GradientLine line[VEC];
#pragma unroll
      for (int v = 0; v < VEC; ++v) {
        line[v] =
            LineOf(problem.formula, mean[u][v], rstd[u][v], e_sum[v], w_sum[v], we_sum[v], inverse);
      }
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        if (r >= shape.rows) break;
        float e[VEC];
        float d[VEC];
        take(r, e, d);
        const float gamma = gammas[r];
#pragma unroll
        for (int v = 0; v < VEC; ++v) {
          sums[r] += d[v] * (e[v] * rstd[u][v] + line[v].xhat_offset);
          sums[ROWS + r] += d[v];
          d[v] = d[v] * (gamma * rstd[u][v]) + (line[v].offset - e[v] * line[v].slope);
        }
        if (buffers.dx != nullptr) {
          StoreStrip<Y>(problem.dx, buffers.dx, place.first + r * step, d, shape.keep);
        }
      }
    }
  }
  LetNextKernelStart();
  if (dgamma == nullptr && dbeta == nullptr) return;
  WarpSum(sums, 32);
  if (threadIdx.x % 32 == 0) {
#pragma unroll
    for (int i = 0; i < 2 * ROWS; ++i) sums_of_warps[threadIdx.x / 32][i] = sums[i];
  }
  __syncthreads();
  const int row = threadIdx.x % ROWS;
  float* const to = threadIdx.x < ROWS ? dgamma : dbeta;
  if (threadIdx.x >= 2 * ROWS || row >= shape.rows || to == nullptr) return;
  float sum = 0;
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) sum += sums_of_warps[warp][threadIdx.x];
  to[static_cast<int64_t>(blockIdx.x) * shape.rows + row] = sum;
}

int64_t BlocksAtMost(const BackwardPlan& plan) {
  const ColumnLayout& layout = plan.problem.geometry.columns;
  return std::min<int64_t>(int64_t{kMostBlocks} * plan.device.multiprocessors,
                           CeilDiv(layout.n * layout.channels(), kShortThreads));
}

}  // namespace

bool BackwardShortFits(const BackwardProblem& problem) {
  return IsShortAxis(problem.geometry) && HasGradientKernel(problem);
}

int64_t BackwardShortBytes(const BackwardPlan& plan) {
  return plan.want_params ? RowPartials::Bytes(plan, BlocksAtMost(plan)) : 0;
}

Status LaunchBackwardColumnsShort(const BackwardPlan& plan, const BackwardBuffers& buffers,
                                  void* workspace, void* stream, bool* launched) {
  const BackwardProblem& problem = plan.problem;
  *launched = BackwardShortFits(problem);
  if (!*launched) return Status();
  const int vector = ShortVector(problem.geometry.columns.s);
  const bool vectors = VectorsSuitShortAxis(problem.geometry.columns, plan.device) &&
                       VectorAligned(buffers.x, problem.x, vector) &&
                       VectorAligned(buffers.dy, problem.dy, vector) &&
                       VectorAligned(buffers.dx, problem.dx, vector) &&
                       AlignedTo(buffers.mean, 16) && AlignedTo(buffers.rstd, 16);
  const RowPartials partials = RowPartials::In(workspace, plan, buffers, BlocksAtMost(plan));
  int64_t blocks = 0;
  const Status status = BackwardKernelOf(problem, [&](auto* x, auto* dy, auto* dx) {
    using X = std::remove_pointer_t<decltype(x)>;
    using D = std::remove_pointer_t<decltype(dy)>;
    using Y = std::remove_pointer_t<decltype(dx)>;
    return WithShortAxis(
        vectors, problem.geometry.columns.s, [&](auto columns, auto rows, auto units) {
          const auto kernel = BackwardShortKernel<X, D, Y, decltype(columns)::value,
                                                  decltype(rows)::value, decltype(units)::value>;
          const ShortShape shape = ShortShape::Of(problem.geometry, columns, problem.dx);
          const int resident =
              ResidentBlocks(reinterpret_cast<const void*>(kernel), kShortThreads, 0);
          blocks = std::min({CeilDiv(shape.units, units * int64_t{kShortThreads}),
                             int64_t{std::max(1, resident)} * plan.device.multiprocessors,
                             BlocksAtMost(plan)});
          return LaunchKernel("normalization gradient over a short axis", kernel,
                              static_cast<unsigned>(blocks), kShortThreads, 0, 1, stream, shape,
                              problem, buffers, partials.dgamma, partials.dbeta);
        });
  });
  if (!status.ok() || !partials.wanted()) return status;
  return LaunchFinish(problem, problem.geometry.columns.s, buffers, partials.dgamma, partials.dbeta,
                      blocks, plan.device, stream);
}

}  // namespace cuda
}  // namespace nv_norms
