#include <vector>

#include "kernels/cpu/layouts.h"
#include "kernels/cpu/moments.h"

namespace nv_norms {
namespace cpu {
namespace {

template <typename A>
void NormalizeRun(const RowLayout& rows, int64_t row, int64_t begin, int64_t end, const A* x,
                  const Scaling<A>& scaling, const Params<A>& gamma, const Params<A>& beta, A* y) {
  ForParamRuns(rows, row, begin, end, [&](int64_t from, int64_t to, int64_t param) {
    const A* source = x + (from - begin);
    A* target = y + (from - begin);
    if (param < 0) {
      Normalize(source, to - from, scaling.high, scaling.low, scaling.rstd, gamma.From(from),
                beta.From(from), target);
    } else {
      NormalizeScalar(source, to - from, scaling.high, scaling.low, scaling.rstd,
                      gamma.At(param, 1), beta.At(param, 0), target);
    }
  });
}

template <typename A>
void WholeRows(const ForwardProblem& problem, const ForwardBuffers& buffers, const Params<A>& gamma,
               const Params<A>& beta, int64_t begin, int64_t end) {
  const RowLayout& rows = problem.geometry.rows;
  Reader<A> reader(problem.x, buffers.x);
  Writer<A> writer(problem.y, buffers.y);
  for (int64_t row = begin; row < end; ++row) {
    const A* x = reader.Get(row * rows.cols, rows.cols);
    const Moments moments = MomentsOf(problem.formula, x, rows.cols);
    const Scaling<A> scaling = FinishStatistic<A>(problem, buffers, moments, row);
    A* y = writer.Room(row * rows.cols, rows.cols);
    NormalizeRun(rows, row, 0, rows.cols, x, scaling, gamma, beta, y);
    writer.Commit(row * rows.cols, rows.cols);
  }
}

// Long rows: the moments of each slab, then of each row, then the output slab by slab.
template <typename A>
void Slabs(const ForwardProblem& problem, const ForwardBuffers& buffers, const Params<A>& gamma,
           const Params<A>& beta, const ParallelFor& parallel_for) {
  const RowLayout& rows = problem.geometry.rows;
  const int64_t slabs = (rows.cols + kSlab - 1) / kSlab;
  std::vector<Moments> partial(rows.rows * slabs);
  parallel_for(rows.rows * slabs, kSlab, [&](int64_t begin, int64_t end) {
    Reader<A> reader(problem.x, buffers.x);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t from = i % slabs * kSlab;
      const int64_t count = std::min(kSlab, rows.cols - from);
      const A* x = reader.Get(i / slabs * rows.cols + from, count);
      partial[i] = MomentsOf(problem.formula, x, count);
    }
  });
  std::vector<Scaling<A>> scaling(rows.rows);
  for (int64_t row = 0; row < rows.rows; ++row) {
    Moments moments;
    for (int64_t slab = 0; slab < slabs; ++slab) Merge(partial[row * slabs + slab], &moments);
    scaling[row] = FinishStatistic<A>(problem, buffers, moments, row);
  }
  parallel_for(rows.rows * slabs, kSlab, [&](int64_t begin, int64_t end) {
    Reader<A> reader(problem.x, buffers.x);
    Writer<A> writer(problem.y, buffers.y);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i / slabs;
      const int64_t from = i % slabs * kSlab;
      const int64_t count = std::min(kSlab, rows.cols - from);
      const A* x = reader.Get(row * rows.cols + from, count);
      A* y = writer.Room(row * rows.cols + from, count);
      NormalizeRun(rows, row, from, from + count, x, scaling[row], gamma, beta, y);
      writer.Commit(row * rows.cols + from, count);
    }
  });
}

}  // namespace

template <typename A>
void ForwardRows(const ForwardProblem& problem, const ForwardBuffers& buffers,
                 const ParallelFor& parallel_for) {
  const Geometry& geometry = problem.geometry;
  const Params<A> gamma(problem.param, buffers.gamma, geometry.params);
  const Params<A> beta(problem.param, buffers.beta, geometry.params);
  if (geometry.rows.cols > kSlab) {
    Slabs(problem, buffers, gamma, beta, parallel_for);
    return;
  }
  parallel_for(geometry.rows.rows, geometry.rows.cols, [&](int64_t begin, int64_t end) {
    WholeRows(problem, buffers, gamma, beta, begin, end);
  });
}

template void ForwardRows<float>(const ForwardProblem&, const ForwardBuffers&, const ParallelFor&);
template void ForwardRows<double>(const ForwardProblem&, const ForwardBuffers&, const ParallelFor&);

}  // namespace cpu
}  // namespace nv_norms
