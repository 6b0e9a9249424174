// Rows whose parameters belong to segments, runs of columns that share one: instance norm of NC...
// (a segment is a whole row) and group norm of NC... (a segment is a channel). How they are cut.
#ifndef NV_NORMS_KERNELS_CUDA_SEGMENTS_H_
#define NV_NORMS_KERNELS_CUDA_SEGMENTS_H_

#include <cstdint>
#include <functional>

#include "kernels/cuda/divisor.h"
#include "kernels/cuda/norms.h"
#include "kernels/cuda/resident.h"

namespace nv_norms {
namespace cuda {

constexpr int kMaxTeam = 2 * kResidentThreads;  // blocks of a team

// x is [rows, segments, length]; a segment's parameter is row % modulus * row_stride + segment.
struct SegmentLayout {
  int64_t rows;
  int64_t segments;
  int64_t length;
  int64_t modulus;
  int64_t row_stride;

  static SegmentLayout Of(const RowLayout& layout) {
    return {layout.rows, layout.cols / layout.col_divisor, layout.col_divisor, layout.modulus,
            layout.row_stride};
  }
  NV_NORMS_HOST_DEVICE int64_t ParamOf(int64_t row, int64_t segment) const {
    return row % modulus * row_stride + segment;
  }
  // The same rows, as a segment each.
  SegmentLayout Whole() const { return {rows, 1, segments * length, modulus, row_stride}; }
};

// Vectors, or numbers, that share a parameter, in a row that is walked through as a whole.
struct SegmentRuns {
  SegmentLayout layout;
  Divisor length;  // vectors, or numbers, of a segment

  static SegmentRuns Of(const SegmentLayout& layout, int number_bytes) {
    return {layout, Divisor::Of(layout.length * number_bytes / kVectorBytes)};
  }
  static SegmentRuns OfNumbers(const SegmentLayout& layout) {
    return {layout, Divisor::Of(layout.length)};
  }
  // Of a vector, or a number, of a row.
  NV_NORMS_HOST_DEVICE int SegmentAt(unsigned at) const { return length.Quotient(at); }
  // Rows are fewer than 2^31: see CutSegments.
  NV_NORMS_HOST_DEVICE int64_t ParamOf(int row, int segment) const {
    return static_cast<unsigned>(row) % static_cast<unsigned>(layout.modulus) * layout.row_stride +
           segment;
  }
};

// The cut of a resident kernel: a team, a warp or blocks that run at the same time, has a row.
struct SegmentShape {
  SegmentLayout layout;
  int rows;
  int segments;
  int length;  // vectors of a segment
  bool warps;  // a team is a warp
  int blocks;  // of a team
  int parts;   // blocks to a segment, or
  int own;     // segments to a block: one of the two is 1
  int share;   // vectors of a part
  int extra;   // parts that have one vector more, the first
  int teams;
  int slots;
  int kept;
  int ahead;  // tiles that are asked for into the L2 cache during an exchange
  bool streaming;
  bool small_output;

  NV_NORMS_HOST_DEVICE int LengthOf(int part) const { return share + (part < extra ? 1 : 0); }
  // Partial sums of a segment: of every block, or where a block has several of every warp.
  NV_NORMS_HOST_DEVICE int pieces() const {
    return own == 1 ? parts : warps ? 1 : kResidentThreads / 32;
  }
  // Of the team's blocks, of all rows.
  NV_NORMS_HOST_DEVICE int64_t posts() const { return int64_t{rows} * blocks; }
  int grid() const {
    constexpr int kWarps = kResidentThreads / 32;
    return warps ? (teams + kWarps - 1) / kWarps : teams * blocks;
  }
};

// beside: bytes of dy beside a vector of x, or 0.
SegmentShape ShapeOf(const SegmentLayout& layout, int number_bytes, int beside,
                     const SegmentCut& cut);

// Cuts rows for a kernel that reads x of numbers of so many bytes, and `beside` bytes of dy with a
// vector of x; kernel(warps, streaming) is the one to launch. cut->blocks is 0 where they do not
// suit.
void CutSegments(const SegmentLayout& layout, const Device& device, int number_bytes, int beside,
                 const std::function<const void*(bool, bool)>& kernel, SegmentCut* cut);

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_SEGMENTS_H_
