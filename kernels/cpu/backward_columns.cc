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
        cut_(layout_, 2 * sizeof(T)),
        x_(problem.x, buffers.x),
        dy_(problem.dy, buffers.dy),
        dx_(problem.dx, buffers.dx) {
    const Params<A> gamma(problem.param, buffers.gamma, problem.geometry.params);
    gamma_ = ParamsInOrder<A>(layout_, gamma, 1);
    columns_gamma_ = gamma_;
    if (!by_row()) {
      columns_gamma_.resize(cut_.columns());
      Repeat(columns_gamma_.data(), channels_, cut_.columns());
    }
    stream_ = buffers.dx != nullptr && dx_.in_place() &&
              StreamOutput(problem.geometry.elements * static_cast<int64_t>(sizeof(T)));
  }

  void Run(const ParallelFor& parallel_for) const {
    // Samples that stay in one core's cache: some blocks of them, each with sums of its own.
    const int64_t blocks = cut_.alone() ? std::min<int64_t>(layout_.n, kBlocks) : 1;
    // A column problem's parameters are in the order of its rows, or of its channels.
    const int64_t params = by_row() ? layout_.s : channels_;
    ParamSums sums(buffers_, blocks, params);
    if (cut_.alone()) {
      const int64_t per_block = (layout_.n + blocks - 1) / blocks;
      parallel_for(blocks, 3 * per_block * layout_.s * channels_, [&](int64_t begin, int64_t end) {
        Wave wave(*this, 1);
        for (int64_t block = begin; block < end; ++block) {
          const int64_t stop = std::min(layout_.n, (block + 1) * per_block);
          for (int64_t n = block * per_block; n < stop; ++n) {
            wave.Run(n, 1, sums.Gamma(block), sums.Beta(block), Serially);
          }
        }
      });
    } else {
      Wave wave(*this, cut_.wave());
      for (int64_t n = 0; n < layout_.n; n += cut_.wave()) {
        wave.Run(n, std::min(cut_.wave(), layout_.n - n), sums.Gamma(0), sums.Beta(0),
                 parallel_for);
      }
    }
    sums.Store(problem_, buffers_, parallel_for);
  }

 private:
  static constexpr int64_t kBlocks = 64;

  bool by_row() const { return layout_.s_stride != 0; }

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

    void Run(int64_t first, int64_t samples, double* dgamma, double* dbeta,
             const ParallelFor& parallel_for) {
      const BackwardBuffers& buffers = of_.buffers_;
      const int64_t groups = of_.layout_.groups;
      const int64_t tiles = samples * cut_.tiles_of_sample();
      parallel_for(samples, cut_.columns(), [&](int64_t begin, int64_t end) {
        for (int64_t n = begin; n < end; ++n) SpreadMeans(first, n);
      });
      parallel_for(tiles, 2 * cut_.elements_of_tile(), [&](int64_t begin, int64_t end) {
        Reader<T> x = of_.x_;
        Reader<T> dy = of_.dy_;
        std::vector<A> scratch(3 * Padded(cut_.width()));
        for (int64_t i = begin; i < end; ++i) SumTile(cut_.At(first, i), &x, &dy, scratch.data());
      });
      parallel_for(samples * groups, 3 * of_.layout_.depth * cut_.slabs() * cut_.copies(),
                   [&](int64_t begin, int64_t end) {
                     while (begin < end) {
                       const int64_t n = begin / groups;
                       const int64_t stop = std::min(end, (n + 1) * groups);
                       FinishGroups(first, n, begin - n * groups, stop - n * groups);
                       begin = stop;
                     }
                   });
      if (dgamma != nullptr && of_.by_row()) {
        parallel_for(of_.layout_.s, 2 * samples * of_.channels_, [&](int64_t begin, int64_t end) {
          Reader<T> x = of_.x_;
          Reader<T> dy = of_.dy_;
          for (int64_t s = begin; s < end; ++s) SumRow(first, samples, s, &x, &dy, dgamma, dbeta);
        });
      } else if (dgamma != nullptr) {
        for (int64_t n = 0; n < samples; ++n) SumChannels(n, dgamma, dbeta);
      }
      if (buffers.dx == nullptr) return;
      parallel_for(tiles, 3 * cut_.elements_of_tile(), [&](int64_t begin, int64_t end) {
        Reader<T> x = of_.x_;
        Reader<T> dy = of_.dy_;
        Writer<T> dx = of_.dx_;
        for (int64_t i = begin; i < end; ++i) {
          StoreTile(cut_.At(first, tiles - 1 - i), &x, &dy, &dx);
        }
      });
    }

   private:
    void SpreadMeans(int64_t first, int64_t n) {
      const BackwardProblem& problem = of_.problem_;
      A* mean = &mean_[n * cut_.columns()];
      int64_t c = 0;
      for (int64_t g = 0; g < of_.layout_.groups; ++g) {
        const A value =
            static_cast<A>(StoredMean(problem.formula, problem.stat(), of_.buffers_.mean,
                                      (first + n) * of_.layout_.groups + g));
        for (int64_t i = 0; i < of_.layout_.depth; ++i) mean[c++] = value;
      }
      Repeat(mean, of_.channels_, cut_.columns());
    }

    // x and dy are read with one step, so if one goes through a buffer both do.
    struct Inputs {
      ColumnTile<T> x;
      const T* dy;
    };
    Inputs Read(const Tile& tile, Reader<T>* x_reader, Reader<T>* dy_reader) const {
      Inputs out;
      const bool apart = x_reader->in_place() != dy_reader->in_place();
      out.x.rows = tile.rows;
      out.x.width = tile.width;
      int64_t step;
      out.x.x =
          x_reader->GetTile(tile.offset, tile.rows, tile.width, cut_.columns(), apart, &out.x.step);
      out.dy = dy_reader->GetTile(tile.offset, tile.rows, tile.width, cut_.columns(), apart, &step);
      return out;
    }

    const A* RowGamma(const Tile& tile) const {
      return of_.by_row() ? &of_.gamma_[tile.s] : nullptr;
    }

    // A slab has the sums of e, of w and of w * e for each of its columns; a tile writes a part of
    // each, so where it is not as wide as the slab, through a buffer.
    void SumTile(const Tile& tile, Reader<T>* x_reader, Reader<T>* dy_reader, A* scratch) {
      const Inputs in = Read(tile, x_reader, dy_reader);
      const A* mean = &mean_[tile.n * cut_.columns() + tile.column];
      double sums[3 * ColumnCut::kWidest];
      KernelsFor<T>().tile_gradient_sums(in.x, in.dy, mean, RowGamma(tile), scratch, sums);
      for (int i = 0; i < 3; ++i) {
        std::copy(sums + i * tile.width, sums + (i + 1) * tile.width,
                  Sums(tile.n, tile.slab, i) + tile.column);
      }
    }

    double* Sums(int64_t n, int64_t slab, int i) {
      return &sums_[((n * cut_.slabs() + slab) * 3 + i) * cut_.columns()];
    }

    void FinishGroups(int64_t first, int64_t n, int64_t begin, int64_t end) {
      const BackwardProblem& problem = of_.problem_;
      const BackwardBuffers& buffers = of_.buffers_;
      const int64_t depth = of_.layout_.depth;
      const int64_t channel = begin * depth;
      const int64_t count = (end - begin) * depth;
      const double elements = static_cast<double>(of_.layout_.s * depth);
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
      for (int64_t g = begin; g < end; ++g) {
        GradientSums total;
        for (int64_t c = g * depth; c < (g + 1) * depth; ++c) {
          const double gamma = of_.by_row() ? 1.0 : static_cast<double>(of_.gamma_[c]);
          const int64_t i = c - channel;
          total.Add({totals[0][i], totals[1][i] * gamma, totals[2][i] * gamma});
        }
        const GradientTerms<A> t =
            TermsOf<A>(problem.formula, elements, problem.stat(), buffers.mean, buffers.rstd,
                       (first + n) * of_.layout_.groups + g, total);
        for (int64_t copy = 0; copy < cut_.copies(); ++copy) {
          for (int64_t c = g * depth; c < (g + 1) * depth; ++c) {
            const int64_t to = at + copy * of_.channels_ + c;
            high_[to] = t.high;
            low_[to] = t.low;
            rstd_[to] = t.rstd;
            w_mean_[to] = t.w_mean;
            slope_[to] = t.slope;
            xhat_offset_[to] = t.xhat_offset;
          }
        }
      }
    }

    // The parameters belong to channels: from the sums that there are.
    void SumChannels(int64_t n, double* dgamma, double* dbeta) const {
      const int64_t at = n * cut_.columns();
      for (int64_t c = 0; c < of_.channels_; ++c) {
        const double dy = dy_[n * of_.channels_ + c];
        const double dy_e = dy_e_[n * of_.channels_ + c];  // about the stored mean
        dgamma[c] += rstd_[at + c] * (dy_e - low_[at + c] * dy) + xhat_offset_[at + c] * dy;
        if (dbeta != nullptr) dbeta[c] += dy;
      }
    }

    // A parameter belongs to a row.
    void SumRow(int64_t first, int64_t samples, int64_t s, Reader<T>* x, Reader<T>* dy,
                double* dgamma, double* dbeta) const {
      const int64_t channels = of_.channels_;
      double unwanted = 0;
      for (int64_t n = 0; n < samples; ++n) {
        const int64_t offset = ((first + n) * of_.layout_.s + s) * channels;
        KernelsFor<T>().row_param_gradients(x->Get(offset, channels), dy->Get(offset, channels),
                                            channels, TermsAt(n * cut_.columns()), dgamma + s,
                                            dbeta == nullptr ? &unwanted : dbeta + s);
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

    void StoreTile(const Tile& tile, Reader<T>* x_reader, Reader<T>* dy_reader,
                   Writer<T>* writer) const {
      const Inputs in = Read(tile, x_reader, dy_reader);
      ColumnGradient<A> terms = TermsAt(tile.n * cut_.columns() + tile.column);
      if (of_.by_row()) {
        terms.row_gamma = RowGamma(tile);
      } else {
        terms.gamma = &of_.columns_gamma_[tile.column];
      }
      T* dx = writer->Room(tile.offset, tile.rows * tile.width);
      const int64_t dx_step = writer->in_place() ? cut_.columns() : tile.width;
      if (dx_step == in.x.step) {
        KernelsFor<T>().tile_input_gradient(in.x, in.dy, terms, of_.stream_, dx);
      } else {
        ColumnTile<T> row = in.x;
        row.rows = 1;
        for (int64_t r = 0; r < tile.rows; ++r) {
          row.x = in.x.x + r * in.x.step;
          KernelsFor<T>().tile_input_gradient(row, in.dy + r * in.x.step, terms, of_.stream_,
                                              dx + r * dx_step);
          if (terms.row_gamma != nullptr) ++terms.row_gamma;
        }
      }
      writer->CommitTile(tile.offset, tile.rows, tile.width, cut_.columns());
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
