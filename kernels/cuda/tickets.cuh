// Rows that blocks draw, a ticket each. Multiprocessors are not equally fast, so that equal shares
// wait for the slowest, and blocks that start in turn leave a gap each time.
#ifndef NV_NORMS_KERNELS_CUDA_TICKETS_CUH_
#define NV_NORMS_KERNELS_CUDA_TICKETS_CUH_

#include <cstdint>

#include "kernels/cuda/ring_shape.h"

namespace nv_norms {
namespace cuda {

constexpr int kRowsKept = 8;

// Of those that a block has by its number.
__device__ __forceinline__ int64_t RowOfBlock(int step) {
  return blockIdx.x + step * static_cast<int64_t>(gridDim.x);
}

// The rows of a block alone, those of a ring's stages ahead: as many apart as there are blocks.
template <bool DRAWN>
struct BlockRows {
  int64_t row;

  __device__ __forceinline__ BlockRows(unsigned*, int64_t*) : row(blockIdx.x) {}
  __device__ __forceinline__ int64_t Current() const { return row; }
  __device__ __forceinline__ int64_t Next() const { return row + gridDim.x; }
  // That which takes the current one's stage.
  __device__ __forceinline__ int64_t Coming() const {
    return row + kBlockStages * static_cast<int64_t>(gridDim.x);
  }
  __device__ __forceinline__ void Draw() {}
  __device__ __forceinline__ void Advance() { row += gridDim.x; }
};

// The same where blocks draw: one has its first stages + 1 rows by its number, the others by
// tickets, which are drawn by one thread stages + 2 rows before their turn.
template <>
struct BlockRows<true> {
  int64_t* rows;      // in shared memory, of steps, [kRowsKept]
  unsigned* tickets;  // in global memory: how many are drawn, 0 when the kernel starts
  int step;
  unsigned ticket;  // the drawing thread's last one, perhaps on its way

  // `shared` is read after a barrier.
  __device__ __forceinline__ BlockRows(unsigned* drawn, int64_t* shared)
      : rows(shared), tickets(drawn), step(0), ticket(0) {
    if (threadIdx.x != 0) return;
    for (int i = 0; i <= kBlockStages; ++i) rows[i] = RowOfBlock(i);
    Take();
  }
  __device__ __forceinline__ int64_t Current() const { return rows[step % kRowsKept]; }
  __device__ __forceinline__ int64_t Next() const { return rows[(step + 1) % kRowsKept]; }
  __device__ __forceinline__ int64_t Coming() const {
    return rows[(step + kBlockStages) % kRowsKept];
  }
  // Once a step, before its last barrier.
  __device__ __forceinline__ void Draw() {
    if (threadIdx.x != 0) return;
    const int64_t by_number = (kBlockStages + 1) * static_cast<int64_t>(gridDim.x);
    rows[(step + kBlockStages + 1) % kRowsKept] = by_number + ticket;
    Take();
  }
  __device__ __forceinline__ void Advance() { ++step; }

 private:
  // Not by atomicAdd, whose answer the compiler hands around in the warp, and so waits for it.
  __device__ __forceinline__ void Take() {
    asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], 1;"
                 : "=r"(ticket)
                 : "l"(tickets)
                 : "memory");
  }
};

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_TICKETS_CUH_
