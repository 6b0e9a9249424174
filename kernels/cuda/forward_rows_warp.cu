// x is [rows, cols] of up to 1024 numbers of float32, 2048 of 16 bits, that lanes of a warp have in
// registers (forward_rows_warp.cuh).
#include "kernels/cuda/forward_rows_warp.cuh"

namespace nv_norms {
namespace cuda {
namespace {

// Whether other kernels are slower. Of a copy's speed on an H200, of 10^8 (4 x 10^6) numbers, in
// tiles or rings and so. bfloat16 16 columns 0.92, 0.70 (1.20, 0.83), 24 0.90, 0.90, 32 0.94, 1.02,
// 40 0.91, 0.81, 64 0.91, 1.01 (0.99, 1.14), 192 0.87, 1.00, 512 0.92, 0.96, 768 0.93, 0.97, 1000
// 0.95, 0.98, 1024 0.95, 0.98 (0.84, 0.85), 1200 0.80, 0.83, 1536 0.92, 0.90 (0.79, 0.73), 1800
// 0.85, 0.92 (0.97, 0.84), 2048 of 32768 rows 0.92, 0.93, of 16384 0.88, 0.87, of 8192 0.90, 0.83.
// In vectors of 4: 20 columns 0.89, 0.62, 36 0.84, 0.86, 100 0.89, 0.89 (0.84, 1.03), 132 0.61,
// 0.80, 500 0.82, 0.95, 1004 0.77, 0.93. float32 8 columns 0.96, 0.86, 12 0.99, 0.99 (1.17, 1.13),
// 32 0.92, 1.01 (0.83, 1.11), 100 0.98, 1.00 (0.92, 1.03), 512 0.99, 0.98 (0.85, 0.89), 1000
// 0.99, 1.00. In vectors of 2: 18 columns 0.99, 0.91, 34 0.89, 0.86 (0.71, 0.97), 102 0.98, 0.91
// (0.94, 0.94), 150 0.92, 0.90 (0.73, 0.95), 350 0.93, 0.98. To bfloat16 12 columns 0.97, 0.88, 16
// 0.81, 1.01, 300 0.83, 0.98, 768 0.95, 1.00.
bool Faster(const ForwardProblem& problem, int vector) {
  const int64_t cols = problem.geometry.rows.cols;
  const int64_t vectors = cols / vector;
  if (problem.x != DType::kFloat) {
    if (vector == 4) return vectors >= 9;
    return vectors >= 3 && vectors != 5 && (cols < 2048 || problem.geometry.rows.rows >= 32768);
  }
  if (problem.y != DType::kFloat) return vectors >= 4;
  if (vector == 4) return vectors >= 3;
  return cols >= 34 && (cols >= 144 || problem.geometry.rows.rows * cols < (int64_t{1} << 24));
}

bool Aligned(const ForwardProblem& problem, const ForwardBuffers& buffers, int vector) {
  return problem.geometry.rows.cols % vector == 0 && VectorAligned(buffers.x, problem.x, vector) &&
         VectorAligned(buffers.y, problem.y, vector) &&
         VectorAligned(buffers.gamma, problem.param, vector) &&
         VectorAligned(buffers.beta, problem.param, vector);
}

WarpRows Choose(const ForwardPlan& plan, const ForwardBuffers& buffers) {
  const ForwardProblem& problem = plan.problem;
  const bool halves = problem.x != DType::kFloat;
  if (problem.in_double() || !problem.geometry.rows.by_column() ||
      (halves && problem.y != problem.x) ||
      (problem.param != DType::kFloat && problem.param != problem.y)) {
    return {};
  }
  const int full = halves ? 8 : 4;
  const int vector = Aligned(problem, buffers, full) ? full : full / 2;
  if (!Aligned(problem, buffers, vector) || !Faster(problem, vector)) return {};
  return halves                       ? ChooseWarpRows16(problem, vector, plan.device)
         : problem.y == DType::kFloat ? ChooseWarpRows32(problem, vector, plan.device)
                                      : ChooseWarpRowsMixed(problem, vector, plan.device);
}

}  // namespace

Status LaunchForwardRowsWarp(const ForwardPlan& plan, const ForwardBuffers& buffers, void* stream,
                             bool* launched) {
  const WarpRows choice = Choose(plan, buffers);
  const ForwardProblem& problem = plan.problem;
  const int64_t blocks = CeilDiv(problem.geometry.rows.rows, int64_t{choice.rows});
  *launched = choice.kernel != nullptr && blocks <= INT32_MAX;
  if (!*launched) return Status();
  WarpRowsArguments args = {};
  args.formula = problem.formula;
  args.epsilon = static_cast<float>(problem.epsilon);
  args.rows = problem.geometry.rows.rows;
  args.cols = static_cast<int>(problem.geometry.rows.cols);
  args.buffers = buffers;
  return LaunchKernel("normalization of rows by warps", choice.kernel,
                      static_cast<unsigned>(blocks), 32, 0, 1, stream, args);
}

}  // namespace cuda
}  // namespace nv_norms
