// The resident column kernels: a group of blocks that run at the same time has a strip of a
// sample's columns, reads it once into its shared memory, exchanges sums, and writes the output
// from there. What does not fit is read a second time, the last first, while it is in the L2 cache.
//
// x[n] is [rows, width], in vectors of 16 bytes; a unit of work is `vectors` of these columns of
// one sample. Groups of blocks take units in turn. The rows are dealt out to the blocks of a group,
// a block's rows are cut into tiles of TileItems(tensors) * row_step rows, and a thread has the
// same vector of columns in every tile. Tiles come asynchronously, each thread waits only for its
// own part.
#ifndef NV_NORMS_KERNELS_CUDA_COLUMNS_RESIDENT_CUH_
#define NV_NORMS_KERNELS_CUDA_COLUMNS_RESIDENT_CUH_

#include "kernels/cuda/columns_strips.h"
#include "kernels/cuda/numbers.cuh"

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

// The statistic of a column, among those of the strip.
__device__ __forceinline__ int StatOf(const StripShape& shape, int column) {
  if (shape.members() == 1) return column;
  return (shape.fold == 1 ? column : column % shape.channels) / shape.depth;
}

#if __CUDA_ARCH__ >= 800

__device__ __forceinline__ void CopyAsync(uint4* to, const uint4* from, uint64_t policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(to))),
               "l"(from), "l"(policy)
               : "memory");
}

__device__ __forceinline__ void CommitCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most `pending` of this thread's groups of copies are under way.
__device__ __forceinline__ void WaitForCopies(int pending) {
#define NV_NORMS_WAIT(N)                                      \
  case N:                                                     \
    asm volatile("cp.async.wait_group " #N ";" ::: "memory"); \
    break
  switch (pending) {
    NV_NORMS_WAIT(1);
    NV_NORMS_WAIT(2);
    NV_NORMS_WAIT(3);
    NV_NORMS_WAIT(4);
    NV_NORMS_WAIT(5);
    NV_NORMS_WAIT(6);
    NV_NORMS_WAIT(7);
    NV_NORMS_WAIT(8);
    NV_NORMS_WAIT(9);
    NV_NORMS_WAIT(10);
    NV_NORMS_WAIT(11);
    NV_NORMS_WAIT(12);
    NV_NORMS_WAIT(13);
    NV_NORMS_WAIT(14);
    NV_NORMS_WAIT(15);
    default:
      asm volatile("cp.async.wait_group 0;" ::: "memory");
  }
#undef NV_NORMS_WAIT
}

__device__ __forceinline__ uint64_t ReadOncePolicy() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

__device__ __forceinline__ uint64_t ReadAgainPolicy() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// Takes a block through its units. Body has
//   Start()                       once, before the first copies
//   Ready()                       once, after them
//   Begin(unit)                   before a unit's first tile
//   Sum<FULL>(from, tile, items)  of every tile; FULL: all items are rows, else the first `items`
//   Exchange(unit)                the group's sums
//   Apply<FULL>(from, tile, items)
template <int TENSORS, typename Body>
struct Walk {
  static constexpr int kItems = TileItems(TENSORS);

  const StripShape& shape;
  const StripPlace& place;
  uint4* ring;                 // the thread's first vector
  const uint4* from[TENSORS];  // the same in the tensors
  Body& body;
  uint64_t once;
  uint64_t again;
  int step;        // vectors from an item to the next
  int tiles;       // of the block
  int full_tiles;  // of them have all their rows

  __device__ __forceinline__ Walk(const StripShape& shape, const StripPlace& place, uint4* ring,
                                  const void* const (&tensors)[TENSORS], Body& body)
      : shape(shape), place(place), ring(ring + threadIdx.x), body(body) {
    const int64_t at = static_cast<int64_t>(place.begin + place.row) * shape.width + place.vector;
#pragma unroll
    for (int i = 0; i < TENSORS; ++i) from[i] = static_cast<const uint4*>(tensors[i]) + at;
    once = ReadOncePolicy();
    again = ReadAgainPolicy();
    step = shape.row_step * shape.width;
    const int tile_rows = shape.row_step * kItems;
    tiles = (place.length + tile_rows - 1) / tile_rows;
    full_tiles = place.length / tile_rows;
  }

  __device__ __forceinline__ uint4* Slot(int slot) const {
    return ring + slot * (kItems * TENSORS * kResidentThreads);
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
#pragma unroll
    for (int i = 0; i < TENSORS; ++i) {
      const uint4* at = from[i] + (base + static_cast<int64_t>(tile) * (kItems * step));
#pragma unroll
      for (int j = 0; j < kItems; ++j) {
        if (FULL || j < items) CopyAsync(to + (j * TENSORS + i) * kResidentThreads, at, policy);
        at += step;
      }
    }
  }

  __device__ __forceinline__ void Load(int slot, int64_t base, int tile, uint64_t policy) const {
    if (tile < full_tiles) {
      if (place.active) LoadItems<true>(Slot(slot), base, tile, kItems, policy);
    } else {
      LoadItems<false>(Slot(slot), base, tile, Items(tile), policy);
    }
    CommitCopies();
  }

  __device__ __forceinline__ void Sum(int slot, int tile) const {
    if (tile < full_tiles) {
      if (place.active) body.template Sum<true>(Slot(slot), tile, kItems);
    } else {
      body.template Sum<false>(Slot(slot), tile, Items(tile));
    }
  }

  __device__ __forceinline__ void Apply(int slot, int tile) const {
    if (tile < full_tiles) {
      if (place.active) body.template Apply<true>(Slot(slot), tile, kItems);
    } else {
      body.template Apply<false>(Slot(slot), tile, Items(tile));
    }
  }

  __device__ __forceinline__ int64_t BaseOf(int unit) const {
    return StripUnit(shape, unit).Base(shape);
  }

  // The unit fits: tiles of the next ones are loaded as soon as there is room.
  __device__ __forceinline__ void Resident() {
    int load_unit = place.group;
    int load_tile = 0;
    int load_slot = 0;
    int pending = 0;  // tiles in slots or on their way there whose sums are not taken
    int64_t base = load_unit < shape.units ? BaseOf(load_unit) : 0;
    const auto load = [&] {
      if (load_unit >= shape.units) return;
      Load(load_slot, base, load_tile, once);
      if (++load_slot == shape.slots) load_slot = 0;
      ++pending;
      if (++load_tile == tiles) {
        load_tile = 0;
        load_unit += shape.groups;
        if (load_unit < shape.units) base = BaseOf(load_unit);
      }
    };
    body.Start();
#pragma unroll 1
    for (int slot = 0; slot < shape.slots; ++slot) load();
    body.Ready();
    int sum_slot = 0;
    int apply_slot = 0;
    for (int unit = place.group; unit < shape.units; unit += shape.groups) {
      body.Begin(unit);
      for (int tile = 0; tile < tiles; ++tile) {
        WaitForCopies(--pending);
        Sum(sum_slot, tile);
        if (++sum_slot == shape.slots) sum_slot = 0;
      }
      body.Exchange(unit);
      for (int tile = 0; tile < tiles; ++tile) {
        Apply(apply_slot, tile);
        if (++apply_slot == shape.slots) apply_slot = 0;
        load();
      }
    }
  }

  // It does not: the first tiles are kept, the others go through the remaining slots twice.
  __device__ __forceinline__ void Streaming() {
    const int kept = shape.kept;
    const int window = shape.slots - kept;
    const int rest = tiles - kept;  // window or more
    int64_t base = BaseOf(place.group);
    body.Start();
    for (int tile = 0; tile < kept; ++tile) Load(tile, base, tile, once);
    for (int i = 0; i < window; ++i) Load(kept + i, base, kept + i, again);
    body.Ready();
    for (int unit = place.group; unit < shape.units; unit += shape.groups) {
      const bool more = unit + shape.groups < shape.units;
      body.Begin(unit);
      for (int tile = 0; tile < kept; ++tile) {
        WaitForCopies(kept + window - 1 - tile);
        Sum(tile, tile);
      }
      int slot = 0;
      for (int i = 0; i < rest; ++i) {
        WaitForCopies(min(window - 1, rest - 1 - i));
        Sum(kept + slot, kept + i);
        if (i + window < rest) {
          Load(kept + slot, base, kept + i + window, again);
        }
        if (++slot == window) slot = 0;
      }
      body.Exchange(unit);
      for (int i = rest - 1; i >= 0; --i) {
        if (--slot < 0) slot = window - 1;
        if (i < rest - window) WaitForCopies(min(window - 1, i));
        Apply(kept + slot, kept + i);
        if (i >= window) Load(kept + slot, base, kept + i - window, once);
      }
      const int64_t next = more ? BaseOf(unit + shape.groups) : 0;
      for (int tile = 0; tile < kept; ++tile) {
        Apply(tile, tile);
        if (more) Load(tile, next, tile, once);
      }
      for (int i = 0; more && i < window; ++i) {
        Load(kept + i, next, kept + i, again);
      }
      base = next;
    }
  }
};

#endif  // __CUDA_ARCH__ >= 800

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_COLUMNS_RESIDENT_CUH_
