// What the tile kernels share. A tile is a run of whole short rows; a warp copies it to shared
// memory in 16-byte pieces, whatever the rows' alignment, and `lanes` of its lanes have a row.
#ifndef NV_NORMS_KERNELS_CUDA_TILE_CUH_
#define NV_NORMS_KERNELS_CUDA_TILE_CUH_

#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/staged.cuh"
#include "kernels/cuda/tile_shape.cuh"

namespace nv_norms {
namespace cuda {

constexpr int kTileThreads = 128;
constexpr int kTileWarps = kTileThreads / 32;

// What is known, when a kernel is compiled, of a lane's vectors of a row.
enum class Cut {
  kAtMost,  // there are no more than these
  kItems,   // there are just these, of which the last may lie beyond the row's end
  kRow,     // one lane has the row, which is just these
};

// Of a copy's speed on an H200 forward, gradient, where all kernels had kAtMost 16 numbers, and so:
// bfloat16 3 columns 0.22 -> 0.67, 0.31 -> 0.94, 10 columns 0.84 -> 0.92, 0.76 -> 0.98, 49 columns
// 0.47 -> 0.88, 0.47 -> 0.80, 147 columns 0.34 -> 0.71; float32 3 columns 0.52 -> 0.96, 0.54 ->
// 0.83, 33 columns 0.64 -> 0.83, 0.74 -> 0.97. Of what was known before, rows of whole vectors, no
// more than 1 % either way.
template <int VEC, int ITEMS, Cut CUT>
struct TileCut {
  static constexpr int kVector = VEC;
  static constexpr int kItems = ITEMS;
  static constexpr int kNumbers = VEC * ITEMS;
  static constexpr int kCols = CUT == Cut::kRow ? kNumbers : 0;  // 0: not known

  // Whether item i, which begins with column c, is one of the row's.
  __device__ static __forceinline__ bool Has(int i, int c, int cols) {
    return CUT == Cut::kRow || (CUT == Cut::kItems && i + 1 < ITEMS) || c < cols;
  }
};

template <typename C, typename T>
constexpr bool kTileDirect = C::kVector == kVectorOf<T>;

// One for all cuts of these vectors, for kernels that few call: with one to each cut they would
// take too long to compile.
template <typename C, typename T>
using AnyTileCut =
    TileCut<C::kVector, (kTileDirect<C, T> && C::kNumbers <= 8 ? 8 : 16) / C::kVector,
            Cut::kAtMost>;

template <int VEC, Cut CUT, int... ITEMS, typename Make>
void MakeTileCut(const TileShape& shape, const Make& make) {
  ((shape.vector == VEC && shape.items == ITEMS ? make(TileCut<VEC, ITEMS, CUT>()) : void()), ...);
}

// make(TileCut) of what TileShapeOf says for rows of T.
template <typename T, typename Make>
void WithTileCut(const TileShape& shape, const Make& make) {
  constexpr int kFull = kVectorOf<T>;
  if (shape.vector == kFull) {
    MakeTileCut<kFull, Cut::kItems, 1, 2>(shape, make);
    if constexpr (kFull == 4) MakeTileCut<kFull, Cut::kItems, 3, 4>(shape, make);
  } else if (shape.lanes == 1) {  // an odd number of vectors, or see ShareRow: 16 in 4, 12 in 2
    MakeTileCut<1, Cut::kRow, 1, 3, 5, 7, 9, 11, 13, 15>(shape, make);
    MakeTileCut<2, Cut::kRow, 1, 3, 5, 6, 7>(shape, make);
    if constexpr (kFull == 8) MakeTileCut<4, Cut::kRow, 1, 3, 4>(shape, make);
  } else {  // 9 to 16 numbers: else the lanes would be fewer
    MakeTileCut<1, Cut::kItems, 9, 10, 11, 12, 13, 14, 15, 16>(shape, make);
    MakeTileCut<2, Cut::kItems, 5, 6, 7, 8>(shape, make);
    if constexpr (kFull == 8) MakeTileCut<4, Cut::kItems, 3, 4>(shape, make);
  }
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

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_TILE_CUH_
