// x is [rows, cols], a statistic a row; or gathered as if it were.
#include <algorithm>
#include <vector>

#include "kernels/cpu/cache.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/instantiate.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/long_rows.h"
#include "kernels/cpu/param_sums.h"
#include "kernels/cpu/row_params.h"
#include "kernels/cpu/short_rows.h"
#include "kernels/sample_rows.h"

namespace nv_norms {
namespace cpu {
namespace {

template <typename T>
class Rows {
 public:
  using A = ComputedIn<T>;

  // gather: where the rows' elements lie, or null. all: elements, of other samples too.
  Rows(const BackwardProblem& problem, const BackwardBuffers& buffers, const RowLayout& layout,
       const Gather* gather, int64_t all, const ParallelFor& parallel_for)
      : problem_(problem),
        buffers_(buffers),
        parallel_for_(parallel_for),
        layout_(layout),
        gamma_(problem.param, buffers.gamma, problem.geometry.params),
        x_(problem.x, buffers.x, gather),
        dy_(problem.dy, buffers.dy, gather),
        dx_(problem.dx, buffers.dx, gather) {
    task_.layout = layout_;
    task_.formula = problem.formula;
    task_.stat = problem.stat();
    task_.gamma = gamma_.data();
    if (task_.gamma == nullptr && ParamsSideBySide(layout_)) {
      ones_.assign(problem.geometry.params, A(1));
      task_.gamma = ones_.data();
    }
    task_.mean = buffers.mean;
    task_.rstd = buffers.rstd;
    task_.stream = buffers.dx != nullptr && dx_.in_place() &&
                   StreamOutput(all * static_cast<int64_t>(sizeof(T)));
  }

  void Run() {
    if (LongRows::Wanted(layout_, 2 * sizeof(T))) {
      Slabs();
    } else {
      Blocks();
    }
  }

 private:
  // Blocks of rows, each with sums of its own; x and dy are read from memory once.
  void Blocks() {
    const int64_t params = problem_.geometry.params;
    const int64_t elements = problem_.geometry.elements;
    // Cut by shape alone: enough blocks for the threads of a big machine, but the sums of all stay
    // a small part of what is read. Rows that share no parameter share the sums of one block.
    const bool apart =
        layout_.row_stride != 0 && layout_.repeat == 1 && layout_.modulus == layout_.rows;
    int64_t at_most = std::min<int64_t>(256, std::max<int64_t>(1, elements / 32768));
    if (!apart) at_most = std::min(at_most, std::max(kFewBlocks, kSumBytes / (params * 16)));
    if (!apart && ParamSums::Wanted(buffers_)) {
      at_most = std::min(at_most, std::max<int64_t>(1, elements / (64 * params)));
    }
    const int64_t unit = RowsTogether(layout_, kShortBackward, 0);
    const int64_t units = (layout_.rows + unit - 1) / unit;
    const int64_t per_block = (units + at_most - 1) / at_most * unit;
    const int64_t blocks = (layout_.rows + per_block - 1) / per_block;
    ParamSums sums(buffers_, apart ? 1 : blocks, params);
    parallel_for_(blocks, 3 * per_block * layout_.cols, [&](int64_t begin, int64_t end) {
      Reader<T> x = x_;
      Reader<T> dy = dy_;
      Writer<T> dx = dx_;
      std::vector<T> unwanted(buffers_.dx == nullptr ? layout_.cols : 0);
      const bool partly = ParamByColumn(layout_) && ParamSums::Wanted(buffers_);
      std::vector<A> partial(partly ? 2 * Padded(layout_.cols) : 0);
      for (int64_t block = begin; block < end; ++block) {
        WholeRows(block * per_block, std::min(layout_.rows, (block + 1) * per_block), &x, &dy, &dx,
                  unwanted.data(), partial.data(), sums.Gamma(apart ? 0 : block),
                  sums.Beta(apart ? 0 : block));
      }
    });
    sums.Store(problem_, buffers_, parallel_for_);
  }

  void WholeRows(int64_t begin, int64_t end, Reader<T>* x, Reader<T>* dy, Writer<T>* dx,
                 T* unwanted, A* partial, double* dgamma, double* dbeta) {
    const int64_t cols = layout_.cols;
    const bool wanted = unwanted == nullptr;
    const int64_t run = x->in_place() && dy->in_place() && (!wanted || dx->in_place())
                            ? std::max<int64_t>(1, end - begin)
                            : RowsTogether(layout_, kShortBackward, kConvertedElements);
    RowBackward<T> task = task_;
    task.partial = partial;
    for (; begin < end; begin += run) {
      const int64_t stop = std::min(end, begin + run);
      const int64_t count = (stop - begin) * cols;
      task.first_row = begin;
      task.x = x->Get(begin * cols, count);
      task.dy = dy->Get(begin * cols, count);
      task.dx = wanted ? dx->Room(begin * cols, count) : unwanted;
      task.dx_step = wanted ? cols : 0;
      KernelsFor<T>().backward_rows(task, begin, stop, dgamma, dbeta);
      if (wanted) dx->Commit(begin * cols, count);
    }
  }

  // Long rows, some at a time: the sums of each slab, then of each row; then a strip of columns at
  // a time all these rows' input gradients and the strip's part of dgamma and dbeta.
  void Slabs() {
    const LongRows cut(layout_, 2 * sizeof(T));
    const int64_t together = cut.rows_together();
    const bool by_column = ParamByColumn(layout_);
    if (by_column && (together == layout_.rows || together < kLeastTogether)) {
      StoreAllRows(Sum(cut, 0, layout_.rows));
      return;
    }
    const int64_t slabs = cut.slabs();
    // Where a run of columns has one parameter, a slab keeps sums of its own for those it meets.
    const int64_t per_slab = by_column ? cut.slab() : cut.slab() / layout_.col_divisor + 2;
    ParamSums total(buffers_, 1, by_column ? slabs * per_slab : problem_.geometry.params);
    ParamSums met(buffers_, by_column ? 0 : together * slabs, per_slab);
    for (int64_t first = 0; first < layout_.rows; first += together) {
      const int64_t rows = std::min(together, layout_.rows - first);
      const std::vector<GradientTerms<A>> terms = Sum(cut, first, rows);
      met.Clear();
      parallel_for_(slabs, 3 * rows * cut.slab(), [&](int64_t begin, int64_t end) {
        Reader<T> x = x_;
        Reader<T> dy = dy_;
        Writer<T> dx = dx_;
        std::vector<T> unwanted(buffers_.dx == nullptr ? cut.slab() : 0);
        for (int64_t i = begin; i < end; ++i) {
          const int64_t slab = slabs - 1 - i;
          for (int64_t row = rows - 1; row >= 0; --row) {
            const int64_t sums = row * slabs + slab;
            const Slab at = cut.At(first, sums);
            double* dgamma = by_column ? total.Gamma(0, at.begin) : met.Gamma(sums);
            double* dbeta = by_column ? total.Beta(0, at.begin) : met.Beta(sums);
            StoreSlab(at, terms[row], &x, &dy, &dx, unwanted.data(), dgamma, dbeta);
          }
        }
      });
      if (by_column || !ParamSums::Wanted(buffers_)) continue;
      for (int64_t i = 0; i < rows * slabs; ++i) {
        const Slab at = cut.At(first, i);
        const int64_t param = FirstParam(layout_, at.row, at.begin);
        const int64_t last = FirstParam(layout_, at.row, at.end - 1);
        total.AddRun(met, i, last - param + 1, param);
      }
    }
    total.Store(problem_, buffers_, parallel_for_);
  }

  // What the rows from `first` on need of their sums.
  std::vector<GradientTerms<A>> Sum(const LongRows& cut, int64_t first, int64_t rows) const {
    const int64_t slabs = cut.slabs();
    std::vector<GradientSums> partial(rows * slabs);
    parallel_for_(rows * slabs, 2 * cut.slab(), [&](int64_t begin, int64_t end) {
      Reader<T> x = x_;
      Reader<T> dy = dy_;
      for (int64_t i = begin; i < end; ++i) {
        const Slab at = cut.At(first, i);
        partial[i] = KernelsFor<T>().gradient_sums(task_, at.row, at.begin, at.end,
                                                   x.Get(at.offset, at.count()),
                                                   dy.Get(at.offset, at.count()));
      }
    });
    std::vector<GradientTerms<A>> terms(rows);
    for (int64_t row = 0; row < rows; ++row) {
      GradientSums sums;
      for (int64_t slab = 0; slab < slabs; ++slab) sums.Add(partial[row * slabs + slab]);
      terms[row] = TermsOf<A>(task_.formula, static_cast<double>(layout_.cols), task_.stat,
                              task_.mean, task_.rstd, first + row, sums);
    }
    return terms;
  }

  // With all rows at a time a strip's sums are all that there is of its columns' dgamma and dbeta,
  // so that these need no memory but a cache's.
  void StoreAllRows(const std::vector<GradientTerms<A>>& terms) const {
    const int64_t strips = (layout_.cols + kStrip - 1) / kStrip;
    parallel_for_(strips, 3 * layout_.rows * kStrip, [&](int64_t begin, int64_t end) {
      Reader<T> x = x_;
      Reader<T> dy = dy_;
      Writer<T> dx = dx_;
      std::vector<T> unwanted(buffers_.dx == nullptr ? kStrip : 0);
      std::vector<double> sums(2 * kStrip);
      double* dgamma = ParamSums::Wanted(buffers_) ? sums.data() : nullptr;
      double* dbeta = buffers_.dbeta != nullptr ? sums.data() + kStrip : nullptr;
      for (int64_t strip = begin; strip < end; ++strip) {
        std::fill(sums.begin(), sums.end(), 0.0);
        Slab at;
        at.begin = strip * kStrip;
        at.end = std::min(layout_.cols, at.begin + kStrip);
        for (at.row = 0; at.row < layout_.rows; ++at.row) {
          at.offset = at.row * layout_.cols + at.begin;
          StoreSlab(at, terms[at.row], &x, &dy, &dx, unwanted.data(), dgamma, dbeta);
        }
        if (buffers_.dgamma != nullptr) {
          Store(problem_.dparam, dgamma, at.count(), buffers_.dgamma, at.begin);
        }
        if (dbeta != nullptr) {
          Store(problem_.dparam, dbeta, at.count(), buffers_.dbeta, at.begin);
        }
      }
    });
  }

  void StoreSlab(const Slab& at, const GradientTerms<A>& terms, Reader<T>* x, Reader<T>* dy,
                 Writer<T>* dx, T* unwanted, double* dgamma, double* dbeta) const {
    const bool wanted = buffers_.dx != nullptr;
    const T* x_at = x->Get(at.offset, at.count());
    const T* dy_at = dy->Get(at.offset, at.count());
    T* dx_at = wanted ? dx->Room(at.offset, at.count()) : unwanted;
    KernelsFor<T>().backward_run(task_, terms, at.row, at.begin, at.end, x_at, dy_at, dx_at, dgamma,
                                 dbeta);
    if (wanted) dx->Commit(at.offset, at.count());
  }

  // The sums of all blocks are fresh memory in each call, whose pages cost more than what is done
  // with them. 400 MB of float32, 2 threads, milliseconds (on a busy machine) with up to 256
  // blocks, 64, 32, 16: 62, 48, 47, - at 8192 columns, 61, 52, 49, 46 at 16384, 74, 68, 61, 59 at
  // 32768.
  static constexpr int64_t kSumBytes = 2 << 20;
  static constexpr int64_t kFewBlocks = 32;
  // Of long rows: where not even two fit into the last-level cache, x and dy come from memory twice
  // in any case, and all rows at a time save the sums' own way there and back: 100 x 1048576, as
  // above, one row at a time 133, all 99.
  static constexpr int64_t kLeastTogether = 2;
  static constexpr int64_t kStrip = 4096;  // columns; 16384: 103 there

  const BackwardProblem& problem_;
  const BackwardBuffers& buffers_;
  const ParallelFor& parallel_for_;
  const RowLayout layout_;
  const Params<A> gamma_;
  std::vector<A> ones_;
  const Reader<T> x_;
  const Reader<T> dy_;
  const Writer<T> dx_;
  RowBackward<T> task_;
};

// Elements of a sample from which on threads share it, else each has samples of its own. Of many
// samples a wait for the other threads at each costs more: two threads, AVX-512, float32,
// milliseconds, shared and not: 128 x 512 x 768 26.1, 21.7, 16 x 1024 x 768 5.4, 4.5, 128 x 256 x
// 768 9.5, 9.7, 8 x 2048 x 1536 9.9, 9.9. Fewer samples than this may be fewer than threads.
constexpr int64_t kSharedSample = 1 << 20;
constexpr int64_t kFewSamples = 16;
constexpr int64_t kSharedOfFew = 1 << 16;

template <typename T>
void BackwardSamples(const BackwardProblem& problem, const BackwardBuffers& buffers,
                     const ParallelFor& parallel_for) {
  const BackwardProblem of_sample = OneSample(problem);
  const auto run = [&](int64_t sample, const ParallelFor& with) {
    const BackwardBuffers part = OneSample(problem, buffers, sample);
    Rows<T>(of_sample, part, of_sample.geometry.rows, nullptr, problem.geometry.elements, with)
        .Run();
  };
  const int64_t samples = SamplesOf(problem.geometry.rows);
  const int64_t elements = of_sample.geometry.elements;
  if (elements >= (samples < kFewSamples ? kSharedOfFew : kSharedSample)) {
    for (int64_t sample = 0; sample < samples; ++sample) run(sample, parallel_for);
    return;
  }
  const ParallelFor alone = [](int64_t total, int64_t, const Work& work) { work(0, total); };
  parallel_for(samples, 3 * elements, [&](int64_t begin, int64_t end) {
    for (int64_t sample = begin; sample < end; ++sample) run(sample, alone);
  });
}

}  // namespace

template <typename T>
void BackwardRows(const BackwardProblem& problem, const BackwardBuffers& buffers,
                  const ParallelFor& parallel_for) {
  const RowLayout& layout = problem.geometry.rows;
  const int64_t elements = problem.geometry.elements;
  if (layout.repeat > 1) {
    BackwardSamples<T>(problem, buffers, parallel_for);
  } else {
    Rows<T>(problem, buffers, layout, nullptr, elements, parallel_for).Run();
  }
}

template <typename T>
void BackwardGeneral(const BackwardProblem& problem, const BackwardBuffers& buffers,
                     const ParallelFor& parallel_for) {
  const Gather gather(problem.geometry);
  Rows<T>(problem, buffers, gather.Rows(), &gather, problem.geometry.elements, parallel_for).Run();
}

NV_NORMS_INSTANTIATE(Backward, Rows)
NV_NORMS_INSTANTIATE_AS(Backward, General, float)
NV_NORMS_INSTANTIATE_AS(Backward, General, double)

}  // namespace cpu
}  // namespace nv_norms
