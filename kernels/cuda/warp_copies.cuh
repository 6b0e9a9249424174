// How a warp's columns of a row come into a ring of stages in shared memory.
#ifndef NV_NORMS_KERNELS_CUDA_WARP_COPIES_CUH_
#define NV_NORMS_KERNELS_CUDA_WARP_COPIES_CUH_

#include "kernels/cuda/pipe.cuh"
#include "kernels/cuda/ring.cuh"

namespace nv_norms {
namespace cuda {

#if __CUDA_ARCH__ >= 900
constexpr bool kBulkCopies = true;
#else
constexpr bool kBulkCopies = false;
#endif

// How many rows a block has had: of the next one the stage, and by turns 0 and 1 each time the ring
// comes around.
struct RingTurn {
  unsigned rows = 0;

  __device__ __forceinline__ int Stage() const { return static_cast<int>(rows % kBlockStages); }
  __device__ __forceinline__ unsigned Parity() const { return rows / kBlockStages % 2; }
};

// A row of a tensor and its place in a stage; BYTES: of a vector.
template <int BYTES>
struct RowCopy {
  char* to;
  const void* from;

  __device__ __forceinline__ char* To(int vector) const { return to + vector * BYTES; }
  __device__ __forceinline__ const char* From(int vector) const {
    return static_cast<const char*>(from) + vector * BYTES;
  }
};

// Thread by thread: each copies its own items. STAGES: of the ring, at most.
template <bool BULK, int ITEMS, int STAGES = kBlockStages>
struct WarpCopies {
  static constexpr int kGates = 1;  // words of shared memory

  // works: whether this warp copies.
  __device__ __forceinline__ explicit WarpCopies(uint64_t*, bool = true) {}
  // All tensors' part of a row; End, too, where there is no row.
  template <int... BYTES>
  __device__ __forceinline__ void Start(const RingShape& shape, const RingPlace& place, int,
                                        const RowCopy<BYTES>&... copies) const {
    ForItems<ITEMS>(place, shape.items, [&](int, int i, bool) {
      (CopyAsync<BYTES>(copies.To(i), copies.From(i)), ...);
    });
  }
  __device__ __forceinline__ void End() const { CommitCopies(); }
  // For a stage's row, by turns of parity 0 and 1 each time the ring comes around, behind which
  // `pending` more are on their way.
  __device__ __forceinline__ void Wait(int, unsigned, int pending = kBlockStages - 1) const {
    WaitForCopies(pending);
  }
};

#if __CUDA_ARCH__ >= 900

// At once: a lane asks for all of the warp's columns, which lie side by side, and a gate counts the
// bytes that have come. They are the last to leave the L2 cache, so that what is written leaves it
// first, in order. Microseconds thread by thread, then so: forward, float32 65536 x 4096 525, 504,
// 16384 x 16384 529, 512, 32768 x 2048 134.5, 131.5; bfloat16 32768 x 8192 264, 256, 65536 x 4096
// 264, 261, 32768 x 2048 71.4, 71.6; gradient, float32 32768 x 2048 213, 210. It is the policy that
// counts: with that of other loads (evict_normal) 65536 x 4096 took 524 at once, with evict_first
// 557. An operation that reads y next takes as long as before.
template <int ITEMS, int STAGES>
struct WarpCopies<true, ITEMS, STAGES> {
  static constexpr int kGates = kRingThreads / 32 * STAGES;

  uint64_t* all;  // [warps][stages]

  __device__ __forceinline__ explicit WarpCopies(uint64_t* gates, bool works = true) : all(gates) {
    if (works && threadIdx.x % 32 == 0) {
      for (int s = 0; s < STAGES; ++s) At(s).Init(1);
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncwarp();
  }
  template <int... BYTES>
  __device__ __forceinline__ void Start(const RingShape& shape, const RingPlace& place, int stage,
                                        const RowCopy<BYTES>&... copies) const {
    AwaitReads();
    if (threadIdx.x % 32 != 0) return;
    const int vectors = max(0, min(32 * shape.items, place.count - place.first));  // the warp's
    const Gate gate = At(stage);
    gate.ArriveExpecting(vectors * (BYTES + ...));
    if (vectors == 0) return;
    const uint64_t policy = KeepPolicy();
    (gate.Copy(copies.To(place.first), copies.From(place.first), vectors * BYTES, policy), ...);
  }
  __device__ __forceinline__ void End() const {}
  __device__ __forceinline__ void Wait(int stage, unsigned parity, int = 0) const {
    At(stage).Wait(parity);
  }

 private:
  // Until all lanes have read what the stage held. A barrier alone is not enough: it orders reads
  // and other threads' writes, not those of the unit that copies, which overtook reads that waited
  // in line behind a thousand loads of parameters (float32 533 x 16385: numbers of the row that is
  // in the stage next, in one launch of 400).
  __device__ __forceinline__ static void AwaitReads() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncwarp();
  }
  __device__ __forceinline__ Gate At(int stage) const {
    return Gate(all, static_cast<int>(threadIdx.x / 32) * STAGES + stage);
  }
};

#endif  // __CUDA_ARCH__ >= 900

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_WARP_COPIES_CUH_
