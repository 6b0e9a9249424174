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
constexpr int kMaxSlots = 15;  // groups of copies that a thread can tell apart
constexpr int kWindow = 3;     // tiles on their way where a unit does not fit

// Vectors of a tile to a thread, of each of so many tensors.
NV_NORMS_HOST_DEVICE constexpr int TileItems(int tensors) { return 4 / tensors; }

inline int64_t TileBytes(int tensors) {
  return int64_t{TileItems(tensors)} * tensors * kVectorBytes * kResidentThreads;
}

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_RESIDENT_H_
