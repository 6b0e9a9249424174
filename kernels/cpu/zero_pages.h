// Memory that is zero at first.
#ifndef NV_NORMS_KERNELS_CPU_ZERO_PAGES_H_
#define NV_NORMS_KERNELS_CPU_ZERO_PAGES_H_

#include <sys/mman.h>

#include <cstddef>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

namespace nv_norms {
namespace cpu {

// An allocator of zeros. Many come in pages of 2 MB if the system has them, each cleared for the
// first thread that writes to it; of pages of 4 KB each costs about a microsecond.
template <typename T>
struct ZeroPages {
  using value_type = T;

  ZeroPages() = default;
  template <typename U>
  ZeroPages(const ZeroPages<U>&) {}  // NOLINT(google-explicit-constructor)

  T* allocate(size_t count) {
    const size_t bytes = count * sizeof(T);
    if (bytes < kLarge) {
      T* memory = std::allocator<T>().allocate(count);
      std::memset(static_cast<void*>(memory), 0, bytes);
      return memory;
    }
    void* pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) {  // to what the standard library does without memory
      return std::allocator<T>().allocate(std::numeric_limits<size_t>::max() / sizeof(T));
    }
    madvise(pages, bytes, MADV_HUGEPAGE);  // small ones will do, too
    return static_cast<T*>(pages);
  }

  void deallocate(T* memory, size_t count) {
    if (count * sizeof(T) < kLarge) {
      std::allocator<T>().deallocate(memory, count);
    } else {
      munmap(memory, count * sizeof(T));
    }
  }

  template <typename U>
  void construct(U*) {}  // it is zero

  bool operator==(const ZeroPages&) const { return true; }
  bool operator!=(const ZeroPages&) const { return false; }

 private:
  static constexpr size_t kLarge = 4 << 20;
};

template <typename T>
using Zeroed = std::vector<T, ZeroPages<T>>;

}  // namespace cpu
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CPU_ZERO_PAGES_H_
