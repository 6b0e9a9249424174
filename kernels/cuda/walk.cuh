// How a block of a resident kernel goes through its units of work: tiles come into shared memory by
// asynchronous copies, sums are taken as they arrive, and the output is written from there. What
// does not fit is read a second time, the last first, while it is in the L2 cache. Each thread
// copies and reads its own part of a tile, so there is no barrier between the two.
#ifndef NV_NORMS_KERNELS_CUDA_WALK_CUH_
#define NV_NORMS_KERNELS_CUDA_WALK_CUH_

#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/resident.h"
#include "kernels/cuda/staged.cuh"

namespace nv_norms {
namespace cuda {

#if __CUDA_ARCH__ >= 800

// Where a thread's numbers are in a slot: its vectors of x, then what is beside them. `slot`: the
// thread's first vector.
template <int BESIDE>
struct SlotLayout {
  static constexpr int kItems = TileItems(BESIDE);

  template <typename Slot>
  __device__ __forceinline__ static Slot* X(Slot* slot, int item) {
    return slot + item * kResidentThreads;
  }
  template <typename Slot>
  __device__ __forceinline__ static auto Beside(Slot* slot, int item) {
    using Byte = std::conditional_t<std::is_const_v<Slot>, const char, char>;
    constexpr int kOthers = kVectorBytes - BESIDE;  // no offset of the thread where it is 0
    return reinterpret_cast<Byte*>(slot + kItems * kResidentThreads) +
           (item * kResidentThreads * BESIDE - static_cast<int>(threadIdx.x) * kOthers);
  }
};

// Waits until at most `pending` of this thread's groups of copies are under way, of up to
// kMaxSlots.
__device__ __forceinline__ void WaitForTiles(int pending) {
#define NV_NORMS_WAIT(N) \
  case N:                \
    return WaitForCopies<N>()
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
    NV_NORMS_WAIT(16);
    NV_NORMS_WAIT(17);
    NV_NORMS_WAIT(18);
    default:
      WaitForCopies<0>();
  }
#undef NV_NORMS_WAIT
}

// Asks for the line of memory that the address is in, into the L2 cache.
__device__ __forceinline__ void PrefetchLine(const void* at) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}

// Takes a block (or a warp) through its units. Tiles says where they are:
//   group, groups, units   it has units group, group + groups, ... below units
//   count                  tiles of a unit
//   slots, kept            of shared memory
//   Base(unit)             of the unit's first vector
//   Full(tile), Items(tile)         whether all of this thread's items are there, or how many
//   Load(slot, base, tile, policy)  starts the copies
//   Prefetch(base, tile)            into the L2 cache only
//   ahead                           tiles to prefetch while an exchange is on its way
// Body has
//   Start()                       once, before the first copies
//   Ready()                       once, when the first are under way
//   Begin(unit)                   before a unit's first tile
//   Sum<FULL>(from, tile, items)  of every tile; FULL: all items are there, else the first `items`
//   Send(unit)                    after it, what the others are to know of this part of the unit
//   Receive(unit)                 what all parts of the unit come to
//   Apply<FULL>(from, tile, items)
template <typename Tiles, typename Body>
struct Walk {
  const Tiles& tiles;
  Body& body;
  uint64_t once;
  uint64_t again;

  __device__ __forceinline__ Walk(const Tiles& tiles, Body& body)
      : tiles(tiles), body(body), once(ReadOncePolicy()), again(ReadAgainPolicy()) {}

  // STREAMING: a unit may have more tiles than there are slots. AHEAD: see Resident.
  template <bool STREAMING, bool AHEAD>
  __device__ __forceinline__ void Run() {
    if constexpr (STREAMING) {
      Streaming();
    } else {
      Resident<AHEAD>();
    }
  }

 private:
  __device__ __forceinline__ void Load(int slot, int64_t base, int tile, uint64_t policy) const {
    tiles.Load(slot, base, tile, policy);
    CommitCopies();
  }

  __device__ __forceinline__ void Sum(int slot, int tile) const {
    if (tiles.Full(tile)) {
      if (tiles.active()) body.template Sum<true>(tiles.Slot(slot), tile, Tiles::kItems);
    } else {
      body.template Sum<false>(tiles.Slot(slot), tile, tiles.Items(tile));
    }
  }

  __device__ __forceinline__ void Apply(int slot, int tile) const {
    if (tiles.Full(tile)) {
      if (tiles.active()) body.template Apply<true>(tiles.Slot(slot), tile, Tiles::kItems);
    } else {
      body.template Apply<false>(tiles.Slot(slot), tile, tiles.Items(tile));
    }
  }

  // The unit fits: tiles of the next ones are loaded as soon as there is room. AHEAD: and summed
  // before the unit's output, as far as they are there, so that what was sent has time to arrive.
  template <bool AHEAD>
  __device__ __forceinline__ void Resident() {
    const int slots = tiles.slots();
    int load_unit = tiles.group();
    int load_tile = 0;
    int load_slot = 0;
    int pending = 0;  // tiles in slots or on their way there whose sums are not taken
    int64_t base = load_unit < tiles.units() ? tiles.Base(load_unit) : 0;
    const auto load = [&] {
      if (load_unit >= tiles.units()) return;
      Load(load_slot, base, load_tile, once);
      if (++load_slot == slots) load_slot = 0;
      ++pending;
      if (++load_tile == tiles.count) {
        load_tile = 0;
        load_unit += tiles.groups();
        if (load_unit < tiles.units()) base = tiles.Base(load_unit);
      }
    };
    // What memory is to do while the blocks wait for each other: tiles behind those that are
    // loaded, which the L2 cache has when their turn comes.
    const auto prefetch = [&] {
      int unit = load_unit;
      int tile = load_tile;
#pragma unroll 1
      for (int i = 0; i < tiles.ahead() && unit < tiles.units(); ++i) {
        tiles.Prefetch(tiles.Base(unit), tile);
        if (++tile == tiles.count) {
          tile = 0;
          unit += tiles.groups();
        }
      }
    };
    int unasked = slots;
    const auto fill = [&](int count) {
#pragma unroll 1
      for (; count > 0 && unasked > 0; --count, --unasked) load();
    };
    body.Start();
    fill(kWindow);
    body.Ready();
    int sum_slot = 0;
    int apply_slot = 0;
    int summed = 0;  // tiles of the unit
    const auto sum = [&](int unit, int end) {
      if (summed == 0) body.Begin(unit);
#pragma unroll 1
      for (; summed < end; ++summed) {
        WaitForTiles(--pending);
        Sum(sum_slot, summed);
        fill(1);
        if (++sum_slot == slots) sum_slot = 0;
      }
      if (summed == tiles.count) body.Send(unit);
    };
    const int ahead = AHEAD ? min(tiles.count, slots - tiles.count) : 0;
    for (int unit = tiles.group(); unit < tiles.units(); unit += tiles.groups()) {
      if (summed < tiles.count) sum(unit, tiles.count);
      summed = 0;
      fill(unasked);
      prefetch();
      if (ahead > 0 && unit + tiles.groups() < tiles.units()) sum(unit + tiles.groups(), ahead);
      body.Receive(unit);
      for (int tile = 0; tile < tiles.count; ++tile) {
        Apply(apply_slot, tile);
        if (++apply_slot == slots) apply_slot = 0;
        load();
      }
    }
  }

  // It does not: the first tiles are kept, the others go through the remaining slots twice.
  __device__ __forceinline__ void Streaming() {
    const int kept = tiles.kept();
    const int window = tiles.slots() - kept;
    const int rest = tiles.count - kept;  // window or more
    int64_t base = tiles.Base(tiles.group());
    int asked = 0;  // of the first unit's tiles that go into slots
    const auto ask = [&](int count) {
      const int end = min(kept + window, asked + count);
#pragma unroll 1
      for (; asked < end; ++asked) Load(asked, base, asked, asked < kept ? once : again);
    };
    body.Start();
    ask(window);
    body.Ready();
    for (int unit = tiles.group(); unit < tiles.units(); unit += tiles.groups()) {
      const bool more = unit + tiles.groups() < tiles.units();
      body.Begin(unit);
      for (int tile = 0; tile < kept; ++tile) {
        WaitForTiles(asked - 1 - tile);
        Sum(tile, tile);
        ask(1);
      }
      int slot = 0;
      for (int i = 0; i < rest; ++i) {
        WaitForTiles(min(window - 1, rest - 1 - i));
        Sum(kept + slot, kept + i);
        if (i + window < rest) {
          Load(kept + slot, base, kept + i + window, again);
        }
        if (++slot == window) slot = 0;
      }
      body.Send(unit);
      const int64_t next = more ? tiles.Base(unit + tiles.groups()) : 0;
#pragma unroll 1
      for (int i = 0; more && i < tiles.ahead(); ++i) tiles.Prefetch(next, i);
      body.Receive(unit);
      for (int i = rest - 1; i >= 0; --i) {
        if (--slot < 0) slot = window - 1;
        if (i < rest - window) WaitForTiles(min(window - 1, i));
        Apply(kept + slot, kept + i);
        if (i >= window) Load(kept + slot, base, kept + i - window, once);
      }
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

#endif  // NV_NORMS_KERNELS_CUDA_WALK_CUH_
