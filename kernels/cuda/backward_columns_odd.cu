// Gradients of forward_columns_odd.cu's norms: x and dy are read once, and dgamma and dbeta are
// summed up on the way to dx. See columns_odd.cuh.
#include "kernels/cuda/columns_odd.cuh"
#include "kernels/cuda/columns_partials.cuh"
#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/resident.cuh"

namespace nv_norms {
namespace cuda {
namespace {

constexpr int kMostBlocks = 8;  // to a multiprocessor

// dgamma, dbeta: [blocks, rows], or null.
template <typename X, typename D, typename Y, int ROWS>
__global__ void __launch_bounds__(kOddThreads)
    BackwardOddKernel(const __grid_constant__ OddShape shape,
                      const __grid_constant__ BackwardProblem problem,
                      const BackwardBuffers buffers, float* dgamma, float* dbeta) {
  __shared__ float gammas[kOddParts * ROWS];
  __shared__ float entries[3][kOddEntries];  // sums of e, of w = dy * gamma, and of w * e
  __shared__ float columns[3][32];           // of all parts
  const OddPlace place(shape);
  const int64_t width = shape.width.value;
  const int64_t step = shape.parts * width;
  const float inverse = 1.0f / static_cast<float>(shape.rows);
  for (int r = threadIdx.x; r < shape.rows; r += shape.threads()) {
    gammas[r] = ParamOr<float>(problem.param, buffers.gamma, r, 1);
  }
  __syncthreads();
  float dgammas[ROWS] = {};
  float dbetas[ROWS] = {};
#pragma unroll 1
  for (unsigned begin = blockIdx.x * shape.lanes; begin < shape.columns;
       begin += gridDim.x * shape.lanes) {
    const unsigned column = begin + place.lane;
    const int count = column < shape.columns ? place.count : 0;
    const int64_t first =
        column + (shape.width.Quotient(column) * int64_t{shape.rows - 1} + place.part) * width;
    X x[ROWS];
    D dy[ROWS];
    LoadOdd(buffers.x, first, step, count, x);
    LoadOdd(buffers.dy, first, step, count, dy);
    float mean = 0;
    float rstd = 0;
    if (count != 0) {
      if (buffers.mean != nullptr) mean = static_cast<const float*>(buffers.mean)[column];
      rstd = static_cast<const float*>(buffers.rstd)[column];
    }
    float sums[3] = {0, 0, 0};
#pragma unroll
    for (int j = 0; j < ROWS; ++j) {
      if (j >= count) break;
      const float e = To<float>::Of(x[j]) - mean;
      const float w = To<float>::Of(dy[j]) * gammas[place.part + j * shape.parts];
      sums[0] += e;
      sums[1] += w;
      sums[2] += w * e;
    }
#pragma unroll
    for (int k = 0; k < 3; ++k) entries[k][OddEntry(shape, place.part, place.lane)] = sums[k];
    __syncthreads();
    {
      const int at = OddEntry(shape, place.entry_part, place.entry_lane);
      float all[3] = {entries[0][at], entries[1][at], entries[2][at]};
      WarpSum(all, shape.parts);
      if (place.entry_part < 3) {
        columns[place.entry_part][place.entry_lane] = place.entry_part == 0   ? all[0]
                                                      : place.entry_part == 1 ? all[1]
                                                                              : all[2];
      }
    }
    __syncthreads();
    int64_t to = first;
    const GradientLine line = LineOf(problem.formula, mean, rstd, columns[0][place.lane],
                                     columns[1][place.lane], columns[2][place.lane], inverse);
#pragma unroll
    for (int j = 0; j < ROWS; ++j) {
      if (j >= count) break;
      const float e = To<float>::Of(x[j]) - mean;
      const float d = To<float>::Of(dy[j]);
      dgammas[j] += d * (e * rstd + line.xhat_offset);
      dbetas[j] += d;
      const float gamma = gammas[place.part + j * shape.parts];
      const float dx[1] = {d * (gamma * rstd) + (line.offset - e * line.slope)};
      if (buffers.dx != nullptr) StoreStrip<Y>(problem.dx, buffers.dx, to, dx, shape.keep);
      to += step;
    }
  }
  LetNextKernelStart();
  if (dgamma == nullptr && dbeta == nullptr) return;
#pragma unroll
  for (int j = 0; j < ROWS; ++j) {
    float sums[2] = {dgammas[j], dbetas[j]};
    WarpSum(sums, shape.lanes);
    if (place.lane != 0 || j >= place.count) continue;
    const int64_t to = static_cast<int64_t>(blockIdx.x) * shape.rows + place.part + j * shape.parts;
    if (dgamma != nullptr) dgamma[to] = sums[0];
    if (dbeta != nullptr) dbeta[to] = sums[1];
  }
}

bool Fits(const BackwardProblem& problem) {
  return IsOddAxis(problem.geometry) && HasGradientKernel(problem);
}

int64_t BlocksAtMost(const BackwardPlan& plan) {
  const ColumnLayout& layout = plan.problem.geometry.columns;
  return std::min<int64_t>(int64_t{kMostBlocks} * plan.device.multiprocessors,
                           layout.n * layout.channels());
}

}  // namespace

void PlanBackwardColumnsOdd(BackwardPlan* plan) {
  if (!Fits(plan->problem) || !plan->want_params) return;
  plan->workspace = std::max(plan->workspace, RowPartials::Bytes(*plan, BlocksAtMost(*plan)));
}

Status LaunchBackwardColumnsOdd(const BackwardPlan& plan, const BackwardBuffers& buffers,
                                void* workspace, void* stream, bool* launched) {
  const BackwardProblem& problem = plan.problem;
  *launched = Fits(problem);
  if (!*launched) return Status();
  const RowPartials partials = RowPartials::In(workspace, plan, buffers, BlocksAtMost(plan));
  int64_t blocks = 0;
  const Status status = BackwardKernelOf(problem, [&](auto* x, auto* dy, auto* dx) {
    using X = std::remove_pointer_t<decltype(x)>;
    using D = std::remove_pointer_t<decltype(dy)>;
    using Y = std::remove_pointer_t<decltype(dx)>;
    return WithOddAxis(problem.geometry.columns.s, [&](auto rows) {
      const auto kernel = BackwardOddKernel<X, D, Y, decltype(rows)::value>;
      const OddShape shape = OddShape::Of(problem.geometry, rows, problem.dx);
      const int resident =
          ResidentBlocks(reinterpret_cast<const void*>(kernel), shape.threads(), 0);
      blocks = std::min({CeilDiv(shape.columns, shape.lanes),
                         int64_t{std::max(1, resident)} * plan.device.multiprocessors,
                         BlocksAtMost(plan)});
      return LaunchKernel("normalization gradient over an odd axis", kernel,
                          static_cast<unsigned>(blocks), static_cast<unsigned>(shape.threads()), 0,
                          1, stream, shape, problem, buffers, partials.dgamma, partials.dbeta);
    });
  });
  if (!status.ok() || !partials.wanted()) return status;
  return LaunchFinish(problem, problem.geometry.columns.s, buffers, partials.dgamma, partials.dbeta,
                      blocks, plan.device, stream);
}

}  // namespace cuda
}  // namespace nv_norms
