// Rows of samples that have parameters of their own: all samples in one launch where a row fits
// into registers, else one sample after the other, as rows that share their parameters.
#include "kernels/cuda/occupancy.h"
#include "kernels/cuda/samples.cuh"
#include "kernels/sample_rows.h"

namespace nv_norms {
namespace cuda {
namespace {

ForwardPlan PlanOfSample(const ForwardPlan& plan) {
  ForwardPlan out;
  (void)PlanForward(OneSample(plan.problem), plan.device, &out);
  return out;
}

BackwardPlan PlanOfSample(const BackwardPlan& plan) {
  BackwardPlan out;
  (void)PlanBackward(OneSample(plan.problem), plan.device, plan.want_dx, plan.want_params, &out);
  return out;
}

template <typename Plan, typename Buffers>
Status LaunchEach(const Plan& plan, const Buffers& buffers, void* workspace, void* stream) {
  const Plan of_sample = PlanOfSample(plan);
  const int64_t samples = SamplesOf(plan.problem.geometry.rows);
  for (int64_t sample = 0; sample < samples; ++sample) {
    NV_NORMS_RETURN_IF_ERROR(
        Launch(of_sample, OneSample(plan.problem, buffers, sample), workspace, stream));
  }
  return Status();
}

// Of all samples' partial sums of dgamma, or of dbeta: [partials, samples, cols].
int64_t SumBytes(const BackwardPlan& plan, int64_t partials) {
  return Align16(partials * plan.problem.geometry.params * SizeOfNumber(plan.problem.in_double()));
}

// More rows than a grid has blocks are for the kernels of any geometry.
bool TooManyRows(const RowLayout& layout) { return layout.rows >= kMostColumns / kMaxCluster; }

template <typename Problem, typename Buffers>
bool AreAligned(const Problem& problem, const Buffers& buffers, const void* other) {
  const int vector = static_cast<int>(16 / SizeOf(problem.x));
  return VectorAligned(buffers.x, problem.x, vector) &&
         VectorAligned(other, OtherType(problem), vector) &&
         VectorAligned(buffers.gamma, problem.param, vector);
}

// Blocks to each sample: no more than run at once, as each reads its sample's parameters first, or
// leaves sums for their gradients. Bfloat16 16 x 256 x 1152 forward on an H200: 0.78 of a copy's
// speed, twice as many 0.67.
template <typename Choice>
int64_t ShareOfBlocks(const Choice& choice, const Device& device, int64_t samples, int64_t rows) {
  const int resident =
      ResidentBlocks(reinterpret_cast<const void*>(choice.kernel), choice.threads, choice.shared);
  const int64_t share = int64_t{resident} * device.multiprocessors / samples;
  return std::min(CeilDiv(rows, choice.rows), std::max<int64_t>(1, share));
}

// How many times as many blocks of warps forward: multiprocessors are not equally fast, and equal
// shares wait for the slowest, but each block reads its sample's parameters first. Of a copy's
// speed on an H200, once and four times as many: float32 8 x 4096 x 1536 0.83, 0.89, 256 x 256 x
// 1152 0.89, 0.91, 64 x 256 x 1152 0.90, 0.86 (two turns to a warp); bfloat16 8 x 4096 x 1536 0.87,
// 0.90, 256 x 256 x 1152 (a block to a sample) 0.88, 0.85.
int64_t Waves(const ForwardProblem& problem, const SampleRows& choice, int64_t rows, int64_t lots) {
  constexpr int64_t kLeastTurns = 5;
  constexpr int64_t kMost = 4;
  const bool of_warps = choice.goes_on && choice.rows >= 4;
  if (!of_warps || (SizeOf(problem.x) == 2 && lots < 8)) return 1;
  return std::clamp<int64_t>(rows / (lots * choice.rows * kLeastTurns), 1, kMost);
}

SampleRows Choose(const ForwardProblem& problem, const ForwardBuffers& buffers) {
  const bool aligned = AreAligned(problem, buffers, buffers.y) &&
                       VectorAligned(buffers.beta, problem.param, 16 / SizeOf(problem.x));
  if (!aligned || problem.in_double()) return {};
  return problem.x == DType::kFloat ? ChooseSampleRows32(problem) : ChooseSampleRows16(problem);
}

// Of samples of `rows` rows each.
Status LaunchInRegisters(const ForwardPlan& plan, const SampleRows& choice, int64_t rows,
                         const ForwardBuffers& buffers, void* stream, bool* launched) {
  const ForwardProblem& problem = plan.problem;
  const RowLayout& layout = problem.geometry.rows;
  constexpr int64_t kStatic = 1024;  // bytes that the kernels' sums take beside, and fewer
  *launched = choice.kernel != nullptr && choice.shared + kStatic <= plan.device.shared_bytes;
  if (!*launched) return Status();
  const char* name = "normalization of samples' rows";
  NV_NORMS_RETURN_IF_ERROR(AllowShared(choice.kernel, choice.shared, name));
  const int64_t samples = layout.rows / rows;
  int64_t lots = choice.goes_on ? ShareOfBlocks(choice, plan.device, samples, rows)
                                : CeilDiv(rows, choice.rows);
  lots *= Waves(problem, choice, rows, lots);
  WarpRowsArguments args = {};
  args.formula = problem.formula;
  args.epsilon = static_cast<float>(problem.epsilon);
  args.rows = rows;
  args.cols = static_cast<int>(layout.cols);
  args.lots = static_cast<unsigned>(lots);
  args.buffers = buffers;
  return LaunchKernel(name, choice.kernel, static_cast<unsigned>(samples * lots), choice.threads,
                      static_cast<size_t>(choice.shared), 1, stream, args);
}

SampleGradient Choose(const BackwardPlan& plan) {
  const BackwardProblem& problem = plan.problem;
  if (problem.in_double() || problem.dx != problem.x) return {};
  const SampleGradient out = problem.x == DType::kFloat ? ChooseSampleGradient32(problem)
                                                        : ChooseSampleGradient16(problem);
  return out.shared <= plan.device.shared_bytes ? out : SampleGradient();
}

// Partial sums of each sample, of as many blocks as run at once; 0: no such kernel.
int64_t PartialsInRegisters(const BackwardPlan& plan) {
  const SampleGradient choice = Choose(plan);
  if (choice.kernel == nullptr) return 0;
  const RowLayout& layout = plan.problem.geometry.rows;
  return ShareOfBlocks(choice, plan.device, SamplesOf(layout), layout.repeat);
}

// Of samples of `rows` rows each, of which `lots` blocks have a share.
Status LaunchInRegisters(const BackwardPlan& plan, int64_t rows, int64_t lots,
                         const BackwardBuffers& buffers, float* dgamma, float* dbeta, void* stream,
                         bool* launched) {
  const BackwardProblem& problem = plan.problem;
  const RowLayout& layout = problem.geometry.rows;
  *launched = AreAligned(problem, buffers, buffers.dy) &&
              VectorAligned(buffers.dx, problem.dx, 16 / SizeOf(problem.x));
  if (!*launched) return Status();
  const SampleGradient choice = Choose(plan);
  WarpGradientArguments args = {};
  args.param = problem.param;
  args.formula = problem.formula;
  args.rows = rows;
  args.cols = static_cast<int>(layout.cols);
  args.samples = static_cast<unsigned>(layout.rows / rows);
  args.lots = static_cast<unsigned>(lots);
  args.buffers = buffers;
  args.dgamma = dgamma;
  args.dbeta = dbeta;
  const char* name = "normalization gradient of samples' rows";
  NV_NORMS_RETURN_IF_ERROR(AllowShared(choice.kernel, choice.shared, name));
  return LaunchKernel(name, choice.kernel, args.samples * args.lots, choice.threads,
                      static_cast<size_t>(choice.shared), 1, stream, args);
}

}  // namespace

void PlanForwardSamples(ForwardPlan* plan) {
  plan->kernel = TooManyRows(plan->problem.geometry.rows) ? Kernel::kGeneral : Kernel::kRows;
  if (!ForwardAnyFits(*plan)) plan->workspace = PlanOfSample(*plan).workspace;
}

Status LaunchForwardSamples(const ForwardPlan& plan, const ForwardBuffers& buffers, void* workspace,
                            void* stream) {
  bool launched = false;
  const Status status =
      LaunchInRegisters(plan, Choose(plan.problem, buffers), plan.problem.geometry.rows.repeat,
                        buffers, stream, &launched);
  if (launched || !status.ok()) return status;
  if (ForwardAnyFits(plan)) return LaunchForwardRowsAny(plan, buffers, stream);
  return LaunchEach(plan, buffers, workspace, stream);
}

// Rows that share their parameters are one sample; those of 16 bits that these kernels are faster
// with. Of a copy's speed on an H200, bfloat16, other kernels and so, 65536 rows (8192): 1024
// columns 0.965, 0.900 (1.03, 0.82), 1040 0.76, 0.87 (0.73, 0.81), 1152 0.81, 0.92 (0.78, 0.87),
// 1280 0.85, 0.91 (0.80, 0.87), 1400 0.86, 0.91 (0.78, 0.84), 1536 0.91, 0.91 (0.82, 0.85), 1600
// 0.89, 0.90 (0.81, 0.87), 1792 0.94, 0.91 (0.84, 0.88), 2560 0.89, 0.90 (0.75, 0.82); 2048 rows of
// 1152 0.80, 0.73, of 1536 0.89, 0.78.
Status LaunchForwardRowsGoing(const ForwardPlan& plan, const ForwardBuffers& buffers, void* stream,
                              bool* launched) {
  *launched = false;
  const ForwardProblem& problem = plan.problem;
  const RowLayout& layout = problem.geometry.rows;
  const bool faster =
      (layout.cols > 1024 && layout.cols <= 1664) || (layout.cols > 2304 && layout.cols <= 2560);
  if (!faster || layout.rows < 8192 || SizeOf(problem.x) != 2 || !layout.by_column()) {
    return Status();
  }
  const SampleRows choice = Choose(problem, buffers);
  if (!choice.goes_on) return Status();
  return LaunchInRegisters(plan, choice, layout.rows, buffers, stream, launched);
}

namespace {

// The same of the gradient, where no warp has a row. Of a copy's speed on an H100, other kernels
// and so, of 64 x 10^6 (16 x 10^6, 4 x 10^6) numbers. bfloat16 1408 columns 0.92, 0.95 (0.82, 0.89;
// 0.75, 0.79), 2048 0.88, 0.95 (0.76, 0.82; 0.60, 0.61), 2304 0.92, 0.91, 2560 0.90, 0.93 (0.75,
// 0.78; 0.72, 0.75), 3072 0.92, 0.92, 4096 0.88, 0.85. float32 1032 columns 0.92, 0.95 (0.90, 0.91;
// 0.87, 0.86), 1536 0.94, 0.97 (0.91, 0.95; 0.84, 0.88), 2048 0.93, 0.97 (0.87, 0.91; 0.74, 0.78),
// 2816 0.93, 0.92. dy in bfloat16 1032 columns 0.91, 0.94 (0.87, 0.89; 0.82, 0.78), 1536 0.92, 0.96
// (0.89, 0.91; 0.82, 0.81), 2048 0.92, 0.94 (0.83, 0.86), 2176 0.95, 0.94 (0.90, 0.87).
bool GoesOnFaster(const BackwardProblem& problem) {
  const int64_t cols = problem.geometry.rows.cols;
  if (SizeOf(problem.x) == 2) return (cols > 1280 && cols <= 2048) || (cols > 2304 && cols <= 2816);
  if (cols <= 1024) return false;
  if (problem.dy == problem.x) return cols <= 2560;
  return cols <= 2048 && problem.geometry.elements >= int64_t{1} << 23;
}

}  // namespace

int64_t GoingPartials(const BackwardPlan& plan) {
  const BackwardProblem& problem = plan.problem;
  const RowLayout& layout = problem.geometry.rows;
  if (!layout.by_column() || !GoesOnFaster(problem)) return 0;
  const SampleGradient choice = Choose(plan);
  return choice.kernel == nullptr ? 0 : ShareOfBlocks(choice, plan.device, 1, layout.rows);
}

Status LaunchBackwardRowsGoing(const BackwardPlan& plan, const BackwardBuffers& buffers,
                               int64_t partials, float* dgamma, float* dbeta, void* stream,
                               bool* launched) {
  return LaunchInRegisters(plan, plan.problem.geometry.rows.rows, partials, buffers, dgamma, dbeta,
                           stream, launched);
}

void PlanBackwardSamples(BackwardPlan* plan) {
  plan->kernel = TooManyRows(plan->problem.geometry.rows) ? Kernel::kGeneral : Kernel::kRows;
  plan->partials = PartialsInRegisters(*plan);
  if (!BackwardAnyFits(*plan)) {
    plan->workspace = PlanOfSample(*plan).workspace;
  } else if (plan->want_params) {
    plan->workspace = 2 * SumBytes(*plan, std::max(plan->partials, AnyPartials(*plan)));
  }
}

Status LaunchBackwardSamples(const BackwardPlan& plan, const BackwardBuffers& buffers,
                             void* workspace, void* stream) {
  if (!BackwardAnyFits(plan)) return LaunchEach(plan, buffers, workspace, stream);
  const BackwardProblem& problem = plan.problem;
  int64_t partials = plan.partials;
  void* dgamma = nullptr;
  void* dbeta = nullptr;
  bool whole = false;  // a single sum for each parameter, where it is to be
  const auto place = [&] {
    whole = partials == 1 && problem.dparam == DType::kFloat && !problem.in_double() &&
            AlignedTo(buffers.dgamma, 16) && AlignedTo(buffers.dbeta, 16);
    char* const base = static_cast<char*>(workspace);
    if (buffers.dgamma != nullptr) dgamma = whole ? buffers.dgamma : base;
    if (buffers.dbeta != nullptr) {
      dbeta = whole ? buffers.dbeta : base + SumBytes(plan, partials);
    }
  };
  bool launched = false;
  if (partials != 0) {
    place();
    NV_NORMS_RETURN_IF_ERROR(LaunchInRegisters(plan, problem.geometry.rows.repeat, partials,
                                               buffers, static_cast<float*>(dgamma),
                                               static_cast<float*>(dbeta), stream, &launched));
  }
  if (!launched) {
    partials = AnyPartials(plan);
    place();
    NV_NORMS_RETURN_IF_ERROR(LaunchBackwardRowsAny(plan, buffers, dgamma, dbeta, stream));
  }
  if (whole || (dgamma == nullptr && dbeta == nullptr)) return Status();
  return LaunchFinish(problem, problem.geometry.params, buffers, dgamma, dbeta, partials,
                      plan.device, stream);
}

}  // namespace cuda
}  // namespace nv_norms
