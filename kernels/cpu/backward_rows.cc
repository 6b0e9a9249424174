// x is [rows, cols], a statistic a row.
#include <vector>

#include "kernels/cpu/gradient_sums.h"
#include "kernels/cpu/layouts.h"
#include "kernels/cpu/vector_ops.h"

namespace nv_norms {
namespace cpu {
namespace {

template <typename A>
GradientSums RunSums(const RowLayout& rows, int64_t row, int64_t begin, int64_t end, const A* x,
                     const A* dy, const Params<A>& gamma, A mean) {
  GradientSums total;
  ForParamRuns(rows, row, begin, end, [&](int64_t from, int64_t to, int64_t param) {
    double sums[3] = {};
    AddGradientSums(x + (from - begin), dy + (from - begin), param < 0 ? gamma.From(from) : nullptr,
                    to - from, mean, sums);
    const double scale = param < 0 ? 1.0 : static_cast<double>(gamma.At(param, 1));
    total.Add({sums[0], sums[1] * scale, sums[2] * scale});
  });
  return total;
}

template <typename A>
void RunInputGradient(const RowLayout& rows, int64_t row, int64_t begin, int64_t end, const A* x,
                      const A* dy, const Params<A>& gamma, const GradientTerms<A>& terms, A* dx) {
  ForParamRuns(rows, row, begin, end, [&](int64_t from, int64_t to, int64_t param) {
    const int64_t skip = from - begin;
    InputGradient(x + skip, dy + skip, param < 0 ? gamma.From(from) : nullptr,
                  param < 0 ? A(1) : gamma.At(param, 1), to - from, terms.high, terms.low,
                  terms.rstd, terms.w_mean, terms.slope, dx + skip);
  });
}

// Adds the run's part of dgamma and dbeta, whose first element belongs to parameter `first`.
template <typename A>
void RunParamGradients(const RowLayout& rows, int64_t row, int64_t begin, int64_t end, const A* x,
                       const A* dy, const GradientTerms<A>& terms, int64_t first, double* dgamma,
                       double* dbeta) {
  ForParamRuns(rows, row, begin, end, [&](int64_t from, int64_t to, int64_t param) {
    const int64_t skip = from - begin;
    if (param < 0) {
      AddParamGradients(x + skip, dy + skip, to - from, terms.xhat_high, terms.xhat_low, terms.rstd,
                        dgamma == nullptr ? nullptr : dgamma + (from - first),
                        dbeta == nullptr ? nullptr : dbeta + (from - first));
      return;
    }
    double sums[3] = {};
    AddGradientSums(x + skip, dy + skip, static_cast<const A*>(nullptr), to - from, terms.xhat_high,
                    sums);
    const double rstd = terms.rstd;
    if (dgamma != nullptr) dgamma[param - first] += rstd * (sums[2] - terms.xhat_low * sums[1]);
    if (dbeta != nullptr) dbeta[param - first] += sums[1];
  });
}

// Sums over the rows of a block, for each parameter that the block's rows have.
struct ParamSums {
  std::vector<double> dgamma;
  std::vector<double> dbeta;
  ParamSums(const BackwardBuffers& buffers, int64_t count)
      : dgamma(buffers.dgamma == nullptr ? 0 : count),
        dbeta(buffers.dbeta == nullptr ? 0 : count) {}
  double* Gamma(int64_t at) { return dgamma.empty() ? nullptr : dgamma.data() + at; }
  double* Beta(int64_t at) { return dbeta.empty() ? nullptr : dbeta.data() + at; }
};

// Adds up `blocks` arrays of `params` sums in order, and stores them.
void StoreParamSums(const BackwardProblem& problem, const BackwardBuffers& buffers,
                    const ParamSums& sums, int64_t blocks, int64_t params,
                    const ParallelFor& parallel_for) {
  parallel_for(params, blocks, [&](int64_t begin, int64_t end) {
    std::vector<double> total(end - begin);
    const auto store = [&](const std::vector<double>& from, void* to) {
      if (to == nullptr) return;
      std::fill(total.begin(), total.end(), 0.0);
      for (int64_t block = 0; block < blocks; ++block) {
        for (int64_t p = begin; p < end; ++p) total[p - begin] += from[block * params + p];
      }
      Store(problem.dparam, total.data(), end - begin, to, begin);
    };
    store(sums.dgamma, buffers.dgamma);
    store(sums.dbeta, buffers.dbeta);
  });
}

// Blocks of rows, each with sums of its own; x and dy are read from memory once.
template <typename A>
void WholeRows(const BackwardProblem& problem, const BackwardBuffers& buffers,
               const Params<A>& gamma, const ParallelFor& parallel_for) {
  const Geometry& geometry = problem.geometry;
  const RowLayout& rows = geometry.rows;
  // Cut by shape alone. The sums of all blocks stay within a quarter of x.
  const bool want_params = buffers.dgamma != nullptr || buffers.dbeta != nullptr;
  const int64_t most = std::max<int64_t>(1, geometry.elements / (8 * geometry.params));
  const int64_t wanted = std::max<int64_t>(1, geometry.elements / 65536);
  const int64_t blocks =
      std::min(rows.rows, std::min(want_params ? most : wanted, std::min<int64_t>(wanted, 256)));
  const int64_t per_block = (rows.rows + blocks - 1) / blocks;
  ParamSums sums(buffers, want_params ? blocks * geometry.params : 0);
  parallel_for(blocks, per_block * rows.cols, [&](int64_t block_begin, int64_t block_end) {
    Reader<A> x_reader(problem.x, buffers.x);
    Reader<A> dy_reader(problem.dy, buffers.dy);
    Writer<A> writer(problem.dx, buffers.dx);
    for (int64_t block = block_begin; block < block_end; ++block) {
      const int64_t end = std::min(rows.rows, (block + 1) * per_block);
      for (int64_t row = block * per_block; row < end; ++row) {
        const A* x = x_reader.Get(row * rows.cols, rows.cols);
        const A* dy = dy_reader.Get(row * rows.cols, rows.cols);
        const GradientSums row_sums = RunSums(rows, row, 0, rows.cols, x, dy, gamma,
                                              static_cast<A>(StoredMean(problem, buffers, row)));
        const GradientTerms<A> terms = TermsOf<A>(problem, buffers, row, row_sums);
        if (buffers.dx != nullptr) {
          A* dx = writer.Room(row * rows.cols, rows.cols);
          RunInputGradient(rows, row, 0, rows.cols, x, dy, gamma, terms, dx);
          writer.Commit(row * rows.cols, rows.cols);
        }
        if (want_params) {
          RunParamGradients(rows, row, 0, rows.cols, x, dy, terms, 0,
                            sums.Gamma(block * geometry.params),
                            sums.Beta(block * geometry.params));
        }
      }
    }
  });
  if (want_params) StoreParamSums(problem, buffers, sums, blocks, geometry.params, parallel_for);
}

// Long rows: the sums of each slab, then of each row; then a strip of columns at a time all rows'
// input gradients and the strip's dgamma and dbeta.
template <typename A>
void Slabs(const BackwardProblem& problem, const BackwardBuffers& buffers, const Params<A>& gamma,
           const ParallelFor& parallel_for) {
  const Geometry& geometry = problem.geometry;
  const RowLayout& rows = geometry.rows;
  const int64_t slabs = (rows.cols + kSlab - 1) / kSlab;
  std::vector<GradientSums> partial(rows.rows * slabs);
  parallel_for(rows.rows * slabs, 2 * kSlab, [&](int64_t begin, int64_t end) {
    Reader<A> x_reader(problem.x, buffers.x);
    Reader<A> dy_reader(problem.dy, buffers.dy);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i / slabs;
      const int64_t from = i % slabs * kSlab;
      const int64_t count = std::min(kSlab, rows.cols - from);
      const A* x = x_reader.Get(row * rows.cols + from, count);
      const A* dy = dy_reader.Get(row * rows.cols + from, count);
      partial[i] = RunSums(rows, row, from, from + count, x, dy, gamma,
                           static_cast<A>(StoredMean(problem, buffers, row)));
    }
  });
  std::vector<GradientTerms<A>> terms(rows.rows);
  for (int64_t row = 0; row < rows.rows; ++row) {
    GradientSums sums;
    for (int64_t slab = 0; slab < slabs; ++slab) sums.Add(partial[row * slabs + slab]);
    terms[row] = TermsOf<A>(problem, buffers, row, sums);
  }
  // Where a run of columns has one parameter, the strips of a row must add to it one after another,
  // so each slab keeps sums of its own for the few parameters that it meets.
  const bool want_params = buffers.dgamma != nullptr || buffers.dbeta != nullptr;
  const bool by_column = rows.col_divisor == 1 && rows.row_stride == 0;
  const int64_t per_slab = by_column ? kSlab : kSlab / rows.col_divisor + 2;
  ParamSums sums(buffers, !want_params ? 0 : (by_column ? 1 : rows.rows) * slabs * per_slab);
  parallel_for(slabs, 2 * rows.rows * kSlab, [&](int64_t begin, int64_t end) {
    Reader<A> x_reader(problem.x, buffers.x);
    Reader<A> dy_reader(problem.dy, buffers.dy);
    Writer<A> writer(problem.dx, buffers.dx);
    for (int64_t slab = begin; slab < end; ++slab) {
      const int64_t from = slab * kSlab;
      const int64_t count = std::min(kSlab, rows.cols - from);
      for (int64_t row = 0; row < rows.rows; ++row) {
        const A* x = x_reader.Get(row * rows.cols + from, count);
        const A* dy = dy_reader.Get(row * rows.cols + from, count);
        if (buffers.dx != nullptr) {
          A* dx = writer.Room(row * rows.cols + from, count);
          RunInputGradient(rows, row, from, from + count, x, dy, gamma, terms[row], dx);
          writer.Commit(row * rows.cols + from, count);
        }
        if (!want_params) continue;
        const int64_t base = row % rows.modulus * rows.row_stride;
        const int64_t at = (by_column ? slab : row * slabs + slab) * per_slab;
        const int64_t first = by_column ? from : base + from / rows.col_divisor;
        RunParamGradients(rows, row, from, from + count, x, dy, terms[row], first, sums.Gamma(at),
                          sums.Beta(at));
      }
    }
  });
  if (!want_params) return;
  if (by_column) {
    StoreParamSums(problem, buffers, sums, 1, geometry.params, parallel_for);
    return;
  }
  ParamSums total(buffers, geometry.params);
  for (int64_t row = 0; row < rows.rows; ++row) {
    const int64_t base = row % rows.modulus * rows.row_stride;
    for (int64_t slab = 0; slab < slabs; ++slab) {
      const int64_t first = slab * kSlab / rows.col_divisor;
      const int64_t last = (std::min(rows.cols, (slab + 1) * kSlab) - 1) / rows.col_divisor;
      const int64_t at = (row * slabs + slab) * per_slab;
      for (int64_t run = first; run <= last; ++run) {
        if (buffers.dgamma != nullptr) total.dgamma[base + run] += sums.dgamma[at + run - first];
        if (buffers.dbeta != nullptr) total.dbeta[base + run] += sums.dbeta[at + run - first];
      }
    }
  }
  StoreParamSums(problem, buffers, total, 1, geometry.params, parallel_for);
}

}  // namespace

template <typename A>
void BackwardRows(const BackwardProblem& problem, const BackwardBuffers& buffers,
                  const ParallelFor& parallel_for) {
  const Params<A> gamma(problem.param, buffers.gamma, problem.geometry.params);
  if (problem.geometry.rows.cols > kSlab) {
    Slabs(problem, buffers, gamma, parallel_for);
  } else {
    WholeRows(problem, buffers, gamma, parallel_for);
  }
}

template void BackwardRows<float>(const BackwardProblem&, const BackwardBuffers&,
                                  const ParallelFor&);
template void BackwardRows<double>(const BackwardProblem&, const BackwardBuffers&,
                                   const ParallelFor&);

}  // namespace cpu
}  // namespace nv_norms
