// The kernels of one layout each, on A = float or double.
#ifndef NV_NORMS_KERNELS_CPU_LAYOUTS_H_
#define NV_NORMS_KERNELS_CPU_LAYOUTS_H_

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/convert.h"
#include "kernels/cpu/norms.h"

namespace nv_norms {
namespace cpu {

// A row of more elements than this is cut into pieces of this size.
constexpr int64_t kSlab = 32768;  // 128 KB of floats: stays in a core's L2 cache; not tuned yet

template <typename A>
void ForwardRows(const ForwardProblem&, const ForwardBuffers&, const ParallelFor&);
template <typename A>
void ForwardColumns(const ForwardProblem&, const ForwardBuffers&, const ParallelFor&);
template <typename A>
void ForwardGeneral(const ForwardProblem&, const ForwardBuffers&, const ParallelFor&);

template <typename A>
void BackwardRows(const BackwardProblem&, const BackwardBuffers&, const ParallelFor&);
template <typename A>
void BackwardColumns(const BackwardProblem&, const BackwardBuffers&, const ParallelFor&);
template <typename A>
void BackwardGeneral(const BackwardProblem&, const BackwardBuffers&, const ParallelFor&);

// Calls visit(begin, end, parameter) on the runs of columns [begin, end) of `row` that share one
// parameter, or on the whole range with parameter -1 where column c has parameter c.
template <typename F>
void ForParamRuns(const RowLayout& rows, int64_t row, int64_t begin, int64_t end, const F& visit) {
  if (rows.col_divisor == 1 && rows.row_stride == 0) {
    visit(begin, end, int64_t{-1});
    return;
  }
  const int64_t base = (row % rows.modulus) * rows.row_stride;
  while (begin < end) {
    const int64_t run = begin / rows.col_divisor;
    const int64_t stop = std::min(end, (run + 1) * rows.col_divisor);
    visit(begin, stop, base + run);
    begin = stop;
  }
}

}  // namespace cpu
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CPU_LAYOUTS_H_
