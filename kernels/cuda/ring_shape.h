// How the ring kernels cut their rows, for host code.
#ifndef NV_NORMS_KERNELS_CUDA_RING_SHAPE_H_
#define NV_NORMS_KERNELS_CUDA_RING_SHAPE_H_

#include <algorithm>

#include "kernels/cuda/norms.h"

namespace nv_norms {
namespace cuda {

// Who has a row: a block, a cluster (or a block that works as one), or blocks anywhere on the GPU.
enum class Team { kBlock, kCluster, kGrid };

constexpr int64_t kTicketBytes = 16;
constexpr int64_t kPostBytes = 16;  // that a block or warp tells its team of a row
constexpr int kMailSlots = 4;       // rows whose posts a cluster's block has room for
constexpr int kBlockStages = 2;     // of a block that has rows alone
constexpr int kMostStages = 6;      // of a cluster
constexpr int kMostTeamStages = 9;  // of a team of the grid
constexpr int kMostLag = 7;         // see RingShape

// How a ring kernel cuts its rows.
struct RingShape {
  Team team = Team::kBlock;
  int vector = 1;    // numbers that a thread copies at once
  int blocks = 1;    // to a row
  int share = 1;     // vectors of a row to a block
  int threads = 32;  // to a block, clerks among them
  int items = 1;     // vectors to a thread
  int stages = 2;
  // Of teams of the grid: warps of a block that merge and post, rows between the block's sums of a
  // row and its use of the team's, and whether a clerk posts its next row before it collects one.
  int clerks = 0;  // at most lag + 1, or lag where they post ahead
  int lag = 0;     // at most kMostLag
  bool ahead = false;
  int64_t teams = 1;
  bool drawn = false;  // teams, a block each, draw their rows: see tickets.cuh
  bool rim = false;    // rows have a rim: see rim.cuh
  int allies = 1;      // blocks, each a team, that add up sums of columns together: see allies.cuh
  int64_t shared = 0;  // bytes
};

// Of a row, to a thread: by eights from `least` to `most` in a block, `cluster_most` in a cluster,
// and from `team_least` to `team_most` in teams of the grid.
struct RingNumbers {
  int least;
  int most;
  int cluster_most;
  int team_least;
  int team_most;
  bool own;          // rows have parameters of their own
  bool rim = false;  // rows have a rim
};

constexpr int kTeamLeastNumbers = 16;
constexpr int kTeamNumbers = 24;
// Where rows have parameters of their own: with an activation's gradient, and forward.
constexpr int kTeamLeastNumbersActivated = 8;
constexpr int kTeamNumbersOwn = 32;
constexpr int kAllies = 4;
constexpr int kRingThreads = 512;  // of a block that have columns, at most

// To a block a row's first whole vector is aligned to so many: warps that write whole sectors of 32
// bytes are faster. Of a copy's speed, to one vector and to two: forward, bfloat16 131072 x 1001
// 0.74, 0.81; gradient, float32 65536 x 1002 0.845, 0.91, 32768 x 4097 0.88, 0.955, bfloat16 131072
// x 513 0.74, 0.82; but 16384 x 8191 float32 0.90, 0.84, for which 128 blocks are left of 132.
// Clusters, of which there are few, have one vector.
constexpr int kRimVectors = 2;

// As many of these teams as have rows that lie to `unit` numbers alike.
inline int64_t RimTeams(int64_t teams, int64_t cols, int64_t unit) {
  int64_t period = 1;
  while (cols * period % unit != 0) period *= 2;
  return teams / period * period;
}

// Bytes of a number.
struct RingSizes {
  int64_t x;
  int64_t dy;   // 0 in the forward pass
  int64_t out;  // of y or dx
};

// The shape for rows of these tensors; blocks is 0 where there is none.
RingShape RingShapeOf(int64_t rows, int64_t cols, const RingSizes& sizes, int64_t vector,
                      const RingNumbers& numbers, const Device& device);

// Of shared memory, for what warps post.
inline int64_t ClusterMailBytes(int64_t warps) { return kMailSlots * kPostBytes * warps; }

// Bytes of workspace for what teams of the grid post, or for tickets.
inline int64_t MailBytes(const RingShape& shape, int64_t rows) {
  if (shape.drawn) return kTicketBytes;
  if (shape.blocks <= 1 || shape.team != Team::kGrid) return 0;
  return rows * shape.blocks * kPostBytes;
}

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_RING_SHAPE_H_
