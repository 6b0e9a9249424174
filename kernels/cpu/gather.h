// A tensor normalized over axes that alternate with others, as if it were rows.
#ifndef NV_NORMS_KERNELS_CPU_GATHER_H_
#define NV_NORMS_KERNELS_CPU_GATHER_H_

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/odometer.h"
#include "kernels/geometry.h"

namespace nv_norms {
namespace cpu {

// The elements in the order [kept axes][reduced axes]: a row to a statistic. Geometries of this
// kind are layer norms, whose parameters are in the order of the reduced axes.
class Gather {
 public:
  explicit Gather(const Geometry& geometry) : geometry_(geometry) {
    const Axis& last = geometry.axes[geometry.rank - 1];
    run_ = last.reduced ? last.size : 1;
  }

  RowLayout Rows() const {
    RowLayout out;  // a parameter to a column
    out.rows = geometry_.statistics;
    out.cols = geometry_.reduced;
    return out;
  }

  // Calls visit(offset in the tensor, count, place among those asked for) for runs of neighbours.
  template <typename F>
  void ForRuns(int64_t begin, int64_t count, const F& visit) const {
    Odometer kept(geometry_, [](const Axis& axis) { return !axis.reduced; });
    Odometer runs(geometry_, [](const Axis& axis) { return axis.reduced && axis.stride != 1; });
    const int64_t row = begin / geometry_.reduced;
    int64_t column = begin - row * geometry_.reduced;
    kept.Seek(Place(), row);
    runs.Seek(kept.place(), column / run_);
    for (int64_t done = 0; done < count;) {
      const int64_t skip = column % run_;
      const int64_t size = std::min(run_ - skip, count - done);
      visit(runs.place().offset + skip, size, done);
      done += size;
      column += size;
      if (column == geometry_.reduced) {
        column = 0;
        kept.Next();
        runs.Seek(kept.place(), 0);
      } else {
        runs.Next();
      }
    }
  }

 private:
  const Geometry& geometry_;
  int64_t run_;
};

}  // namespace cpu
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CPU_GATHER_H_
