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
constexpr int kWindow = 3;     // tiles on their way where a unit does not fit
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
