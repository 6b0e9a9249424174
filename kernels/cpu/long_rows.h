// Rows that are cut into slabs, because they do not fit into a core's cache or are too few for the
// threads.
#ifndef NV_NORMS_KERNELS_CPU_LONG_ROWS_H_
#define NV_NORMS_KERNELS_CPU_LONG_ROWS_H_

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/cache.h"
#include "kernels/geometry.h"

namespace nv_norms {
namespace cpu {

struct Slab {
  int64_t row = 0;
  int64_t begin = 0;
  int64_t end = 0;
  int64_t offset = 0;  // of its first element in x
  int64_t count() const { return end - begin; }
};

// Cut by shape alone.
class LongRows {
 public:
  static bool Wanted(const RowLayout& rows, int64_t size) {
    if (rows.cols <= kSlab) return false;
    return rows.cols * size > kCoreBytes || rows.rows < kFewRows;
  }

  LongRows(const RowLayout& rows, int64_t size)
      : cols_(rows.cols),
        slabs_((rows.cols + kSlab - 1) / kSlab),
        rows_together_(
            std::min(rows.rows, std::max<int64_t>(1, kSharedBytes / (rows.cols * size)))) {}

  int64_t slab() const { return kSlab; }
  int64_t slabs() const { return slabs_; }
  // Rows that are worked on at a time, so that they stay in the last-level cache.
  int64_t rows_together() const { return rows_together_; }
  // The index-th slab, counted from row `first`.
  Slab At(int64_t first, int64_t index) const {
    Slab out;
    out.row = first + index / slabs_;
    out.begin = index % slabs_ * kSlab;
    out.end = std::min(cols_, out.begin + kSlab);
    out.offset = out.row * cols_ + out.begin;
    return out;
  }

 private:
  static constexpr int64_t kSlab = 16384;
  static constexpr int64_t kFewRows = 64;  // fewer leave some threads of a big machine idle

  int64_t cols_;
  int64_t slabs_;
  int64_t rows_together_;
};

}  // namespace cpu
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CPU_LONG_ROWS_H_
