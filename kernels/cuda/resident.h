// What the resident kernels agree on with host code: see walk.cuh.
#ifndef NV_NORMS_KERNELS_CUDA_RESIDENT_H_
#define NV_NORMS_KERNELS_CUDA_RESIDENT_H_

#include <cstdint>

#include "kernels/problem.h"

namespace nv_norms {
namespace cuda {

constexpr int kResidentThreads = 256;
constexpr int kResidentBlocks = 2;  // of a multiprocessor
constexpr int kVectorBytes = 16;
constexpr int kMaxSlots = 18;  // groups of copies that a thread can tell apart
// Tiles on their way, before the first is there and where a unit does not fit. What all slots ask
// for at once queues before memory, the first tiles' numbers among them. Microseconds with all and
// with 8, 6, 4 and 3 tiles at first, forward and gradient, 32 groups: float16 8 x 64 x 64 x 320
// channels last 25.3, 25.0, 24.4, 23.6, 22.7 and 41.1, 39.3, 38.0, 38.0, 37.9; float32 8 x 32 x 32
// x 640 21.9, 21.6, 20.9, 19.9, 19.2 and 35.6, 34.3, 34.4, 34.4, 34.3; float32 8 x 320 x 64 x 64
// channels first 33.7, 33.3, 32.6, 31.4, 30.8 and 51.4, 51.0, 50.2, 49.1, 47.7.
constexpr int kWindow = 3;
// Bytes of an output that the next kernel may find in the L2 cache; not tuned yet.
constexpr int64_t kSmallOutput = 24 << 20;

// A tile holds so many vectors of x to a thread, and in the gradient beside each as many numbers of
// dy: 16 bytes, or 8 where x is in float32 and dy in 16 bits. `beside`: these bytes, or 0.
NV_NORMS_HOST_DEVICE constexpr int TileItems(int beside) { return beside == 0 ? 4 : 2; }
NV_NORMS_HOST_DEVICE constexpr int ItemBytes(int beside) { return kVectorBytes + beside; }

NV_NORMS_HOST_DEVICE constexpr int TileBytes(int beside) {
  return TileItems(beside) * ItemBytes(beside) * kResidentThreads;
}

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_RESIDENT_H_
