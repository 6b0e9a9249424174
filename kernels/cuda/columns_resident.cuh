// The resident column kernels: a group of blocks that run at the same time has a strip of a
// sample's columns, which it walks through (walk.cuh).
//
// x[n] is [rows, width], in vectors of 16 bytes; a unit of work is `vectors` of these columns of
// one sample. Groups of blocks take units in turn. The rows are dealt out to the blocks of a group,
// a block's rows are cut into tiles of TileItems(beside) * row_step rows, and a thread has the same
// vector of columns in every tile.
#ifndef NV_NORMS_KERNELS_CUDA_COLUMNS_RESIDENT_CUH_
#define NV_NORMS_KERNELS_CUDA_COLUMNS_RESIDENT_CUH_

#include "kernels/cuda/columns_strips.h"
#include "kernels/cuda/walk.cuh"

namespace nv_norms {
namespace cuda {

// Where a block and a thread are.
struct StripPlace {
  int rank;   // of the block in its group
  int group;  // of the block
  int begin;  // the block's first row
  int length;
  int row;  // the thread's, in the first step of a tile
  int vector;
  bool active;

  __device__ __forceinline__ explicit StripPlace(const StripShape& shape) {
    rank = blockIdx.x % shape.blocks;
    group = blockIdx.x / shape.blocks;
    begin = rank * shape.share + min(rank, shape.extra);
    length = shape.LengthOf(rank);
    row = threadIdx.x / shape.vectors;
    vector = threadIdx.x % shape.vectors;
    active = row < shape.row_step;
  }
};

// A unit: a strip of a sample.
struct StripUnit {
  int64_t n;
  int strip;

  __device__ __forceinline__ StripUnit(const StripShape& shape, int unit) {
    n = unit / shape.strips;
    strip = unit % shape.strips;
  }
  // Of the unit's first vector.
  __device__ __forceinline__ int64_t Base(const StripShape& shape) const {
    return n * shape.rows * shape.width + static_cast<int64_t>(strip) * shape.vectors;
  }
};

// Channel of the tensor that a column of a strip belongs to.
__device__ __forceinline__ int ChannelOf(const StripShape& shape, int strip, int column) {
  return shape.fold == 1 ? strip * shape.columns + column : column % shape.channels;
}

// Its channel among those of the strip.
__device__ __forceinline__ int ChannelInStrip(const StripShape& shape, int column) {
  return shape.fold == 1 ? column : column % shape.channels;
}

// The statistic of a column, among those of the strip.
__device__ __forceinline__ int StatOf(const StripShape& shape, int column) {
  if (shape.members() == 1) return column;
  return ChannelInStrip(shape, column) / shape.depth;
}

// The statistics of neighbouring columns, one after the other: divisions for the first alone.
struct StatsOfNeighbours {
  int stat;
  int left;     // columns of it, from this one on
  int to_wrap;  // columns to the strip's first statistic again, where several rows are one

  __device__ __forceinline__ StatsOfNeighbours(const StripShape& shape, int column) {
    const int channel = ChannelInStrip(shape, column);
    stat = channel / shape.depth;
    left = (stat + 1) * shape.depth - channel;
    to_wrap = shape.fold == 1 ? shape.columns : shape.channels - channel;
  }
  __device__ __forceinline__ void Advance(const StripShape& shape) {
    if (--to_wrap == 0) {
      stat = 0;
      left = shape.depth;
      to_wrap = shape.channels;
    } else if (--left == 0) {
      ++stat;
      left = shape.depth;
    }
  }
};

// The column among the sums of members that a statistic has: g the statistic, m < members().
__device__ __forceinline__ int ColumnOfMember(const StripShape& shape, int g, int m) {
  const int first = g * shape.depth;
  if (shape.fold == 1) return first + m;
  return first + m / shape.depth * shape.channels + m % shape.depth;
}

// Where a row of sums that threads leave has a column: neighbouring threads' numbers are side by
// side, so that they are in different banks. VEC: columns of a thread.
template <int VEC>
__device__ __forceinline__ int SpreadColumn(const StripShape& shape, int column) {
  return column % VEC * shape.vectors + column / VEC;
}

// Parameters of a tile's rows, where they belong to rows; all are asked for before one is used.
template <int ITEMS>
__device__ __forceinline__ void LoadRows(const StripShape& shape, const StripPlace& place,
                                         DType type, const void* from, int tile, int items,
                                         float absent, float (&to)[ITEMS]) {
#pragma unroll
  for (int j = 0; j < ITEMS; ++j) to[j] = absent;
  if (from == nullptr) return;
  Typed<float>::Call(type, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    const int row = place.begin + place.row + tile * ITEMS * shape.row_step;
    const T* at = static_cast<const T*>(from) + row * shape.s_stride;
#pragma unroll
    for (int j = 0; j < ITEMS; ++j) {
      if (j < items) to[j] = To<float>::Of(at[j * shape.row_step * shape.s_stride]);
    }
  });
}

#if __CUDA_ARCH__ >= 800

// The tiles of a block's units, for Walk. BESIDE: bytes of dy beside a vector of x, or 0.
template <int BESIDE>
struct StripTiles : SlotLayout<BESIDE> {
  static constexpr int kItems = TileItems(BESIDE);

  const StripShape& shape;
  const StripPlace& place;
  uint4* ring;     // the thread's first vector
  const uint4* x;  // the same in the tensors
  const char* dy;
  int step;   // vectors from an item to the next
  int count;  // of the block
  int full;   // of them have all their rows

  __device__ __forceinline__ StripTiles(const StripShape& shape, const StripPlace& place,
                                        uint4* ring, const void* x_tensor, const void* dy_tensor)
      : shape(shape), place(place), ring(ring + threadIdx.x) {
    const int64_t at = static_cast<int64_t>(place.begin + place.row) * shape.width + place.vector;
    x = static_cast<const uint4*>(x_tensor) + at;
    dy = static_cast<const char*>(dy_tensor) + at * BESIDE;
    step = shape.row_step * shape.width;
    const int tile_rows = shape.row_step * kItems;
    count = (place.length + tile_rows - 1) / tile_rows;
    full = place.length / tile_rows;
  }

  __device__ __forceinline__ int group() const { return place.group; }
  __device__ __forceinline__ int groups() const { return shape.groups; }
  __device__ __forceinline__ int units() const { return shape.units; }
  __device__ __forceinline__ int slots() const { return shape.slots; }
  __device__ __forceinline__ int kept() const { return shape.kept; }
  __device__ __forceinline__ int ahead() const { return shape.ahead; }
  __device__ __forceinline__ bool active() const { return place.active; }
  __device__ __forceinline__ bool Full(int tile) const { return tile < full; }
  __device__ __forceinline__ int64_t Base(int unit) const {
    return StripUnit(shape, unit).Base(shape);
  }
  __device__ __forceinline__ uint4* Slot(int slot) const {
    return ring + slot * (TileBytes(BESIDE) / kVectorBytes);
  }

  // Rows of this thread in a tile: the first so many of its items.
  __device__ __forceinline__ int Items(int tile) const {
    const int left = place.active ? place.length - place.row - tile * kItems * shape.row_step : 0;
    int items = 0;
#pragma unroll
    for (int j = 0; j < kItems; ++j) items += left > j * shape.row_step;
    return items;
  }

  template <bool FULL>
  __device__ __forceinline__ void LoadItems(uint4* to, int64_t base, int tile, int items,
                                            uint64_t policy) const {
    const int64_t first = base + static_cast<int64_t>(tile) * (kItems * step);
    const uint4* at = x + first;
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
      if (FULL || j < items) CopyAsync<kVectorBytes>(this->X(to, j), at, policy);
      at += step;
    }
    if constexpr (BESIDE > 0) {
      const char* at = dy + first * BESIDE;
#pragma unroll
      for (int j = 0; j < kItems; ++j) {
        if (FULL || j < items) CopyAsync<BESIDE>(this->Beside(to, j), at, policy);
        at += step * BESIDE;
      }
    }
  }

  // A thread asks for the lines that begin in its vectors, or that its row of the strip begins in.
  template <int BYTES>
  __device__ __forceinline__ void PrefetchItems(const char* at, int items) const {
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
      const bool begins = place.vector == 0 || (reinterpret_cast<uintptr_t>(at) & 127) < BYTES;
      if (begins && j < items) PrefetchLine(at);
      at += step * BYTES;
    }
  }

  __device__ __forceinline__ void Prefetch(int64_t base, int tile) const {
    const int items = tile < full ? (place.active ? kItems : 0) : Items(tile);
    const int64_t first = base + static_cast<int64_t>(tile) * (kItems * step);
    PrefetchItems<kVectorBytes>(reinterpret_cast<const char*>(x + first), items);
    if constexpr (BESIDE > 0) PrefetchItems<BESIDE>(dy + first * BESIDE, items);
  }

  __device__ __forceinline__ void Load(int slot, int64_t base, int tile, uint64_t policy) const {
    if (tile < full) {
      if (place.active) LoadItems<true>(Slot(slot), base, tile, kItems, policy);
    } else {
      LoadItems<false>(Slot(slot), base, tile, Items(tile), policy);
    }
  }
};

#endif  // __CUDA_ARCH__ >= 800

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_COLUMNS_RESIDENT_CUH_
