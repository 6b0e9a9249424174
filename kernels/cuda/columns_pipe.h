// How forward_columns_pipe.cu cuts a problem. A unit is a strip of a sample's columns; a group of
// blocks has it, each block tiles of some rows in turn. Tiles that fit stay in shared memory until
// they are written. Of a unit that is larger than that the first ones are read for their sums, and
// again, out of the L2 cache as far as they are still there.
#ifndef NV_NORMS_KERNELS_CUDA_COLUMNS_PIPE_H_
#define NV_NORMS_KERNELS_CUDA_COLUMNS_PIPE_H_

#include <cstdint>

#include "kernels/cuda/norms.h"

namespace nv_norms {
namespace cuda {

constexpr int kTileVectors = 512;  // of 16 bytes
constexpr int kMaxPipeSlots = 28;
constexpr int kMaxPipeBlocks = 160;
constexpr int kTilesBeforeAll = 3;  // on their way while the blocks clear their posts

struct PipeShape {
  int rows;     // of a sample
  int width;    // vectors of a row
  int vectors;  // of a row of a strip, a power of two of at most 32
  int columns;  // of a strip
  int strips;   // to a sample
  int units;    // strips of all samples
  int blocks;   // of a group
  int groups;
  int tile_rows;
  int tiles;         // of a block, of a unit
  int slots;         // of tiles in shared memory
  int streamed;      // tiles of a unit that are read twice, the first
  int stream_slots;  // for these, and once more for reading them again
  int flight;        // of the other tiles so many at most are on their way
  int last_share;    // rows of a block's last tile
  int last_extra;    // blocks whose last tile has one row more, the first
  int rounds;        // of posts, before their places are used again
  double inverse_rows;
  double inverse_lengths[2];  // of the rows of a block with a row more, and of another

  int depth;  // channels to a group of the norm
  int norm_groups;
  int64_t n_stride;
  int64_t group_stride;
  int64_t depth_stride;

  NV_NORMS_HOST_DEVICE int LastRows(int rank) const {
    return last_share + (rank < last_extra ? 1 : 0);
  }
  NV_NORMS_HOST_DEVICE int LengthOf(int rank) const {
    return (tiles - 1) * tile_rows + LastRows(rank);
  }
  NV_NORMS_HOST_DEVICE int stats() const { return columns / depth; }
  NV_NORMS_HOST_DEVICE int64_t ParamOf(int64_t n, int channel) const {
    return n * n_stride + channel / depth * group_stride + channel % depth * depth_stride;
  }
};

// For numbers of x and y of so many bytes. scratch(columns): bytes of shared memory beside the
// tiles. False where these kernels do not suit.
bool CutPipe(const ColumnLayout& layout, const Device& device, int x_bytes, int y_bytes,
             int64_t (*scratch)(int), PipeShape* shape);

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_COLUMNS_PIPE_H_
