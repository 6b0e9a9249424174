// What the tile kernels share. A tile is a run of whole short rows; a warp copies it to shared
// memory in 16-byte pieces, whatever the rows' alignment, and `lanes` of its lanes have a row.
#ifndef NV_NORMS_KERNELS_CUDA_TILE_CUH_
#define NV_NORMS_KERNELS_CUDA_TILE_CUH_

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/staged.cuh"

namespace nv_norms {
namespace cuda {

constexpr int kTileThreads = 128;
constexpr int kTileWarps = kTileThreads / 32;
// At most, of a row: 65536 x 512 bfloat16 reached 0.84 of a copy's speed in tiles and 0.66 in a
// ring, 65536 x 768 0.80 and 0.83.
constexpr int kTileColumns = 512;

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

// A tile of `rows` rows of which the tensor may end before the last; its bytes are copied by the
// whole warp, those beyond the last multiple of 16 at once. KEEP: they are last to leave the L2
// cache.
template <bool KEEP, typename T>
__device__ __forceinline__ void CopyTile(void* to, const T* from, int64_t first, int64_t rows,
                                         int tile_rows, int cols, int tile_bytes, int lane) {
  const char* source = reinterpret_cast<const char*>(from + first * cols);
  char* target = static_cast<char*>(to);
  const uint64_t policy = KEEP ? KeepPolicy() : 0;
  const auto copy = [&](int i) {
    if constexpr (KEEP) {
      CopyAsync<16>(target + i, source + i, policy);
    } else {
      CopyAsync<16>(target + i, source + i);
    }
  };
  if (first + tile_rows <= rows) {
    for (int i = lane * 16; i < tile_bytes; i += 32 * 16) copy(i);
  } else if (first < rows) {
    const int count = static_cast<int>(rows - first) * cols;
    const int whole = count * static_cast<int>(sizeof(T)) / 16 * 16;
    for (int i = lane * 16; i < whole; i += 32 * 16) copy(i);
    for (int i = whole / static_cast<int>(sizeof(T)) + lane; i < count; i += 32) {
      reinterpret_cast<T*>(target)[i] = from[first * cols + i];
    }
  }
}

// The way back.
template <typename T>
__device__ __forceinline__ void StoreTile(T* to, const void* from, int64_t first, int64_t rows,
                                          int tile_rows, int cols, int tile_bytes, int lane) {
  char* target = reinterpret_cast<char*>(to + first * cols);
  const char* source = static_cast<const char*>(from);
  int bytes = tile_bytes;
  if (first + tile_rows > rows) {
    const int count = static_cast<int>(rows - first) * cols;
    bytes = count * static_cast<int>(sizeof(T)) / 16 * 16;
    for (int i = bytes / static_cast<int>(sizeof(T)) + lane; i < count; i += 32) {
      to[first * cols + i] = reinterpret_cast<const T*>(source)[i];
    }
  }
  for (int i = lane * 16; i < bytes; i += 32 * 16) {
    *reinterpret_cast<uint4*>(target + i) = *reinterpret_cast<const uint4*>(source + i);
  }
}

// Of numbers of `size` bytes in x, and of no fewer than `least` in any tensor. Few enough rows to a
// tile that `warps` warps have one, and at most `most_bytes` where the rows allow it.
inline TileShape TileShapeOf(int64_t rows, int64_t cols, int64_t size, int64_t least,
                             bool params_aligned, int64_t warps, int64_t most_bytes) {
  TileShape out;
  const int full = static_cast<int>(16 / size);
  while (params_aligned && out.vector < full && cols % (2 * out.vector) == 0) out.vector *= 2;
  const int64_t vectors = cols / out.vector;
  // Eight lanes side by side read 128 bytes, of one row or of whole rows: all banks of shared
  // memory are at work. Rows of other sizes are spread over the banks by themselves.
  out.lanes = 1;
  const int64_t side_by_side = out.vector == full ? std::min<int64_t>(8, vectors) : 1;
  while (out.lanes < side_by_side) out.lanes *= 2;
  while (out.lanes < 32 && CeilDiv(vectors, out.lanes) * out.vector > 16) out.lanes *= 2;
  out.items = static_cast<int>(CeilDiv(vectors, out.lanes));
  int64_t tile_rows = 32 / out.lanes;
  while (tile_rows * cols * least % 16 != 0) tile_rows *= 2;
  while (tile_rows * 2 * cols * size <= most_bytes && CeilDiv(rows, tile_rows * 2) >= warps) {
    tile_rows *= 2;
  }
  out.rows = static_cast<int>(tile_rows);
  out.bytes = static_cast<int>(tile_rows * cols * size);
  return out;
}

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_TILE_CUH_
