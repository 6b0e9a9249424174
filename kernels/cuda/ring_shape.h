// How the ring kernels cut their rows, for host code.
#ifndef NV_NORMS_KERNELS_CUDA_RING_SHAPE_H_
#define NV_NORMS_KERNELS_CUDA_RING_SHAPE_H_

#include "kernels/cuda/norms.h"

namespace nv_norms {
namespace cuda {

// Who has a row: a block, a cluster, or blocks anywhere on the GPU.
enum class Team { kBlock, kCluster, kGrid };

constexpr int64_t kPostBytes = 16;  // that a block tells its team of a row

// How a ring kernel cuts its rows.
struct RingShape {
  Team team = Team::kBlock;
  int vector = 1;    // numbers that a thread copies at once
  int blocks = 1;    // to a row
  int share = 1;     // vectors of a row to a block
  int threads = 32;  // to a block
  int items = 1;     // vectors to a thread
  int stages = 2;
  int64_t teams = 1;
  int64_t shared = 0;  // bytes
};

// The shape for rows of `tensors` tensors together, of whose row a thread holds `numbers` numbers,
// or in a single block by eights as few as `least_numbers`; blocks is 0 where there is none.
RingShape RingShapeOf(int64_t rows, int64_t cols, int64_t size, int64_t vector, int least_numbers,
                      int numbers, int tensors, const Device& device);

// Bytes of workspace for what teams of the grid post.
inline int64_t MailBytes(const RingShape& shape, int64_t rows) {
  if (shape.blocks == 0 || shape.team != Team::kGrid) return 0;
  return rows * shape.blocks * kPostBytes;
}

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_RING_SHAPE_H_
