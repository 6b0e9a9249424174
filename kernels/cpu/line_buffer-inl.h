// Streamed stores of rows that do not begin with a line of the cache.
#ifndef NV_NORMS_KERNELS_CPU_LINE_BUFFER_INL_H_
#define NV_NORMS_KERNELS_CPU_LINE_BUFFER_INL_H_

#include "kernels/cpu/simd-inl.h"

namespace nv_norms {
namespace cpu {
namespace NV_NORMS_TARGET {
namespace {

// Where rows are streamed that do not begin with a line they are stored here first, one after
// another, and then line by line: at most this many bytes at a time. Gradients, four rows at a
// time, 100 MB of float32, 2 threads, milliseconds, one by one and so (on a busy machine): 36.6 and
// 23.8 at 100 columns; 22.5 and 28.3 at 1000, which do not fit.
constexpr int64_t kBufferedBytes = 8 << 10;

// Streams what is stored in a buffer to consecutive addresses. The parts of lines at both ends are
// stored through the cache.
template <typename T>
class LineBuffer {
 public:
  explicit LineBuffer(T* to)
      : to_(to), held_(reinterpret_cast<uintptr_t>(to) % 64 / sizeof(T)), skip_(held_) {}

  // Where the next numbers go: room for kBufferedBytes.
  T* Room() { return room_ + held_; }

  // Stores whole lines of what there is with `count` numbers more. Calls ahead(index) with each
  // multiple of a line below count.
  template <typename Ahead>
  NV_NORMS_INLINE void Commit(int64_t count, const Ahead& ahead) {
    constexpr int64_t lane_count = NV_NORMS_VECTOR_BYTES / sizeof(T);
    const int64_t total = held_ + count;
    T* line_to = to_ - held_;
    int64_t i = 0;
    if (skip_ > 0 && total >= kLine) {
      std::memcpy(to_ - held_ + skip_, room_ + skip_, (kLine - skip_) * sizeof(T));
      skip_ = 0;
      i = kLine;
    }
    for (; i + kLine <= total; i += kLine) {
      ahead(i);
      for (int64_t j = i; j < i + kLine; j += lane_count) {
        StreamWide(*reinterpret_cast<const U32OfAny*>(room_ + j), line_to + j);
      }
    }
    if (i > 0) std::memcpy(room_, room_ + i, kLine * sizeof(T));
    to_ += count;
    held_ = total - i;
  }

  void Finish() {
    std::memcpy(to_ - held_ + skip_, room_ + skip_, (held_ - skip_) * sizeof(T));
    held_ = skip_ = 0;
  }

 private:
  static constexpr int64_t kLine = 64 / sizeof(T);
  // A line more than is needed, so that what is left can be copied as one.
  alignas(64) T room_[kBufferedBytes / sizeof(T) + 2 * kLine];
  T* to_;
  int64_t held_;  // numbers, from the beginning of a line on
  int64_t skip_;  // of them belong to somebody else
};

}  // namespace
}  // namespace NV_NORMS_TARGET
}  // namespace cpu
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CPU_LINE_BUFFER_INL_H_
