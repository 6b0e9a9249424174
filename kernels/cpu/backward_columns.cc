// x is [n, s, channels]. Some samples at a time, so that they are still in the cache when they are
// read again: the sums of each column of each tile, then of each group, then the input gradient,
// the last tiles first.
#include <algorithm>
#include <vector>

#include "kernels/cpu/columns.h"
#include "kernels/cpu/instantiate.h"
#include "kernels/cpu/param_sums.h"

namespace nv_norms {
namespace cpu {
namespace {

template <typename T>
class Columns {
 public:
  using A = ComputedIn<T>;

  Columns(const BackwardProblem& problem, const BackwardBuffers& buffers)
      : problem_(problem),
        buffers_(buffers),
        layout_(problem.geometry.columns),
        channels_(layout_.channels()),
        cut_(layout_, 2 * sizeof(T), sizeof(T)),
        x_(problem.x, buffers.x),
        dy_(problem.dy, buffers.dy),
        dx_(problem.dx, buffers.dx) {
    const Params<A> gamma(problem.param, buffers.gamma, problem.geometry.params);
    gamma_ = AllParams<A>(layout_, gamma, 1);
    if (!by_row()) columns_gamma_ = Repeated(gamma_, channels_, cut_.columns());
    stream_ = buffers.dx != nullptr && dx_.in_place() &&
              StreamOutput(problem.geometry.elements * static_cast<int64_t>(sizeof(T)));
  }

  void Run(const ParallelFor& parallel_for) const {
    if (cut_.alone()) {
      RunStrips(parallel_for);
      return;
    }
    // A parameter of a row has sums of its own for each sample and strip of a wave.
    const int64_t sets = by_row() ? cut_.wave() * cut_.strips() : 1;
    ParamSums sums(buffers_, sets, params());
    Wave wave(*this, cut_.wave());
    for (int64_t n = 0; n < layout_.n; n += cut_.wave()) {
      wave.Run(n, std::min(cut_.wave(), layout_.n - n), &sums, parallel_for);
    }
    sums.Store(problem_, buffers_, parallel_for);
  }

 private:
  bool by_row() const { return layout_.s_stride != 0; }
  // And rstd has the type that is computed in.
  bool columns_are_statistics() const {
    return layout_.depth == 1 && SizeOf(problem_.stat()) == sizeof(A);
  }
  bool by_sample() const { return layout_.n_stride != 0; }
  // A column problem's parameters are in the order of its rows, or of its channels, of each sample
  // if they are its own.
  int64_t params() const {
    if (by_row()) return layout_.s;
    return by_sample() ? layout_.n * channels_ : channels_;
  }
  // The first parameter of sample n.
  int64_t ParamOf(int64_t n) const { return by_sample() ? n * channels_ : 0; }
  const A* ColumnsGamma(int64_t n) const {
    return &columns_gamma_[by_sample() ? n * cut_.columns() : 0];
  }
  // Sums of a block of samples and a strip; those of a sample's own parameters are apart in any
  // case.
  int64_t SetOf(int64_t block, int64_t strip) const {
    if (by_sample()) return 0;
    return by_row() ? block * cut_.strips() + strip : block;
  }

  // Blocks of samples, some strips of each sample after another: sums for each block and strip.
  void RunStrips(const ParallelFor& parallel_for) const {
    const int64_t strips = cut_.strips();
    const int64_t of_param = layout_.n * (by_row() ? cut_.width() : layout_.s);  // elements
    // The sums stay a small part of what is read.
    const int64_t blocks = std::min(std::min<int64_t>(layout_.n, kBlocks),
                                    std::max<int64_t>(1, of_param / (strips > 1 ? 256 : 64)));
    const int64_t per_block = (layout_.n + blocks - 1) / blocks;
    // What is next to a strip's row comes to the last-level cache with it.
    const int64_t parts = std::min(strips, (kBlocks + blocks - 1) / blocks);
    const int64_t sets = SetOf(blocks - 1, strips - 1) + 1;
    ParamSums sums(buffers_, sets, params());
    parallel_for(blocks * parts, 3 * per_block * layout_.s * channels_ / parts,
                 [&](int64_t begin, int64_t end) {
                   Wave wave(*this, 1);
                   Task task(*this);
                   for (int64_t i = begin; i < end; ++i) {
                     const int64_t block = i / parts;
                     const int64_t first = i % parts * strips / parts;
                     const int64_t last = (i % parts + 1) * strips / parts;
                     const int64_t stop = std::min(layout_.n, (block + 1) * per_block);
                     for (int64_t n = block * per_block; n < stop; ++n) {
                       const int64_t next = std::min(n + 1, layout_.n - 1);
                       for (int64_t strip = first; strip < last; ++strip) {
                         wave.RunStrip(n, strip, cut_.StripAt(next, strip).offset, &sums,
                                       SetOf(block, strip), &task);
                       }
                     }
                   }
                 });
    sums.Store(problem_, buffers_, parallel_for);
  }

  // What a thread has of its own.
  struct Task {
    explicit Task(const Columns& of)
        : x(of.cut_, of.x_),
          dy(of.cut_, of.dy_),
          dx(of.dx_),
          scratch(3 * Padded(of.cut_.width())),
          unwanted(of.buffers_.dx == nullptr ? of.cut_.width() : 0) {}
    TileReader<T> x;
    TileReader<T> dy;
    Writer<T> dx;
    std::vector<A> scratch;
    std::vector<T> unwanted;
  };

  // The samples of one wave, or a strip of one.
  class Wave {
   public:
    Wave(const Columns& of, int64_t samples)
        : of_(of),
          cut_(of.cut_),
          mean_(samples * cut_.columns()),
          sums_(samples * cut_.slabs() * cut_.columns() * 3),
          e_(samples * of.channels_),
          dy_(e_.size()),
          dy_e_(e_.size()) {
      for (std::vector<A>* term : {&high_, &low_, &rstd_, &w_mean_, &slope_, &xhat_offset_}) {
        term->resize(samples * cut_.columns());
      }
    }

    void Run(int64_t first, int64_t samples, ParamSums* params, const ParallelFor& parallel_for) {
      const int64_t groups = of_.layout_.groups;
      const int64_t tiles = samples * cut_.tiles_of_sample();
      parallel_for(samples, cut_.columns(), [&](int64_t begin, int64_t end) {
        for (int64_t n = begin; n < end; ++n) SpreadMeans(first, n, 0, groups);
      });
      parallel_for(tiles, 2 * cut_.elements_of_tile(), [&](int64_t begin, int64_t end) {
        Task task(of_);
        for (int64_t i = begin; i < end; ++i) SumTile(cut_.At(first, i), &task);
      });
      parallel_for(samples * groups, 3 * of_.layout_.depth * cut_.slabs() * cut_.copies(),
                   [&](int64_t begin, int64_t end) {
                     ForSamples(groups, begin, end, [&](int64_t n, int64_t from, int64_t to) {
                       FinishGroups(first, n, from, to);
                     });
                   });
      if (!of_.by_row()) {
        for (int64_t n = 0; n < samples; ++n) SumChannels(first, n, 0, of_.channels_, 0, params);
      }
      if (!WantsSecondPass()) return;
      parallel_for(tiles, 3 * cut_.elements_of_tile(), [&](int64_t begin, int64_t end) {
        Task task(of_);
        for (int64_t i = begin; i < end; ++i) {
          const Tile tile = cut_.At(first, tiles - 1 - i);
          StoreTile(tile, 0, params, tile.n * cut_.strips() + tile.strip, &task);
        }
      });
    }

    // next: where the strip begins that comes after this one. set: of sums.
    void RunStrip(int64_t n, int64_t strip, int64_t next, ParamSums* params, int64_t set,
                  Task* task) {
      const Tile first = cut_.StripAt(n, strip);
      task->x.BeginStrip(first, of_.layout_.s);
      task->dy.BeginStrip(first, of_.layout_.s);
      const int64_t group = cut_.FirstGroup(first);
      const int64_t last_group = cut_.LastGroup(first);
      const int64_t depth = of_.layout_.depth;
      SpreadMeans(n, 0, group, last_group);
      for (int64_t slab = 0; slab < cut_.slabs(); ++slab) {
        SumTile(cut_.At(n, 0, slab, strip), task);
      }
      FinishGroups(n, 0, group, last_group);
      if (!of_.by_row()) SumChannels(n, 0, group * depth, last_group * depth, set, params);
      if (!WantsSecondPass()) return;
      // The last ones first: they are in the cache if not all are.
      for (int64_t i = 0; i < cut_.slabs(); ++i) {
        const Tile tile = cut_.At(n, 0, cut_.slabs() - 1 - i, strip);
        StoreTile(tile, cut_.Ahead(i, tile, next, kSoonBytes / sizeof(T)), params, set, task);
      }
    }

   private:
    bool WantsSecondPass() const {
      return of_.buffers_.dx != nullptr || (of_.by_row() && ParamSums::Wanted(of_.buffers_));
    }

    void SpreadMeans(int64_t first, int64_t n, int64_t begin, int64_t end) {
      const BackwardProblem& problem = of_.problem_;
      const int64_t depth = of_.layout_.depth;
      A* mean = &mean_[n * cut_.columns()];
      for (int64_t g = begin; g < end; ++g) {
        const A value =
            static_cast<A>(StoredMean(problem.formula, problem.stat(), of_.buffers_.mean,
                                      (first + n) * of_.layout_.groups + g));
        std::fill(mean + g * depth, mean + (g + 1) * depth, value);
      }
      Repeat(mean, of_.channels_, cut_.columns());
    }

    const A* RowGamma(const Tile& tile) const {
      return of_.by_row() ? &of_.gamma_[tile.s] : nullptr;
    }

    // A slab has the sums of e, of w and of w * e for each of its columns; a tile writes a part of
    // each, so where it is not as wide as the slab, through a buffer.
    void SumTile(const Tile& tile, Task* task) {
      ColumnTile<T> x;
      x.rows = tile.rows;
      x.width = tile.width;
      x.x = task->x.GetFirst(tile, &x.step, &x.packed);
      int64_t dy_step;
      T* dy_packed;
      const T* dy = task->dy.GetFirst(tile, &dy_step, &dy_packed);
      const A* mean = &mean_[tile.n * cut_.columns() + tile.column];
      double sums[3 * ColumnCut::kWidest];
      KernelsFor<T>().tile_gradient_sums(x, dy, dy_step, dy_packed, mean, RowGamma(tile),
                                         task->scratch.data(), sums);
      for (int i = 0; i < 3; ++i) {
        std::copy(sums + i * tile.width, sums + (i + 1) * tile.width,
                  Sums(tile.n, tile.slab, i) + tile.column);
      }
    }

    double* Sums(int64_t n, int64_t slab, int i) {
      return &sums_[((n * cut_.slabs() + slab) * 3 + i) * cut_.columns()];
    }

    void FinishGroups(int64_t first, int64_t n, int64_t begin, int64_t end) {
      const int64_t channel = begin * of_.layout_.depth;
      const int64_t count = (end - begin) * of_.layout_.depth;
      double* totals[3] = {&e_[n * of_.channels_ + channel], &dy_[n * of_.channels_ + channel],
                           &dy_e_[n * of_.channels_ + channel]};
      for (int i = 0; i < 3; ++i) {
        std::fill(totals[i], totals[i] + count, 0.0);
        for (int64_t slab = 0; slab < cut_.slabs(); ++slab) {
          const double* from = Sums(n, slab, i);
          for (int64_t at = channel; at < cut_.SlabColumns(slab); at += of_.channels_) {
            for (int64_t c = 0; c < count; ++c) totals[i][c] += from[at + c];
          }
        }
      }
      const int64_t at = n * cut_.columns();
      if (of_.columns_are_statistics()) {
        FinishColumns(first, n, begin, end);
      } else {
        FinishEachGroup(first, n, begin, end);
      }
      for (int64_t copy = 1; copy < cut_.copies(); ++copy) {
        for (std::vector<A>* term : {&high_, &low_, &rstd_, &w_mean_, &slope_, &xhat_offset_}) {
          A* const from = term->data() + at + channel;
          std::copy(from, from + count, from + copy * of_.channels_);
        }
      }
    }

    void FinishColumns(int64_t first, int64_t n, int64_t begin, int64_t end) {
      const int64_t sums = n * of_.channels_ + begin;
      const int64_t at = n * cut_.columns() + begin;
      ColumnGradientStatistics<A> task;
      task.formula = of_.problem_.formula;
      task.elements = static_cast<double>(of_.layout_.s);
      task.columns = end - begin;
      task.e = &e_[sums];
      task.dy = &dy_[sums];
      task.dy_e = &dy_e_[sums];
      task.gamma = of_.by_row() ? nullptr : &of_.gamma_[of_.ParamOf(first + n) + begin];
      task.mean = &mean_[at];
      task.stored_rstd =
          static_cast<const A*>(of_.buffers_.rstd) + (first + n) * of_.layout_.groups + begin;
      task.high = &high_[at];
      task.low = &low_[at];
      task.rstd = &rstd_[at];
      task.w_mean = &w_mean_[at];
      task.slope = &slope_[at];
      task.xhat_offset = &xhat_offset_[at];
      KernelsFor<T>().finish_column_gradients(task);
    }

    void FinishEachGroup(int64_t first, int64_t n, int64_t begin, int64_t end) {
      const BackwardProblem& problem = of_.problem_;
      const BackwardBuffers& buffers = of_.buffers_;
      const int64_t depth = of_.layout_.depth;
      const double elements = static_cast<double>(of_.layout_.s * depth);
      const int64_t at = n * cut_.columns();
      const double* const e = &e_[n * of_.channels_];
      const double* const dy = &dy_[n * of_.channels_];
      const double* const dy_e = &dy_e_[n * of_.channels_];
      const A* const gamma = &of_.gamma_[of_.ParamOf(first + n)];
      for (int64_t g = begin; g < end; ++g) {
        GradientSums total;
        for (int64_t c = g * depth; c < (g + 1) * depth; ++c) {
          const double factor = of_.by_row() ? 1.0 : static_cast<double>(gamma[c]);
          total.Add({e[c], dy[c] * factor, dy_e[c] * factor});
        }
        const GradientTerms<A> t =
            TermsOf<A>(problem.formula, elements, problem.stat(), buffers.mean, buffers.rstd,
                       (first + n) * of_.layout_.groups + g, total);
        for (int64_t to = at + g * depth; to < at + (g + 1) * depth; ++to) {
          high_[to] = t.high;
          low_[to] = t.low;
          rstd_[to] = t.rstd;
          w_mean_[to] = t.w_mean;
          slope_[to] = t.slope;
          xhat_offset_[to] = t.xhat_offset;
        }
      }
    }

    // The parameters belong to channels: from the sums that there are.
    void SumChannels(int64_t first, int64_t n, int64_t begin, int64_t end, int64_t set,
                     ParamSums* params) const {
      double* dgamma = params->Gamma(set, of_.ParamOf(first + n));
      double* dbeta = params->Beta(set, of_.ParamOf(first + n));
      if (dgamma == nullptr) return;
      const Formula formula = of_.problem_.formula;
      const int64_t at = n * cut_.columns();
      for (int64_t c = begin; c < end; ++c) {
        const double dy = dy_[n * of_.channels_ + c];
        const double dy_e = dy_e_[n * of_.channels_ + c];  // about the stored mean
        dgamma[c] +=
            SumOfXhat(formula, rstd_[at + c], low_[at + c], xhat_offset_[at + c], dy, dy_e);
        if (dbeta != nullptr) dbeta[c] += dy;
      }
    }

    ColumnGradient<A> TermsAt(int64_t at) const {
      ColumnGradient<A> out;
      out.high = &high_[at];
      out.low = &low_[at];
      out.rstd = &rstd_[at];
      out.w_mean = &w_mean_[at];
      out.slope = &slope_[at];
      out.xhat_offset = &xhat_offset_[at];
      return out;
    }

    void StoreTile(const Tile& tile, int64_t next, ParamSums* params, int64_t set,
                   Task* task) const {
      ColumnTile<T> x;
      x.rows = tile.rows;
      x.width = tile.width;
      x.x = task->x.Get(tile, &x.step);
      x.next = task->x.in_place() && task->dy.in_place() ? next : 0;
      int64_t dy_step;
      const T* dy = task->dy.Get(tile, &dy_step);
      ColumnGradient<A> terms = TermsAt(tile.n * cut_.columns() + tile.column);
      if (of_.by_row()) {
        terms.row_gamma = RowGamma(tile);
        terms.row_dgamma = params->Gamma(set, tile.s);
        terms.row_dbeta = params->Beta(set, tile.s);
      } else {
        terms.gamma = of_.ColumnsGamma(cut_.SampleOf(tile)) + tile.column;
      }
      const bool wanted = of_.buffers_.dx != nullptr;
      T* dx = wanted ? task->dx.Room(tile.offset, tile.rows * tile.width) : task->unwanted.data();
      const int64_t dx_step = !wanted ? 0 : task->dx.in_place() ? cut_.columns() : tile.width;
      KernelsFor<T>().tile_input_gradient(x, dy, dy_step, terms, of_.stream_, dx, dx_step);
      if (wanted) task->dx.CommitTile(tile.offset, tile.rows, tile.width, cut_.columns());
    }

    const Columns& of_;
    const ColumnCut& cut_;
    std::vector<A> mean_;
    std::vector<double> sums_;
    std::vector<double> e_;
    std::vector<double> dy_;
    std::vector<double> dy_e_;
    std::vector<A> high_;
    std::vector<A> low_;
    std::vector<A> rstd_;
    std::vector<A> w_mean_;
    std::vector<A> slope_;
    std::vector<A> xhat_offset_;
  };

  static constexpr int64_t kBlocks = 64;  // at most; not tuned

  const BackwardProblem& problem_;
  const BackwardBuffers& buffers_;
  const ColumnLayout& layout_;
  const int64_t channels_;
  const ColumnCut cut_;
  const Reader<T> x_;
  const Reader<T> dy_;
  const Writer<T> dx_;
  std::vector<A> gamma_;
  std::vector<A> columns_gamma_;
  bool stream_ = false;
};

}  // namespace

template <typename T>
void BackwardColumns(const BackwardProblem& problem, const BackwardBuffers& buffers,
                     const ParallelFor& parallel_for) {
  Columns<T>(problem, buffers).Run(parallel_for);
}

NV_NORMS_INSTANTIATE(Backward, Columns)

}  // namespace cpu
}  // namespace nv_norms
