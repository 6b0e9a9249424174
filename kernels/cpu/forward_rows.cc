// x is [rows, cols], a statistic a row; or gathered as if it were.
#include <algorithm>
#include <vector>

#include "kernels/cpu/cache.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/instantiate.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/long_rows.h"
#include "kernels/cpu/short_rows.h"

namespace nv_norms {
namespace cpu {
namespace {

// Whole rows, each read from memory once. Where types differ: some rows at a time through buffers.
template <typename T>
void WholeRows(RowForward<T> task, Reader<T> reader, Writer<T> writer, int64_t begin, int64_t end) {
  const int64_t cols = task.layout.cols;
  const int64_t run = reader.in_place() && writer.in_place()
                          ? end - begin
                          : RowsTogether(task.layout, kShortForward, kConvertedElements);
  for (; begin < end; begin += run) {
    const int64_t stop = std::min(end, begin + run);
    const int64_t count = (stop - begin) * cols;
    task.first_row = begin;
    task.x = reader.Get(begin * cols, count);
    task.y = writer.Room(begin * cols, count);
    KernelsFor<T>().forward_rows(task, begin, stop);
    writer.Commit(begin * cols, count);
  }
}

// Long rows, some at a time: the moments of each slab, then of each row, then the output slab by
// slab, the last ones first because they are still in the cache.
template <typename T>
void Slabs(const RowForward<T>& task, const Reader<T>& reader, const Writer<T>& writer,
           const ParallelFor& parallel_for) {
  using A = ComputedIn<T>;
  const Kernels<T>& kernels = KernelsFor<T>();
  const LongRows cut(task.layout, sizeof(T));
  std::vector<Moments> partial(cut.rows_together() * cut.slabs());
  std::vector<Scaling<A>> scaling(cut.rows_together());
  for (int64_t begin = 0; begin < task.layout.rows; begin += cut.rows_together()) {
    const int64_t rows = std::min(cut.rows_together(), task.layout.rows - begin);
    parallel_for(rows * cut.slabs(), cut.slab(), [&](int64_t from, int64_t to) {
      Reader<T> x = reader;
      for (int64_t i = from; i < to; ++i) {
        const Slab at = cut.At(begin, i);
        partial[i] = kernels.moments(task.formula, x.Get(at.offset, at.count()), at.count());
      }
    });
    for (int64_t row = 0; row < rows; ++row) {
      Moments moments;
      for (int64_t slab = 0; slab < cut.slabs(); ++slab) {
        Merge(partial[row * cut.slabs() + slab], &moments);
      }
      scaling[row] = FinishStatistic<A>(moments, task.formula, task.epsilon, task.stat, begin + row,
                                        task.mean, task.rstd);
    }
    parallel_for(rows * cut.slabs(), cut.slab(), [&](int64_t from, int64_t to) {
      Reader<T> x = reader;
      Writer<T> y = writer;
      for (int64_t i = from; i < to; ++i) {
        const Slab at = cut.At(begin, rows * cut.slabs() - 1 - i);
        kernels.normalize(task, scaling[at.row - begin], at.row, at.begin, at.end,
                          x.Get(at.offset, at.count()), y.Room(at.offset, at.count()));
        y.Commit(at.offset, at.count());
      }
    });
  }
}

// gather: where the rows' elements lie, or null.
template <typename T>
void ForwardAsRows(const ForwardProblem& problem, const ForwardBuffers& buffers,
                   const RowLayout& layout, const Gather* gather, const ParallelFor& parallel_for) {
  using A = ComputedIn<T>;
  const Geometry& geometry = problem.geometry;
  const Params<A> gamma(problem.param, buffers.gamma, geometry.params);
  const Params<A> beta(problem.param, buffers.beta, geometry.params);
  const Reader<T> reader(problem.x, buffers.x, gather);
  const Writer<T> writer(problem.y, buffers.y, gather);
  RowForward<T> task;
  task.layout = layout;
  task.formula = problem.formula;
  task.epsilon = problem.epsilon;
  task.stat = problem.stat();
  task.gamma = gamma.data();
  task.beta = beta.data();
  task.mean = buffers.mean;
  task.rstd = buffers.rstd;
  // In place, y's lines are in the cache already.
  task.stream = writer.in_place() && buffers.x != buffers.y &&
                StreamOutput(geometry.elements * static_cast<int64_t>(sizeof(T)));
  if (LongRows::Wanted(layout, sizeof(T))) {
    Slabs<T>(task, reader, writer, parallel_for);
    return;
  }
  const int64_t unit = RowsTogether(layout, kShortForward, 0);
  const int64_t rows = layout.rows;
  parallel_for((rows + unit - 1) / unit, unit * layout.cols, [&](int64_t begin, int64_t end) {
    WholeRows<T>(task, reader, writer, begin * unit, std::min(end * unit, rows));
  });
}

}  // namespace

template <typename T>
void ForwardRows(const ForwardProblem& problem, const ForwardBuffers& buffers,
                 const ParallelFor& parallel_for) {
  ForwardAsRows<T>(problem, buffers, problem.geometry.rows, nullptr, parallel_for);
}

template <typename T>
void ForwardGeneral(const ForwardProblem& problem, const ForwardBuffers& buffers,
                    const ParallelFor& parallel_for) {
  const Gather gather(problem.geometry);
  ForwardAsRows<T>(problem, buffers, gather.Rows(), &gather, parallel_for);
}

NV_NORMS_INSTANTIATE(Forward, Rows)
NV_NORMS_INSTANTIATE_AS(Forward, General, float)
NV_NORMS_INSTANTIATE_AS(Forward, General, double)

}  // namespace cpu
}  // namespace nv_norms
