// Rows shorter than a few vectors, which are taken as many at a time as a vector has lanes.
#ifndef NV_NORMS_KERNELS_CPU_SHORT_ROWS_H_
#define NV_NORMS_KERNELS_CPU_SHORT_ROWS_H_

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/row_params.h"
#include "kernels/geometry.h"

namespace nv_norms {
namespace cpu {

// Columns up to which that is faster than rows one by one. AVX-512, float32 in the L2 cache, one
// thread, picoseconds an element, so and one by one: forward 269 and 548 at 49 columns, 268 and 406
// at 64, 259 and 311 at 100, 296 and 239 at 128; backward 550 and 710 at 50, 530 and 520 at 64, 550
// and 505 at 100.
constexpr int64_t kShortForward = 112;
constexpr int64_t kShortBackward = 63;

// The lanes of the widest vectors: work is cut into multiples of so many rows, so that only the
// last block of a tensor is not whole, and blocks begin at multiples of a vector.
constexpr int64_t kShortRows = 16;

// Fewer rows than a block are faster one by one.
inline bool AreShort(const RowLayout& rows, int64_t most_cols) {
  return rows.cols <= most_cols && rows.rows >= kShortRows && (rows.by_column() || rows.by_row());
}

// Rows of about `elements` elements that may be worked on apart from others.
inline int64_t RowsTogether(const RowLayout& rows, int64_t most_short_cols, int64_t elements) {
  const int64_t unit = AreShort(rows, most_short_cols) ? kShortRows : 1;
  return std::max<int64_t>(1, elements / (unit * rows.cols)) * unit;
}

}  // namespace cpu
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CPU_SHORT_ROWS_H_
