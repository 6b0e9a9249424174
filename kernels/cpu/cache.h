// What the kernels assume of the caches.
#ifndef NV_NORMS_KERNELS_CPU_CACHE_H_
#define NV_NORMS_KERNELS_CPU_CACHE_H_

#include <cstdint>

namespace nv_norms {
namespace cpu {

// Work that is read a second time is cut to this much: half of the L2 cache of a server's core.
constexpr int64_t kCoreBytes = 512 << 10;

// The same by the machine's L2 cache.
int64_t CoreBytes();

// Lines of a core's L1 cache that may lie a multiple of 4096 bytes apart, as far as the system
// says.
int64_t Level1Ways();

// Whether lines that are read later are asked for while an output is streamed alone, and not while
// sums are added up, too, where they would delay what comes from the L2 cache. So on AMD's CPUs
// with AVX-512; or as NV_NORMS_CPU_PREFETCH says, "stores" or "passes". docs/kernels-cpu.md has
// figures.
bool PrefetchesAtStores();
constexpr char kPrefetchVariable[] = "NV_NORMS_CPU_PREFETCH";
const char* WantedPrefetch();  // "" where nothing is said

// Work that all threads share and read a second time: what is left of a last-level cache that is
// shared with others.
constexpr int64_t kSharedBytes = 8 << 20;

// An output of this many bytes is stored past the caches, which it would not stay in.
bool StreamOutput(int64_t bytes);

}  // namespace cpu
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CPU_CACHE_H_
