// How the tile kernels cut short rows. A tile is a run of whole rows, which a warp has; `lanes` of
// its lanes have a row.
#ifndef NV_NORMS_KERNELS_CUDA_TILE_SHAPE_CUH_
#define NV_NORMS_KERNELS_CUDA_TILE_SHAPE_CUH_

#include <algorithm>

#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/geometry.h"

namespace nv_norms {
namespace cuda {

// At most, of a row: 65536 x 512 bfloat16 reached 0.84 of a copy's speed in tiles and 0.66 in a
// ring, 65536 x 768 0.80 and 0.83.
constexpr int kTileColumns = 512;
// At most, of a tile of the fewest rows that are whole pieces. Of a copy's speed on an H200
// forward, gradient, in other kernels and in such tiles: bfloat16 255 columns 0.22, 0.33 and 0.83,
// 0.59, 511 0.22, 0.16 and 0.64, 0.50; float32 255 0.40, 0.29 and 0.94, 0.76, 511 0.66, 0.43 and
// 0.71, 0.80.
constexpr int kMostTileBytes = 8192;
// Where parameters are by row: 13 x 13 bfloat16 0.42, 0.26 and 0.58, 0.52, 15 x 15 0.45, 0.36 and
// 0.61, 0.56, 21 x 21 0.70, 0.64 and 0.50, 0.45; float32 15 x 15 0.65, 0.55 and 0.60, 0.66.
constexpr int kMostOwnTileBytes = 4096;

// How a tile kernel cuts its rows.
struct TileShape {
  int vector = 1;  // numbers that a lane reads at once
  int items = 1;   // of these vectors to a lane
  int lanes = 1;   // to a row, a power of two
  int rows = 1;    // of a tile; their bytes are a multiple of 16 in every tensor
  int bytes = 16;  // of a tile of x
};

// Whose a parameter is.
enum class ParamOf {
  kColumn,       // a column's
  kRow,          // a row's (instance norm of NC...)
  kColumnOfRow,  // a column's in every modulus-th row (group norm of [n, channels])
  kOther,
};

inline ParamOf ParamOfTiles(const RowLayout& layout) {
  if (layout.by_column()) return ParamOf::kColumn;
  if (layout.rows >= kMostColumns) return ParamOf::kOther;
  if (layout.by_row()) return ParamOf::kRow;
  return layout.col_divisor == 1 && layout.row_stride == layout.cols ? ParamOf::kColumnOfRow
                                                                     : ParamOf::kOther;
}

// Whether rows that are whole vectors of 16 bytes, for which there are other kernels, are short
// enough where parameters belong to rows.
inline bool SuitsTiles(const RowLayout& layout, int64_t size, int64_t most_own) {
  if (layout.by_row() && layout.cols == 1) return false;
  return layout.cols <= kTileColumns &&
         (!layout.by_row() || layout.cols <= most_own || layout.cols * size % 16 != 0);
}

// Blocks that are resident at once: of `resident` to a multiprocessor those that `shared` bytes
// each leave room for.
inline int64_t TileBlocks(int resident, int64_t shared, const Device& device) {
  constexpr int64_t kReserved = 1024;  // of each block
  const int64_t room = (device.shared_bytes + kReserved) / (shared + kReserved);
  return std::clamp<int64_t>(room, 1, resident) * device.multiprocessors;
}

// How lanes share a row that they read in such vectors, `full` of which are 16 bytes.
inline TileShape ShareRow(int64_t cols, int vector, int full) {
  TileShape out;
  out.vector = vector;
  const int64_t vectors = cols / vector;
  // Eight lanes side by side read 128 bytes, of one row or of whole rows: all banks of shared
  // memory are at work. Rows of other sizes are spread over the banks by themselves.
  const int64_t side_by_side = vector == full ? std::min<int64_t>(8, vectors) : 1;
  while (out.lanes < side_by_side) out.lanes *= 2;
  while (out.lanes < 32 && CeilDiv(vectors, out.lanes) * vector > 16) out.lanes *= 2;
  out.items = static_cast<int>(CeilDiv(vectors, out.lanes));
  return out;
}

// The part of the lanes' numbers that are a row's, in percent.
inline int64_t Use(const TileShape& shape, int64_t cols) {
  return 100 * cols / (shape.lanes * shape.items * shape.vector);
}

// The same in the widest vectors that a row is whole ones of, or in narrower ones where that was
// faster, mostly as fewer lanes are idle. Of a copy's speed on an H200:
// - float32 in vectors of 4, 2: forward 20 columns 0.64, 1.00, 24 0.71, 1.00, 52 0.94, 0.99, 100
//   0.93, 0.99, but 72 0.99, 0.97, 144 0.98, 0.92; gradient 24 0.91, 0.98, 112 0.94, 0.96, 300
//   0.87, 0.89, but 32 0.93, 0.79.
// - bfloat16 in vectors of 8, 4, 2: forward 32 0.82, 0.92, 0.80, 56 0.74, 0.87, 0.92, 104 0.83,
// 0.88,
//   0.90, 160 0.74, 0.73, 0.80, 176 0.81, 0.78, 0.76; gradient 48 0.76, 0.97, 0.93, 104 0.88, 0.78,
//   0.79, 160 0.71, 0.72, 0.75, 192 0.86, 0.89, 0.85. In vectors of 4, 2: forward 36 0.76, 0.85,
//   100 0.85, 0.89, gradient 0.73, 0.76 and 0.74, 0.76.
// - Parameters by row: float32 100 columns forward 0.68, 0.64, 36 0.52, 0.67, gradient 0.76, 0.71
//   and 0.65, 0.68; bfloat16 144 in vectors of 8, 2: forward 0.52, 0.57, gradient 0.64, 0.59.
inline TileShape ShareRow(const RowLayout& layout, int64_t size, bool gradient) {
  const int64_t cols = layout.cols;
  const int full = static_cast<int>(16 / size);
  int vector = 1;
  while (vector < full && cols % (2 * vector) == 0) vector *= 2;
  const TileShape widest = ShareRow(cols, vector, full);
  const ParamOf param = ParamOfTiles(layout);
  const bool stays = param == ParamOf::kColumnOfRow ||
                     (param == ParamOf::kRow && cols > 64 && (gradient || size == 4));
  if (stays || vector < 4) return widest;
  const int64_t use = Use(widest, cols);
  const TileShape narrow = ShareRow(cols, 2, full);
  const int64_t narrow_use = Use(narrow, cols);
  if (size == 4) {
    const bool few = cols <= 64 || (cols >= 96 && cols <= 112);
    const bool faster = gradient ? narrow_use >= 85 && (cols & (cols - 1)) != 0
                                 : few && use < 85 && narrow_use >= 89;
    return faster ? narrow : widest;
  }
  if (vector == 4) return use <= 83 && narrow_use >= 85 ? narrow : widest;
  if (cols < 16) return widest;
  const TileShape half = ShareRow(cols, 4, full);
  if (cols <= 192 && Use(half, cols) == 100) return half;
  const bool faster = narrow_use >= 85 && (use < 65 || cols <= (gradient ? 64 : 128));
  return faster ? narrow : widest;
}

// Of numbers of `size` bytes in x, and of no fewer than `least` in any tensor. Few enough rows to a
// tile that `warps` warps have one, and at most `most_bytes` where the rows allow it.
inline TileShape TileShapeOf(const RowLayout& layout, int64_t size, int64_t least, bool gradient,
                             int64_t warps, int64_t most_bytes) {
  const int64_t cols = layout.cols;
  TileShape out = ShareRow(layout, size, gradient);
  int64_t tile_rows = 32 / out.lanes;
  while (tile_rows * cols * least % 16 != 0) tile_rows *= 2;
  while (tile_rows * 2 * cols * size <= most_bytes &&
         CeilDiv(layout.rows, tile_rows * 2) >= warps) {
    tile_rows *= 2;
  }
  out.rows = static_cast<int>(tile_rows);
  out.bytes = static_cast<int>(tile_rows * cols * size);
  return out;
}

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_TILE_SHAPE_CUH_
