// How a ParallelFor (norms.h) should cut its range for a pool of threads.
#ifndef NV_NORMS_KERNELS_CPU_BLOCKS_H_
#define NV_NORMS_KERNELS_CPU_BLOCKS_H_

#include <algorithm>
#include <cstdint>

namespace nv_norms {
namespace cpu {

// Units of a block; total where it is not worth handing anything to another thread.
inline int64_t BlockSize(int64_t total, int64_t cost_per_unit, int64_t threads) {
  // Handing a block over costs some microseconds, so a block has enough elements to be worth it,
  // and there are a few blocks to a thread to even out their speeds.
  constexpr int64_t kMinElements = 32768;
  constexpr int64_t kBlocksPerThread = 4;
  const int64_t cost = std::max<int64_t>(cost_per_unit, 1);
  const int64_t at_least = (kMinElements + cost - 1) / cost;
  const int64_t even = (total + kBlocksPerThread * threads - 1) / (kBlocksPerThread * threads);
  return threads <= 1 ? total : std::min(total, std::max(at_least, even));
}

}  // namespace cpu
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CPU_BLOCKS_H_
