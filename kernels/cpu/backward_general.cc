// Any geometry, one statistic and then one parameter at a time, element by element: right, not
// fast.
#include "kernels/cpu/convert.h"
#include "kernels/cpu/gradient_sums.h"
#include "kernels/cpu/layouts.h"
#include "kernels/cpu/odometer.h"

namespace nv_norms {
namespace cpu {
namespace {

template <typename A>
struct Element {
  A x;
  A dy;
  A w;
};

template <typename A>
Element<A> ElementAt(const BackwardProblem& problem, const BackwardBuffers& buffers,
                     const Params<A>& gamma, const Place& place) {
  Element<A> out;
  Load(problem.x, buffers.x, place.offset, 1, &out.x);
  Load(problem.dy, buffers.dy, place.offset, 1, &out.dy);
  out.w = out.dy * gamma.At(place.param, 1);
  return out;
}

}  // namespace

template <typename A>
void BackwardGeneral(const BackwardProblem& problem, const BackwardBuffers& buffers,
                     const ParallelFor& parallel_for) {
  const Geometry& geometry = problem.geometry;
  const Params<A> gamma(problem.param, buffers.gamma, geometry.params);
  std::vector<GradientTerms<A>> terms(geometry.statistics);
  parallel_for(geometry.statistics, 2 * geometry.reduced, [&](int64_t begin, int64_t end) {
    Odometer kept(geometry, [](const Axis& axis) { return !axis.reduced; });
    Odometer reduced(geometry, [](const Axis& axis) { return axis.reduced; });
    for (int64_t stat = begin; stat < end; ++stat) {
      const A mean =
          static_cast<A>(StoredMean(problem.formula, problem.stat(), buffers.mean, stat));
      kept.Seek(Place(), stat);
      GradientSums sums;
      reduced.Seek(kept.place(), 0);
      for (int64_t i = 0; i < geometry.reduced; ++i, reduced.Next()) {
        const Element<A> at = ElementAt(problem, buffers, gamma, reduced.place());
        const double e = at.x - mean;
        sums.Add({e, static_cast<double>(at.w), at.w * e});
      }
      const GradientTerms<A> t = TermsOf<A>(problem.formula, static_cast<double>(geometry.reduced),
                                            problem.stat(), buffers.mean, buffers.rstd, stat, sums);
      terms[stat] = t;
      if (buffers.dx == nullptr) continue;
      reduced.Seek(kept.place(), 0);
      for (int64_t i = 0; i < geometry.reduced; ++i, reduced.Next()) {
        const Element<A> at = ElementAt(problem, buffers, gamma, reduced.place());
        const A dx = t.rstd * (at.w - t.w_mean - ((at.x - t.high) - t.low) * t.slope);
        StoreOne(problem.dx, dx, buffers.dx, reduced.place().offset);
      }
    }
  });
  if (buffers.dgamma == nullptr && buffers.dbeta == nullptr) return;
  parallel_for(geometry.params, geometry.elements / geometry.params,
               [&](int64_t begin, int64_t end) {
                 Odometer fixed(geometry, [](const Axis& axis) { return axis.param_stride != 0; });
                 Odometer summed(geometry, [](const Axis& axis) { return axis.param_stride == 0; });
                 for (int64_t i = begin; i < end; ++i) {
                   fixed.Seek(Place(), i);
                   summed.Seek(fixed.place(), 0);
                   double dgamma = 0;
                   double dbeta = 0;
                   for (int64_t j = 0; j < summed.size(); ++j, summed.Next()) {
                     const Element<A> at = ElementAt(problem, buffers, gamma, summed.place());
                     const GradientTerms<A>& t = terms[summed.place().stat];
                     const A xhat = ((at.x - t.high) - t.low) * t.rstd + t.xhat_offset;
                     dgamma += static_cast<double>(at.dy) * xhat;
                     dbeta += at.dy;
                   }
                   const int64_t param = fixed.place().param;
                   StoreOne(problem.dparam, dgamma, buffers.dgamma, param);
                   StoreOne(problem.dparam, dbeta, buffers.dbeta, param);
                 }
               });
}

template void BackwardGeneral<float>(const BackwardProblem&, const BackwardBuffers&,
                                     const ParallelFor&);
template void BackwardGeneral<double>(const BackwardProblem&, const BackwardBuffers&,
                                      const ParallelFor&);

}  // namespace cpu
}  // namespace nv_norms
