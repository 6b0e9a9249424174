// How the resident column kernels cut a problem: see columns_resident.cuh.
#ifndef NV_NORMS_KERNELS_CUDA_COLUMNS_STRIPS_H_
#define NV_NORMS_KERNELS_CUDA_COLUMNS_STRIPS_H_

#include <cstdint>
#include <functional>

#include "kernels/cuda/norms.h"
#include "kernels/cuda/resident.h"

namespace nv_norms {
namespace cuda {

struct StripShape {
  int rows;             // of a sample: s / fold
  int fold;             // rows of s that are taken as one, so that it is whole vectors
  int width;            // vectors of a row
  int strips;           // to a sample
  int units;            // strips of all samples
  int vectors;          // of a row of a strip
  int columns;          // of a strip
  int row_step;         // rows that a block takes in one step
  int blocks;           // of a group
  int share;            // rows of a block
  int extra;            // blocks that have one row more, the first
  double inverse_rows;  // 1 / rows, ...
  double inverse_share;
  double inverse_longer;  // 1 / (share + 1)
  int groups;             // of blocks
  int slots;              // tiles in a block's shared memory
  int ahead;              // tiles that are asked for into the L2 cache during an exchange
  int kept;               // of them keep their tile where a unit does not fit
  int entries;            // rows of sums that a block has before it adds them up
  int readers;            // threads that add up a column
  bool streaming;         // there are more tiles than slots
  bool two_hops;          // a column's sums are added up by one block for all
  bool merge_lanes;       // lanes of a warp with the same columns first add theirs up
  bool small_output;      // which the next kernel may find in the L2 cache
  int row_items;          // a thread's rows whose sums it keeps, or 0

  int channels;  // of the tensor
  int depth;     // channels to a group of the norm
  int norm_groups;
  int64_t n_stride;
  int64_t s_stride;
  int64_t group_stride;
  int64_t depth_stride;

  NV_NORMS_HOST_DEVICE int LengthOf(int rank) const { return share + (rank < extra ? 1 : 0); }
  // Statistics of a strip, and the columns of each.
  NV_NORMS_HOST_DEVICE int members() const { return fold * depth; }
  NV_NORMS_HOST_DEVICE int stats() const { return columns / members(); }
  NV_NORMS_HOST_DEVICE int64_t ParamOf(int64_t n, int channel) const {
    return n * n_stride + channel / depth * group_stride + channel % depth * depth_stride;
  }
};

constexpr int kColumnNumbers = 4;  // floats of every column, beside its sums

// Bytes of shared memory beside the tiles, for sums of `numbers` numbers a column.
inline int64_t ScratchBytes(const StripShape& shape, int numbers, int stat_bytes) {
  const int64_t entries = int64_t{4} * shape.entries * (shape.columns * numbers + 1);
  const int64_t sums = int64_t{8} * shape.readers * shape.columns * numbers;
  const int64_t others = int64_t{4} * kColumnNumbers * shape.columns;
  const int64_t stats = static_cast<int64_t>(stat_bytes) * shape.columns;
  return (entries + 15) / 16 * 16 + sums + (others + 15) / 16 * 16 + (stats + 15) / 16 * 16;
}

// Cuts the columns for a kernel that reads x of numbers of so many bytes, and `beside` bytes of dy
// with a vector of x, and exchanges `numbers` sums a column; kernel(streaming) is the one to
// launch. row_sums: a thread keeps two sums of each of its rows, too. False where they do not suit.
bool CutStrips(const ColumnLayout& layout, const Device& device, int number_bytes, int beside,
               int numbers, int stat_bytes, bool row_sums,
               const std::function<const void*(bool)>& kernel, StripTile* tile);

// Bytes of shared memory for the sums of rows.
NV_NORMS_HOST_DEVICE constexpr int RowSumBytes(int row_items) {
  return 8 * kResidentThreads * row_items;
}

// The whole cut, of what the plan keeps.
StripShape ShapeOf(const ColumnLayout& layout, int number_bytes, const StripTile& tile);

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_COLUMNS_STRIPS_H_
