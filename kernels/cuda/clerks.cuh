// How the warps of a team of blocks (all of them resident, a cooperative launch) that has a row at
// a time find out what they need of the whole row. Most warps of a block go through rows: they
// write what they found out of a row's numbers, a float4 to a thread, into shared memory and go on.
// The last warps of a block are its clerks, who take the rows in turn: a clerk merges what the
// block's threads wrote, posts it to the team's other blocks through global memory, collects their
// posts and leaves what follows for the row on a line in shared memory, where the other warps look
// for it some rows later. There is no barrier over a block, and mbarriers count who has arrived.
#ifndef NV_NORMS_KERNELS_CUDA_CLERKS_CUH_
#define NV_NORMS_KERNELS_CUDA_CLERKS_CUH_

#include <cstdint>

#include "kernels/cuda/ring.cuh"
#include "kernels/cuda/team.cuh"

namespace nv_norms {
namespace cuda {

// What follows for the numbers of a row.
struct alignas(16) RowLine {
  float4 first;
  float4 second;
};

constexpr int kMostDeskSlots = kMostLag + 1;
constexpr int64_t kDeskBytes = sizeof(float4);  // of a thread and row

struct TeamDesk {
  uint64_t written[kMostDeskSlots];  // mbarrier: all sums of a row are there
  uint64_t ready[kMostDeskSlots];    // mbarrier: the line is there
  RowLine lines[kMostDeskSlots];
};

// Whose turn it is among the slots of the desk, or the stages of the ring.
struct Turn {
  int slot = 0;
  unsigned parity = 0;  // of how many times all slots have been used

  __device__ __forceinline__ void Next(int slots) {
    if (++slot == slots) {
      slot = 0;
      parity ^= 1;
    }
  }
};

__device__ __forceinline__ unsigned SharedAddress(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ void InitBarrier(uint64_t* barrier, int arrivals) {
#if __CUDA_ARCH__ >= 800
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(SharedAddress(barrier)), "r"(arrivals)
               : "memory");
#endif
}

__device__ __forceinline__ void ArriveAt(uint64_t* barrier) {
#if __CUDA_ARCH__ >= 800
  asm volatile(
      "{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(SharedAddress(barrier))
      : "memory");
#endif
}

__device__ __forceinline__ void WaitAt(const uint64_t* barrier, unsigned parity) {
#if __CUDA_ARCH__ >= 800
  uint32_t complete = 0;
  while (complete == 0) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
#else
    asm volatile(
        "{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
#endif
        : "=r"(complete)
        : "r"(SharedAddress(barrier)), "r"(parity)
        : "memory");
  }
#endif
}

// Warps that go through rows.
__device__ __forceinline__ int Workers(const RingShape& shape) {
  return static_cast<int>(blockDim.x) / 32 - shape.clerks;
}

__device__ __forceinline__ bool IsClerk(const RingShape& shape) {
  return static_cast<int>(threadIdx.x) >= 32 * Workers(shape);
}

// By one thread; the others go to the desk after the next barrier of the block.
__device__ __forceinline__ void OpenDesk(const RingShape& shape, TeamDesk* desk) {
  for (int i = 0; i <= shape.lag; ++i) {
    InitBarrier(desk->written + i, 32 * Workers(shape));
    InitBarrier(desk->ready + i, 1);
  }
}

// By a warp that goes through rows, which does not wait.
__device__ __forceinline__ void WriteSums(const RingShape& shape, TeamDesk* desk, float4* sums,
                                          const Turn& turn, const float4& mine) {
  sums[turn.slot * 32 * Workers(shape) + threadIdx.x] = mine;
  ArriveAt(desk->written + turn.slot);
}

// What the block's threads wrote, to a clerk: thread w * 32 + lane's. 0 where there is none.
constexpr int kMostWorkerWarps = kRingThreads / 32;
__device__ __forceinline__ void ReadSums(const RingShape& shape, const TeamDesk& desk,
                                         const float4* sums, const Turn& turn,
                                         float4 (&out)[kMostWorkerWarps]) {
  const int warps = Workers(shape);
  const float4* from = sums + turn.slot * warps * 32 + threadIdx.x % 32;
  WaitAt(desk.written + turn.slot, turn.parity);
#pragma unroll
  for (int w = 0; w < kMostWorkerWarps; ++w) {
    out[w] = w < warps ? from[w * 32] : make_float4(0, 0, 0, 0);
  }
}

// By a clerk, for all lanes' equal line.
__device__ __forceinline__ void LeaveLine(TeamDesk* desk, int slot, const RowLine& line) {
  if (threadIdx.x % 32 == 0) {
    desk->lines[slot] = line;
    ArriveAt(desk->ready + slot);
  }
  __syncwarp();
}

// Row `step` of a team. There are not so many as to want more bits.
__device__ __forceinline__ int64_t RowOf(const RingPlace& place, int step) {
  return static_cast<int>(place.team) + step * static_cast<int>(place.teams);
}

// Rows of a team.
__device__ __forceinline__ int StepsOf(const RingPlace& place, int64_t rows) {
  const int teams = static_cast<int>(place.teams);
  return static_cast<int>((rows - place.team + teams - 1) / teams);
}

// The rows of a clerk, one by one: use(row, turn).
template <typename F>
__device__ __forceinline__ void ForClerk(const RingShape& shape, const RingPlace& place,
                                         int64_t rows, const F& use) {
  int due = static_cast<int>(threadIdx.x) / 32 - Workers(shape);  // rows until the clerk's next
  Turn turn;
  for (int64_t row = place.team; row < rows; row += place.teams) {
    if (due == 0) {
      use(row, turn);
      due = shape.clerks;
    }
    --due;
    turn.Next(shape.lag + 1);
  }
}

// What a clerk does: sums_of(turn) are the block's, post(row, sums) tells the
// team, collect(row) are the team's sums, leave(row, slot, of), with the sums that of() is, its
// line.
template <typename SumsOf, typename Post, typename Collect, typename Leave>
__device__ __forceinline__ void Serve(const RingShape& shape, const RingPlace& place, int64_t rows,
                                      const SumsOf& sums_of, const Post& post,
                                      const Collect& collect, const Leave& leave) {
  if (shape.blocks == 1) {
    ForClerk(shape, place, rows, [&](int64_t row, const Turn& turn) {
      leave(row, turn.slot, [&] { return sums_of(turn); });
    });
    return;
  }
  int64_t posted = -1;  // a row that is to be collected
  int posted_slot = 0;
  ForClerk(shape, place, rows, [&](int64_t row, const Turn& turn) {
    post(row, sums_of(turn));
    int slot = turn.slot;
    if (shape.ahead) {
      const int64_t before = posted;
      const int before_slot = posted_slot;
      posted = row;
      posted_slot = slot;
      if (before < 0) return;
      row = before;
      slot = before_slot;
    }
    leave(row, slot, [&] { return collect(row); });
  });
  if (posted >= 0) leave(posted, posted_slot, [&] { return collect(posted); });
}

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_CLERKS_CUH_
