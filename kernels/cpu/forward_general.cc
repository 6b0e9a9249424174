// Any geometry, one statistic at a time and element by element: right, not fast.
#include <vector>

#include "kernels/cpu/convert.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/layouts.h"
#include "kernels/cpu/odometer.h"

namespace nv_norms {
namespace cpu {

template <typename A>
void ForwardGeneral(const ForwardProblem& problem, const ForwardBuffers& buffers,
                    const ParallelFor& parallel_for) {
  const Geometry& geometry = problem.geometry;
  const Params<A> gamma(problem.param, buffers.gamma, geometry.params);
  const Params<A> beta(problem.param, buffers.beta, geometry.params);
  parallel_for(geometry.statistics, geometry.reduced, [&](int64_t begin, int64_t end) {
    Odometer kept(geometry, [](const Axis& axis) { return !axis.reduced; });
    Odometer reduced(geometry, [](const Axis& axis) { return axis.reduced; });
    std::vector<A> row(geometry.reduced);
    for (int64_t stat = begin; stat < end; ++stat) {
      kept.Seek(Place(), stat);
      reduced.Seek(kept.place(), 0);
      for (int64_t i = 0; i < geometry.reduced; ++i, reduced.Next()) {
        Load(problem.x, buffers.x, reduced.place().offset, 1, &row[i]);
      }
      const Moments moments =
          KernelsFor<A>().moments(problem.formula, row.data(), geometry.reduced);
      const Scaling<A> scaling =
          FinishStatistic<A>(moments, problem.formula, problem.epsilon, problem.stat(), stat,
                             buffers.mean, buffers.rstd);
      reduced.Seek(kept.place(), 0);
      for (int64_t i = 0; i < geometry.reduced; ++i, reduced.Next()) {
        const int64_t param = reduced.place().param;
        const A xhat = ((row[i] - scaling.high) - scaling.low) * scaling.rstd;
        StoreOne(problem.y, xhat * gamma.At(param, 1) + beta.At(param, 0), buffers.y,
                 reduced.place().offset);
      }
    }
  });
}

template void ForwardGeneral<float>(const ForwardProblem&, const ForwardBuffers&,
                                    const ParallelFor&);
template void ForwardGeneral<double>(const ForwardProblem&, const ForwardBuffers&,
                                     const ParallelFor&);

}  // namespace cpu
}  // namespace nv_norms
