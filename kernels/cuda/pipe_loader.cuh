// The warps of forward_columns_pipe.cu that load tiles: those that stay until they are written, and
// those that are read twice.
#ifndef NV_NORMS_KERNELS_CUDA_PIPE_LOADER_CUH_
#define NV_NORMS_KERNELS_CUDA_PIPE_LOADER_CUH_

#include "kernels/cuda/pipe_places.cuh"

namespace nv_norms {
namespace cuda {

#if __CUDA_ARCH__ >= 900

struct PipeLoader : PipePlaces {
  // By a warp.
  __device__ __forceinline__ void Load(int slot, int64_t base, int tile, uint64_t policy) const {
    const int lane = threadIdx.x % 32;
    const int row = lane / shape.vectors;
    const int step = 32 / shape.vectors;
    const int64_t hop = static_cast<int64_t>(step) * shape.width;
    const uint4* at = static_cast<const uint4*>(buffers.x) + base +
                      static_cast<int64_t>(RowOf(tile) + row) * shape.width + lane % shape.vectors;
    uint4* to = tiles + slot * kTileVectors + lane;
    const int rows = RowsOf(tile);
    if (rows == shape.tile_rows) {
#pragma unroll 4
      for (int j = 0; j < kTileVectors / 32; ++j) {
        CopyAsync<kVectorBytes>(to + j * 32, at, policy);
        at += hop;
      }
    } else {
#pragma unroll 1
      for (int r = row; r < rows; r += step) {
        CopyAsync<kVectorBytes>(to, at, policy);
        at += hop;
        to += 32;
      }
    }
    Full(slot).ArriveAfterCopies();
  }

  // The tiles that stay. wait_for_all: until all blocks have cleared their posts; it takes some
  // 3 us, and 15 when all slots are on their way. 8 x 32^3 x 256, float32: 180 us, 173 when only
  // the first tiles are. Of a unit that is streamed the first sums take longer than that.
  template <typename Wait>
  __device__ __forceinline__ void LoadStaying(const Wait& wait_for_all) const {
    const uint64_t policy = ReadOncePolicy();
    const int before = shape.streamed > 0 ? shape.tiles - shape.streamed : kTilesBeforeAll;
    int loaded = 0;
    PipeTurn turn;
    PipeTurn arrived;
#pragma unroll 1
    for (int unit = group; unit < shape.units; unit += shape.groups) {
      const int64_t base = BaseOf(unit);
#pragma unroll 1
      for (int tile = shape.streamed; tile < shape.tiles; ++tile) {
        if (loaded == before) wait_for_all();
        if (turn.lap > 0) Empty(turn.slot).Wait(turn.lap - 1 & 1);
        if (loaded >= shape.flight) {
          Full(arrived.slot).Wait(arrived.lap & 1);
          arrived.Next(stay_slots());
        }
        Load(turn.slot, base, tile, policy);
        turn.Next(stay_slots());
        ++loaded;
      }
    }
    if (loaded <= before) wait_for_all();
  }

  __device__ __forceinline__ void LoadStreamed(int unit, int first_slot, bool backwards,
                                               uint64_t policy, PipeTurn* turn) const {
    const int64_t base = BaseOf(unit);
#pragma unroll 1
    for (int i = 0; i < shape.streamed; ++i) {
      const int slot = first_slot + turn->slot;
      if (turn->lap > 0) Empty(slot).Wait(turn->lap - 1 & 1);
      Load(slot, base, backwards ? shape.streamed - 1 - i : i, policy);
      turn->Next(shape.stream_slots);
    }
  }

  template <typename Wait>
  __device__ __forceinline__ void Stream(const Wait& wait_for_all) const {
    const uint64_t policy = KeepPolicy();
    PipeTurn turn;
    int unit = group;
    if (shape.streamed > 0) LoadStreamed(unit, stay_slots(), false, policy, &turn);
    wait_for_all();
    if (shape.streamed == 0) return;
#pragma unroll 1
    for (unit += shape.groups; unit < shape.units; unit += shape.groups) {
      LoadStreamed(unit, stay_slots(), false, policy, &turn);
    }
  }

  // From the last to the first: the last are in the L2 cache.
  __device__ __forceinline__ void Reread() const {
    const uint64_t policy = ReadOncePolicy();
    PipeTurn turn;
    unsigned round = 0;
#pragma unroll 1
    for (int unit = group; unit < shape.units; unit += shape.groups, ++round) {
      LinesFull(round).Wait(HalfParity(round));
      __syncwarp();
      if (threadIdx.x % 32 == 0) LinesEmpty(round).Arrive();
      LoadStreamed(unit, reread_slots(), true, policy, &turn);
    }
  }
};

#endif  // __CUDA_ARCH__ >= 900

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_PIPE_LOADER_CUH_
