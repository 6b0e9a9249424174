// The gradient of x, [rows, cols] of up to 1280 numbers, that lanes of a warp have in registers
// (backward_rows_warp.cuh).
#include "kernels/cuda/backward_rows_warp.cuh"

namespace nv_norms {
namespace cuda {
namespace {

// Numbers to a vector; 0 where rows are no whole vectors, or other kernels are faster. Of a copy's
// speed on an H200, of 64 x 10^6 (10^6) numbers, in tiles or rings and so. bfloat16 24 columns
// 0.96, 0.84, 32 0.88, 0.89 (0.85, 1.17), 100 0.73, 0.87, 300 0.70, 0.92, 512 0.81, 0.95
// (0.82, 1.16), 768 0.92, 0.98, 1000 0.82, 0.88, 1024 0.89, 0.88 (0.43, 0.67), 1280 0.89, 0.93.
// float32 12 columns 0.97, 0.82, 16 0.89, 0.90 (0.97, 1.11), 100 0.91, 0.96, 512 0.88, 0.98, 768
// 0.93, 0.99, 1024 0.93, 0.95 (0.52, 0.72). float32 beside bfloat16 16 columns 0.88, 0.83, 32 0.86,
// 0.96, 512 0.87, 0.96, 1024 0.91, 0.94. Of 65536 rows of bfloat16 in registers, 512 columns: two
// rows at once in four warps, three blocks to a multiprocessor, 0.93, one row 0.86, eight warps
// alone 0.91; 768: two rows, two blocks 0.93; 1000: gamma in shared memory, eight warps alone 0.93,
// all in registers 0.58 (spilled). float32 512: one row, twelve warps alone 0.98, two rows in eight
// 0.97; 768 0.64, gamma in shared memory 0.98.
int VectorOf(const BackwardProblem& problem) {
  const int64_t cols = problem.geometry.rows.cols;
  if (problem.x == DType::kFloat) {
    return cols % 4 == 0 && cols >= (problem.dy == problem.x ? 16 : 32) ? 4 : 0;
  }
  return cols % 8 == 0 && cols >= 32 ? 8 : cols % 4 == 0 && cols >= 36 ? 4 : 0;
}

// gamma, where it is there, and in the end the sums of each warp.
int64_t SharedOf(const WarpGradient& choice, int64_t cols) {
  return int64_t{choice.threads / 32} * 2 * cols * 4;
}

WarpGradient Choose(const BackwardPlan& plan) {
  const BackwardProblem& problem = plan.problem;
  if (problem.in_double() || !problem.geometry.rows.by_column() || problem.dx != problem.x ||
      !(problem.dy == problem.x || MixedGradient(problem))) {
    return {};
  }
  const int vector = VectorOf(problem);
  if (vector == 0) return {};
  const WarpGradient out = problem.x == DType::kFloat ? ChooseWarpGradient32(problem)
                                                      : ChooseWarpGradient16(problem, vector);
  const int64_t cols = problem.geometry.rows.cols;
  return SharedOf(out, cols) <= plan.device.shared_bytes ? out : WarpGradient();
}

bool Aligned(const BackwardProblem& problem, const BackwardBuffers& buffers) {
  const int vector = VectorOf(problem);
  return VectorAligned(buffers.x, problem.x, vector) &&
         VectorAligned(buffers.dy, problem.dy, vector) &&
         VectorAligned(buffers.dx, problem.dx, vector) &&
         VectorAligned(buffers.gamma, problem.param, vector);
}

}  // namespace

int64_t WarpPartials(const BackwardPlan& plan) {
  const WarpGradient choice = Choose(plan);
  if (choice.kernel == nullptr) return 0;
  return std::min(CeilDiv(plan.problem.geometry.rows.rows, choice.rows),
                  int64_t{choice.resident} * plan.device.multiprocessors);
}

Status LaunchBackwardRowsWarp(const BackwardPlan& plan, const BackwardBuffers& buffers,
                              int64_t partials, float* dgamma, float* dbeta, void* stream,
                              bool* launched) {
  const BackwardProblem& problem = plan.problem;
  const RowLayout& layout = problem.geometry.rows;
  *launched = Aligned(problem, buffers);
  if (!*launched) return Status();
  const WarpGradient choice = Choose(plan);
  WarpGradientArguments args = {};
  args.param = problem.param;
  args.formula = problem.formula;
  args.rows = layout.rows;
  args.cols = static_cast<int>(layout.cols);
  args.buffers = buffers;
  args.dgamma = dgamma;
  args.dbeta = dbeta;
  const char* name = "normalization gradient of rows by warps";
  const int64_t shared = SharedOf(choice, layout.cols);
  NV_NORMS_RETURN_IF_ERROR(AllowShared(choice.kernel, shared, name));
  return LaunchKernel(name, choice.kernel, static_cast<unsigned>(partials), choice.threads,
                      static_cast<size_t>(shared), 1, stream, args);
}

}  // namespace cuda
}  // namespace nv_norms
