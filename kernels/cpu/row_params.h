// Which parameters a run of a row's columns has.
#ifndef NV_NORMS_KERNELS_CPU_ROW_PARAMS_H_
#define NV_NORMS_KERNELS_CPU_ROW_PARAMS_H_

#include <cstdint>

#include "kernels/geometry.h"

namespace nv_norms {
namespace cpu {

// Column c of every row has parameter c.
inline bool ParamByColumn(const RowLayout& rows) {
  return rows.col_divisor == 1 && rows.row_stride == 0;
}

// Neighbouring columns have neighbouring parameters: those above, groups of [n, channels], where
// every modulus-th row has the same, and rows of samples that have parameters of their own.
inline bool ParamsSideBySide(const RowLayout& rows) { return rows.col_divisor == 1; }

// Of column `begin` of `row`.
inline int64_t FirstParam(const RowLayout& rows, int64_t row, int64_t begin) {
  if (ParamByColumn(rows)) return begin;
  return row / rows.repeat % rows.modulus * rows.row_stride + begin / rows.col_divisor;
}

// Calls visit(begin, end, parameter) on the runs of columns [begin, end) of `row` that share one.
template <typename F>
void ForParamRuns(const RowLayout& rows, int64_t row, int64_t begin, int64_t end, const F& visit) {
  int64_t param = FirstParam(rows, row, begin);
  int64_t stop = (begin / rows.col_divisor + 1) * rows.col_divisor;
  for (; begin < end; ++param, stop += rows.col_divisor) {
    visit(begin, stop < end ? stop : end, param);
    begin = stop;
  }
}

// Where each row has one: those of the `count` rows from `row` on.
inline void FindRowParams(const RowLayout& rows, int64_t row, int64_t count, int64_t* to) {
  int64_t sample = row / rows.repeat;
  int64_t rest = row - sample * rows.repeat;
  int64_t at = sample % rows.modulus;
  for (int64_t i = 0; i < count; ++i) {
    to[i] = at * rows.row_stride;
    if (++rest < rows.repeat) continue;
    rest = 0;
    if (++at == rows.modulus) at = 0;
  }
}

}  // namespace cpu
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CPU_ROW_PARAMS_H_
