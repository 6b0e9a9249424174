// x is [n, s, channels]: a statistic for each n and each group of channels. Some samples at a time,
// so that they are still in the cache when they are read again: the moments of each column of each
// tile, then of each group, then the output, the last tiles first.
#include <algorithm>
#include <vector>

#include "kernels/cpu/columns.h"
#include "kernels/cpu/instantiate.h"

namespace nv_norms {
namespace cpu {
namespace {

template <typename T>
class Columns {
 public:
  using A = ComputedIn<T>;

  Columns(const ForwardProblem& problem, const ForwardBuffers& buffers)
      : problem_(problem),
        buffers_(buffers),
        layout_(problem.geometry.columns),
        channels_(layout_.channels()),
        cut_(layout_, sizeof(T), sizeof(T)),
        x_(problem.x, buffers.x),
        y_(problem.y, buffers.y) {
    const Params<A> gamma(problem.param, buffers.gamma, problem.geometry.params);
    const Params<A> beta(problem.param, buffers.beta, problem.geometry.params);
    gamma_ = AllParams<A>(layout_, gamma, 1);
    beta_ = AllParams<A>(layout_, beta, 0);
    if (!by_row()) columns_beta_ = Repeated(beta_, channels_, cut_.columns());
    for (int64_t slab = 0; slab < cut_.slabs(); ++slab) {
      const double rows = static_cast<double>(cut_.SlabRows(slab));
      // The last slab may end after whole copies.
      for (int64_t at = 0; at < cut_.SlabColumns(slab); at += channels_) {
        parts_.push_back({slab * cut_.columns() + at, rows});
      }
    }
    // In place, y's lines are in the cache already.
    stream_ = y_.in_place() && buffers.x != buffers.y &&
              StreamOutput(problem.geometry.elements * static_cast<int64_t>(sizeof(T)));
  }

  void Run(const ParallelFor& parallel_for) const {
    if (cut_.alone()) {
      const int64_t strips = cut_.strips();
      parallel_for(layout_.n * strips, layout_.s * channels_ / strips,
                   [&](int64_t begin, int64_t end) {
                     Wave wave(*this, 1);
                     Task task(*this);
                     for (int64_t i = begin; i < end; ++i) {
                       const int64_t next = std::min(i + 1, end - 1);
                       wave.RunStrip(i / strips, i % strips,
                                     cut_.StripAt(next / strips, next % strips).offset, &task);
                     }
                   });
      return;
    }
    Wave wave(*this, cut_.wave());
    for (int64_t n = 0; n < layout_.n; n += cut_.wave()) {
      wave.Run(n, std::min(cut_.wave(), layout_.n - n), parallel_for);
    }
  }

 private:
  bool by_row() const { return layout_.s_stride != 0; }
  bool by_sample() const { return layout_.n_stride != 0; }
  // Of sample n.
  const A* Gamma(int64_t n) const { return &gamma_[by_sample() ? n * channels_ : 0]; }
  const A* ColumnsBeta(int64_t n) const {
    return &columns_beta_[by_sample() ? n * cut_.columns() : 0];
  }
  // And mean and rstd have the type that is computed in.
  bool columns_are_statistics() const {
    return layout_.depth == 1 && SizeOf(problem_.stat()) == sizeof(A);
  }

  // What a thread has of its own.
  struct Task {
    explicit Task(const Columns& of)
        : x(of.cut_, of.x_), y(of.y_), scratch(3 * Padded(of.cut_.width())) {}
    TileReader<T> x;
    Writer<T> y;
    std::vector<A> scratch;
  };

  // The samples of one wave, or a strip of one.
  class Wave {
   public:
    Wave(const Columns& of, int64_t samples)
        : of_(of),
          cut_(of.cut_),
          mean_(samples * cut_.slabs() * cut_.columns()),
          m2_(mean_.size()),
          high_(samples * cut_.columns()),
          low_(high_.size()),
          slope_(high_.size()) {}

    void Run(int64_t first, int64_t samples, const ParallelFor& parallel_for) {
      const int64_t tiles = samples * cut_.tiles_of_sample();
      parallel_for(tiles, cut_.elements_of_tile(), [&](int64_t begin, int64_t end) {
        Task task(of_);
        for (int64_t i = begin; i < end; ++i) SumTile(cut_.At(first, i), &task);
      });
      const int64_t groups = of_.layout_.groups;
      parallel_for(samples * groups, 2 * of_.layout_.depth * cut_.slabs() * cut_.copies(),
                   [&](int64_t begin, int64_t end) {
                     ForSamples(groups, begin, end, [&](int64_t n, int64_t from, int64_t to) {
                       FinishGroups(first, n, from, to);
                     });
                   });
      parallel_for(tiles, cut_.elements_of_tile(), [&](int64_t begin, int64_t end) {
        Task task(of_);
        for (int64_t i = begin; i < end; ++i) {
          NormalizeTile(cut_.At(first, tiles - 1 - i), 0, &task);
        }
      });
    }

    // next: where the strip begins that comes after this one.
    void RunStrip(int64_t n, int64_t strip, int64_t next, Task* task) {
      const Tile first = cut_.StripAt(n, strip);
      task->x.BeginStrip(first, of_.layout_.s);
      for (int64_t slab = 0; slab < cut_.slabs(); ++slab) {
        SumTile(cut_.At(n, 0, slab, strip), task);
      }
      FinishGroups(n, 0, cut_.FirstGroup(first), cut_.LastGroup(first));
      // The last ones first: they are in the cache if not all are.
      for (int64_t i = 0; i < cut_.slabs(); ++i) {
        const Tile tile = cut_.At(n, 0, cut_.slabs() - 1 - i, strip);
        NormalizeTile(tile, cut_.Ahead(i, tile, next, kSoonBytes / sizeof(T)), task);
      }
    }

   private:
    int64_t At(const Tile& tile) const {
      return (tile.n * cut_.slabs() + tile.slab) * cut_.columns() + tile.column;
    }

    void SumTile(const Tile& tile, Task* task) {
      ColumnTile<T> x;
      x.rows = tile.rows;
      x.width = tile.width;
      x.x = task->x.GetFirst(tile, &x.step, &x.packed);
      KernelsFor<T>().tile_moments(of_.problem_.formula, x, task->scratch.data(), &mean_[At(tile)],
                                   &m2_[At(tile)]);
    }

    // Groups [begin, end) of sample `n`: means and squares of the columns of a channel put
    // together, then of the channels of a group.
    void FinishGroups(int64_t first, int64_t n, int64_t begin, int64_t end) {
      if (of_.columns_are_statistics()) {
        FinishColumns(first, n, begin, end);
      } else {
        FinishEachGroup(first, n, begin, end);
      }
      const int64_t channel = begin * of_.layout_.depth;
      const int64_t count = (end - begin) * of_.layout_.depth;
      for (int64_t copy = 1; copy < cut_.copies(); ++copy) {
        for (std::vector<A>* terms : {&high_, &low_, &slope_}) {
          A* const from = terms->data() + n * cut_.columns() + channel;
          std::copy(from, from + count, from + copy * of_.channels_);
        }
      }
    }

    void FinishColumns(int64_t first, int64_t n, int64_t begin, int64_t end) {
      const ForwardProblem& problem = of_.problem_;
      const int64_t stat = (first + n) * of_.layout_.groups + begin;
      const int64_t of_sample = n * cut_.slabs() * cut_.columns() + begin;
      const int64_t at = n * cut_.columns() + begin;
      ColumnStatistics<A> task;
      task.formula = problem.formula;
      task.epsilon = problem.epsilon;
      task.elements = static_cast<double>(of_.layout_.s);
      task.columns = end - begin;
      task.parts = of_.parts_.data();
      task.count = static_cast<int64_t>(of_.parts_.size());
      task.mean = &mean_[of_sample];
      task.m2 = &m2_[of_sample];
      task.gamma = of_.by_row() ? nullptr : of_.Gamma(first + n) + begin;
      task.high = &high_[at];
      task.low = &low_[at];
      task.slope = &slope_[at];
      if (of_.buffers_.mean != nullptr) {
        task.stored_mean = static_cast<A*>(of_.buffers_.mean) + stat;
      }
      if (of_.buffers_.rstd != nullptr) {
        task.stored_rstd = static_cast<A*>(of_.buffers_.rstd) + stat;
      }
      KernelsFor<T>().finish_columns(task);
    }

    void FinishEachGroup(int64_t first, int64_t n, int64_t begin, int64_t end) {
      const ForwardProblem& problem = of_.problem_;
      const int64_t depth = of_.layout_.depth;
      const int64_t channel = begin * depth;
      const int64_t count = (end - begin) * depth;
      const double elements = static_cast<double>(of_.layout_.s * depth);
      const bool center = problem.formula != Formula::kRms;
      std::vector<double> mean(count);
      std::vector<double> sum(count);
      if (center) {
        ForParts(n, channel, [&](int64_t at, double rows) {
          for (int64_t i = 0; i < count; ++i) sum[i] += rows * mean_[at + i];
        });
        for (int64_t g = 0; g < count; g += depth) {
          double total = 0;
          for (int64_t i = g; i < g + depth; ++i) total += sum[i];
          std::fill(&mean[g], &mean[g] + depth, total / elements);
        }
        std::fill(sum.begin(), sum.end(), 0.0);
      }
      ForParts(n, channel, [&](int64_t at, double rows) {
        for (int64_t i = 0; i < count; ++i) {
          const double step = mean_[at + i] - mean[i];
          sum[i] += m2_[at + i] + rows * step * step;
        }
      });
      const A* const gamma = of_.Gamma(first + n);
      A* high = &high_[n * cut_.columns()];
      A* low = &low_[n * cut_.columns()];
      A* slope = &slope_[n * cut_.columns()];
      for (int64_t g = begin; g < end; ++g) {
        const int64_t from = (g - begin) * depth;
        Moments moments;
        moments.count = elements;
        moments.mean = mean[from];
        for (int64_t i = from; i < from + depth; ++i) moments.m2 += sum[i];
        const Scaling<A> scaling = FinishStatistic<A>(
            moments, problem.formula, problem.epsilon, problem.stat(),
            (first + n) * of_.layout_.groups + g, of_.buffers_.mean, of_.buffers_.rstd);
        for (int64_t c = g * depth; c < (g + 1) * depth; ++c) {
          high[c] = scaling.high;
          low[c] = scaling.low;
          slope[c] = of_.by_row() ? scaling.rstd : scaling.rstd * gamma[c];
        }
      }
    }

    // Calls visit(index of the mean of column `channel`, rows) for all parts of a sample.
    template <typename Visit>
    void ForParts(int64_t n, int64_t channel, const Visit& visit) const {
      const int64_t base = n * cut_.slabs() * cut_.columns() + channel;
      for (const ColumnPart& part : of_.parts_) visit(base + part.at, part.rows);
    }

    void NormalizeTile(const Tile& tile, int64_t next, Task* task) {
      ColumnTile<T> x;
      x.rows = tile.rows;
      x.width = tile.width;
      x.x = task->x.Get(tile, &x.step);
      x.next = task->x.in_place() ? next : 0;
      const int64_t at = tile.n * cut_.columns() + tile.column;
      ColumnScaling<A> scaling;
      scaling.high = &high_[at];
      scaling.low = &low_[at];
      scaling.slope = &slope_[at];
      if (of_.by_row()) {
        scaling.row_gamma = &of_.gamma_[tile.s];
        scaling.row_beta = &of_.beta_[tile.s];
      } else {
        scaling.beta = of_.ColumnsBeta(cut_.SampleOf(tile)) + tile.column;
      }
      T* y = task->y.Room(tile.offset, tile.rows * tile.width);
      KernelsFor<T>().tile_normalize(x, scaling, of_.stream_, y,
                                     task->y.in_place() ? cut_.columns() : tile.width);
      task->y.CommitTile(tile.offset, tile.rows, tile.width, cut_.columns());
    }

    const Columns& of_;
    const ColumnCut& cut_;
    std::vector<double> mean_;
    std::vector<double> m2_;
    std::vector<A> high_;
    std::vector<A> low_;
    std::vector<A> slope_;
  };

  const ForwardProblem& problem_;
  const ForwardBuffers& buffers_;
  const ColumnLayout& layout_;
  const int64_t channels_;
  const ColumnCut cut_;
  const Reader<T> x_;
  const Writer<T> y_;
  std::vector<A> gamma_;
  std::vector<A> beta_;
  std::vector<A> columns_beta_;
  std::vector<ColumnPart> parts_;  // of a sample, each of all its channels
  bool stream_ = false;
};

}  // namespace

template <typename T>
void ForwardColumns(const ForwardProblem& problem, const ForwardBuffers& buffers,
                    const ParallelFor& parallel_for) {
  Columns<T>(problem, buffers).Run(parallel_for);
}

NV_NORMS_INSTANTIATE(Forward, Columns)

}  // namespace cpu
}  // namespace nv_norms
