// Rows that have a gamma and a beta of their own, as instance norm of NC... has them: by the
// kernels of long rows where these are faster than those of segments.
#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/resident.cuh"
#include "kernels/cuda/segments_sums.cuh"

namespace nv_norms {
namespace cuda {
namespace {

// Parts of a copy's speed on an H200, by segments -> by rings, of rows x columns.

// Teams of the grid whose blocks use a row so few rows after its sums wait for each other: float32
// 128 x 2097152 forward 0.76 -> 0.73, 64 x 884736 gradient 0.66 -> 0.58, float16 128 x 2097152
// gradient 0.69 -> 0.65. More rows: 512 x 262144 0.84 -> 0.99.
constexpr int kLeastLag = 3;
// Forward, in 16 bits: 8192 x 3136 0.77 -> 0.86, but 4096 x 12544 0.76 -> 0.71, 256 x 110592 0.75
// -> 0.60, 512 x 262144 0.83 -> 0.82; again 128 x 2097152 0.79 -> 0.82.
constexpr int64_t kShort16 = 8192;
constexpr int64_t kLong16 = 1500000;
// Forward, float32 to 16 bits, of large blocks: 2048 x 32768 0.78 -> 0.89, but with few rows to a
// team 512 x 24576 (8 of them) 0.76 -> 0.73, or with warps that are not full 1024 x 20000 (16) 0.75
// -> 0.71, 128 x 110592 (16) 0.65 -> 0.61.
constexpr int kLargeBlock = 384;  // threads
constexpr int64_t kLeastRows = 12;
constexpr int64_t kLeastRowsNotFull = 24;
// The gradient with so few warps to a multiprocessor: float32 1024 x 20000 (10) 0.78 -> 0.73, 512 x
// 24576 (12) 0.79 -> 0.82.
constexpr int kLeastWarps = 12;
// That of teams of the grid with a leaky relu, which is arithmetic in every row: float32 512 x
// 262144 (8) 0.72 -> 0.70; with silu (8) 0.63 -> 0.55, float16 (11) 0.44 -> 0.42, 64 x 409600 (13)
// 0.41 -> 0.49.
constexpr int kLeastTeamWarps = 9;
constexpr int kLeastTeamWarpsSilu = 12;
// With silu in clusters: float32 to 16 bits 256 x 110592 (16 blocks) 0.60 -> 0.52, 1024 x 65536 (8)
// 0.51 -> 0.69.
constexpr int kMostBlocksSilu = 8;

bool IsTeam(const RingShape& shape) { return shape.team == Team::kGrid && shape.blocks > 1; }

bool RingsAreFaster(const ForwardProblem& problem, const RingShape& shape) {
  if (shape.blocks == 0 || (IsTeam(shape) && shape.lag < kLeastLag)) return false;
  const RowLayout& layout = problem.geometry.rows;
  if (SizeOf(problem.x) == 2) return layout.cols <= kShort16 || layout.cols >= kLong16;
  if (problem.y == problem.x || shape.threads < kLargeBlock) return true;
  const bool full = shape.share % (32 * shape.items) == 0;
  return layout.rows >= shape.teams * (full ? kLeastRows : kLeastRowsNotFull);
}

bool RingsAreFaster(const BackwardProblem& problem, const RingShape& shape) {
  if (shape.blocks == 0) return false;
  const bool silu = problem.activation.silu;
  if (IsTeam(shape)) {
    if (shape.lag < kLeastLag) return false;
    const int warps = shape.threads / 32 - shape.clerks;
    return problem.activation.none() || warps >= (silu ? kLeastTeamWarpsSilu : kLeastTeamWarps);
  }
  if (shape.team != Team::kCluster) return true;
  // Float16 384 x 50176 0.65 -> 0.57, 512 x 12288 0.70 -> 0.66.
  if (SizeOf(problem.x) == 2 || (silu && shape.blocks > kMostBlocksSilu)) return false;
  return kRingThreads / shape.threads * shape.threads / 32 >= kLeastWarps;
}

// Where things lie in the workspace, behind what blocks post.
struct Places {
  int64_t sums;
  int64_t lines;
  int64_t bytes;

  Places(const BackwardProblem& problem, const RingShape& shape) {
    const SegmentLayout layout = SegmentLayout::Of(problem.geometry.rows);
    sums = Align16(MailBytes(shape, layout.rows));
    lines = sums + Align16(SumsBytes<float>(layout, 1));
    bytes = lines + Align16(XhatLineBytes(problem));
  }
};

}  // namespace

Status LaunchForwardRowsOwn(const ForwardPlan& plan, const ForwardBuffers& buffers, void* workspace,
                            void* stream, bool* launched) {
  *launched = false;
  const ForwardProblem& problem = plan.problem;
  if (!problem.geometry.rows.by_row() || !RingsAreFaster(problem, ForwardRingShape(plan)))
    return Status();
  return LaunchForwardRowsRing(plan, buffers, workspace, stream, launched);
}

void PlanBackwardRowsOwn(BackwardPlan* plan) {
  if (!plan->problem.geometry.rows.by_row() || !plan->want_dx) return;
  const auto reserve = [&](const BackwardPlan& of) {
    const RingShape shape = BackwardRingShape(of);
    if (!RingsAreFaster(of.problem, shape)) return;
    plan->workspace = std::max(plan->workspace, Places(of.problem, shape).bytes);
  };
  reserve(*plan);
  // Where the activation has a pass of its own.
  if (Activated(plan->problem)) reserve(WithoutActivation(*plan));
}

Status LaunchBackwardRowsOwn(const BackwardPlan& plan, const BackwardBuffers& buffers,
                             void* workspace, void* stream, bool* launched) {
  *launched = false;
  const BackwardProblem& problem = plan.problem;
  if (!problem.geometry.rows.by_row() || buffers.dx == nullptr) return Status();
  const RingShape shape = BackwardRingShape(plan);
  if (!RingsAreFaster(problem, shape)) return Status();
  const Places places(problem, shape);
  char* const base = static_cast<char*>(workspace);
  const bool params = buffers.dgamma != nullptr || buffers.dbeta != nullptr;
  RingSums sums;
  if (params) {
    sums.rows = reinterpret_cast<SegmentSums<float>*>(base + places.sums);
    sums.lines = reinterpret_cast<XhatLine<float>*>(base + places.lines);
  }
  NV_NORMS_RETURN_IF_ERROR(
      LaunchBackwardRowsRing(plan, shape, buffers, sums, workspace, stream, launched));
  if (!*launched || !params) return Status();
  return LaunchSegmentParams<float>(SegmentLayout::Of(problem.geometry.rows), 1, problem.dparam,
                                    sums.rows, sums.lines, buffers, plan.device, stream);
}

}  // namespace cuda
}  // namespace nv_norms
