// Rows shorter than a few vectors, which are taken as many at a time as a vector has lanes.
#ifndef NV_NORMS_KERNELS_CPU_SHORT_ROWS_H_
#define NV_NORMS_KERNELS_CPU_SHORT_ROWS_H_

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/row_params.h"
#include "kernels/geometry.h"

namespace nv_norms {
namespace cpu {

// Columns up to which that is faster than rows one by one.
struct ShortColumns {
  int64_t by_column;
  int64_t by_row;

  constexpr int64_t most() const { return by_column > by_row ? by_column : by_row; }
};

// AVX-512, float32 in the L2 cache, one thread, picoseconds an element, so and one by one. Where
// columns have parameters: forward 269 and 548 at 49 columns, 268 and 406 at 64, 259 and 311 at
// 100, 296 and 239 at 128; backward 550 and 710 at 50, 530 and 520 at 64, 550 and 505 at 100. Where
// rows have one each: forward 313 and 398 at 121, 291 and 313 at 144, 368 and 261 at 196 (of 38 MB
// 594 and 605 at 121, 620 and 419 at 144); backward 358 and 920 at 64, 347 and 952 at 81, 319 and
// 738 at 121, 298 and 576 at 144 (bfloat16 of 4.7 MB 735 and 708 at 121, 717 and 627 at 144).
constexpr ShortColumns kShortForward = {112, 128};
constexpr ShortColumns kShortBackward = {63, 128};

// The lanes of the widest vectors: work is cut into multiples of so many rows, so that only the
// last block of a tensor is not whole, and blocks begin at multiples of a vector.
constexpr int64_t kShortRows = 16;

// Fewer rows than a block are faster one by one.
inline bool AreShort(const RowLayout& rows, const ShortColumns& most) {
  if (rows.rows < kShortRows) return false;
  if (rows.by_column()) return rows.cols <= most.by_column;
  return rows.by_row() && rows.cols <= most.by_row;
}

// Rows of about `elements` elements that may be worked on apart from others.
inline int64_t RowsTogether(const RowLayout& rows, const ShortColumns& most, int64_t elements) {
  const int64_t unit = AreShort(rows, most) ? kShortRows : 1;
  return std::max<int64_t>(1, elements / (unit * rows.cols)) * unit;
}

}  // namespace cpu
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CPU_SHORT_ROWS_H_
