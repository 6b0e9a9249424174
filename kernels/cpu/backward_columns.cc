// x is [n, s, channels], cut into tiles of some s by some channels: the sums of each channel of
// each tile, then of each group, then the input gradient tile by tile.
#include <vector>

#include "kernels/cpu/columns.h"
#include "kernels/cpu/gradient_sums.h"
#include "kernels/cpu/layouts.h"

namespace nv_norms {
namespace cpu {
namespace {

// Sums of a channel of a tile. Of dy, not of w, where gamma does not vary along s.
struct ChannelSums {
  double e = 0;
  double dy = 0;
  double dy_e = 0;
};

template <typename A>
class Columns {
 public:
  Columns(const BackwardProblem& problem, const BackwardBuffers& buffers,
          const ParallelFor& parallel_for)
      : problem_(problem),
        buffers_(buffers),
        parallel_for_(parallel_for),
        layout_(problem.geometry.columns),
        tiles_(layout_),
        channels_(layout_.channels()),
        gamma_(problem.param, buffers.gamma, problem.geometry.params),
        sums_(layout_.n * tiles_.slabs() * channels_),
        terms_(problem.geometry.statistics) {}

  void Run() {
    SumTiles();
    if (layout_.s_stride == 0) SumChannels();
    FinishStatistics();
    if (layout_.s_stride != 0) SumRows();
    if (buffers_.dx != nullptr) StoreInputGradient();
  }

 private:
  bool want_params() const { return buffers_.dgamma != nullptr || buffers_.dbeta != nullptr; }
  int64_t Stat(int64_t n, int64_t channel) const {
    return n * layout_.groups + channel / layout_.depth;
  }

  void SumTiles() {
    parallel_for_(tiles_.count(), 2 * tiles_.elements(), [&](int64_t begin, int64_t end) {
      Reader<A> x_reader(problem_.x, buffers_.x);
      Reader<A> dy_reader(problem_.dy, buffers_.dy);
      ChannelParams<A> gamma(layout_, gamma_, 1);
      std::vector<A> mean, e_sum, w_sum, we_sum;
      for (int64_t i = begin; i < end; ++i) {
        const Tile tile = tiles_.At(i);
        const int64_t width = tile.width();
        mean.resize(width);
        e_sum.assign(width, 0);
        w_sum.assign(width, 0);
        we_sum.assign(width, 0);
        for (int64_t c = 0; c < width; ++c) {
          mean[c] =
              static_cast<A>(StoredMean(problem_, buffers_, Stat(tile.n, tile.channel_begin + c)));
        }
        for (int64_t s = 0; s < tile.rows(); ++s) {
          const A* x = x_reader.Get(tiles_.Offset(tile, s), width);
          const A* dy = dy_reader.Get(tiles_.Offset(tile, s), width);
          // Along s gamma is one number here: columns have no depth then.
          const A scale = layout_.s_stride == 0
                              ? A(1)
                              : gamma.At(tile.s_begin + s, tile.channel_begin, width)[0];
#pragma GCC ivdep
          for (int64_t c = 0; c < width; ++c) {
            const A e = x[c] - mean[c];
            const A w = dy[c] * scale;
            e_sum[c] += e;
            w_sum[c] += w;
            we_sum[c] += w * e;
          }
        }
        ChannelSums* out =
            &sums_[(tile.n * tiles_.slabs() + tile.slab) * channels_ + tile.channel_begin];
        for (int64_t c = 0; c < width; ++c) out[c] = {e_sum[c], w_sum[c], we_sum[c]};
      }
    });
  }

  // The sums of all slabs go to the first one.
  void SumChannels() {
    parallel_for_(layout_.n * channels_, tiles_.slabs(), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        ChannelSums* first = &sums_[i / channels_ * tiles_.slabs() * channels_ + i % channels_];
        for (int64_t slab = 1; slab < tiles_.slabs(); ++slab) {
          const ChannelSums& other = first[slab * channels_];
          first->e += other.e;
          first->dy += other.dy;
          first->dy_e += other.dy_e;
        }
      }
    });
  }

  void FinishStatistics() {
    const int64_t slabs = layout_.s_stride == 0 ? 1 : tiles_.slabs();
    ChannelParams<A> channel_gamma(layout_, gamma_, 1);
    const A* gamma = channel_gamma.At(0, 0, channels_);
    parallel_for_(
        problem_.geometry.statistics, layout_.depth * slabs, [&](int64_t begin, int64_t end) {
          for (int64_t stat = begin; stat < end; ++stat) {
            const int64_t n = stat / layout_.groups;
            const int64_t first = stat % layout_.groups * layout_.depth;
            GradientSums total;
            for (int64_t slab = 0; slab < slabs; ++slab) {
              for (int64_t c = first; c < first + layout_.depth; ++c) {
                const ChannelSums& at = sums_[(n * tiles_.slabs() + slab) * channels_ + c];
                const double scale = layout_.s_stride == 0 ? static_cast<double>(gamma[c]) : 1.0;
                total.Add({at.e, at.dy * scale, at.dy_e * scale});
              }
            }
            terms_[stat] = TermsOf<A>(problem_, buffers_, stat, total);
          }
        });
    if (layout_.s_stride != 0 || !want_params()) return;
    // Here a parameter belongs to a channel: x's batch is summed over in order.
    std::vector<double> dgamma(problem_.geometry.params);
    std::vector<double> dbeta(problem_.geometry.params);
    for (int64_t n = 0; n < layout_.n; ++n) {
      for (int64_t c = 0; c < channels_; ++c) {
        const ChannelSums& at = sums_[n * tiles_.slabs() * channels_ + c];
        const GradientTerms<A>& t = terms_[Stat(n, c)];
        const int64_t param =
            c / layout_.depth * layout_.group_stride + c % layout_.depth * layout_.depth_stride;
        // dy_e is about the stored mean.
        const double about = static_cast<double>(t.xhat_high) - t.high + t.xhat_low;
        dgamma[param] += t.rstd * (at.dy_e - about * at.dy);
        dbeta[param] += at.dy;
      }
    }
    if (buffers_.dgamma != nullptr) {
      Store(problem_.dparam, dgamma.data(), problem_.geometry.params, buffers_.dgamma, 0);
    }
    if (buffers_.dbeta != nullptr) {
      Store(problem_.dparam, dbeta.data(), problem_.geometry.params, buffers_.dbeta, 0);
    }
  }

  // A parameter belongs to a row of channels.
  void SumRows() {
    if (!want_params()) return;
    parallel_for_(layout_.s, 2 * layout_.n * channels_, [&](int64_t begin, int64_t end) {
      Reader<A> x_reader(problem_.x, buffers_.x);
      Reader<A> dy_reader(problem_.dy, buffers_.dy);
      for (int64_t s = begin; s < end; ++s) {
        double dgamma = 0;
        double dbeta = 0;
        for (int64_t n = 0; n < layout_.n; ++n) {
          const int64_t offset = (n * layout_.s + s) * channels_;
          const A* x = x_reader.Get(offset, channels_);
          const A* dy = dy_reader.Get(offset, channels_);
          for (int64_t c = 0; c < channels_; ++c) {
            const GradientTerms<A>& t = terms_[Stat(n, c)];
            dgamma += static_cast<double>(dy[c]) * (((x[c] - t.xhat_high) - t.xhat_low) * t.rstd);
            dbeta += dy[c];
          }
        }
        StoreOne(problem_.dparam, dgamma, buffers_.dgamma, s * layout_.s_stride);
        StoreOne(problem_.dparam, dbeta, buffers_.dbeta, s * layout_.s_stride);
      }
    });
  }

  void StoreInputGradient() {
    parallel_for_(tiles_.count(), 2 * tiles_.elements(), [&](int64_t begin, int64_t end) {
      Reader<A> x_reader(problem_.x, buffers_.x);
      Reader<A> dy_reader(problem_.dy, buffers_.dy);
      Writer<A> writer(problem_.dx, buffers_.dx);
      ChannelParams<A> gamma(layout_, gamma_, 1);
      std::vector<A> high, low, rstd, w_mean, slope;
      for (int64_t i = begin; i < end; ++i) {
        const Tile tile = tiles_.At(i);
        const int64_t width = tile.width();
        for (std::vector<A>* of : {&high, &low, &rstd, &w_mean, &slope}) of->resize(width);
        for (int64_t c = 0; c < width; ++c) {
          const GradientTerms<A>& t = terms_[Stat(tile.n, tile.channel_begin + c)];
          high[c] = t.high;
          low[c] = t.low;
          rstd[c] = t.rstd;
          w_mean[c] = t.w_mean;
          slope[c] = t.slope;
        }
        for (int64_t s = 0; s < tile.rows(); ++s) {
          const int64_t offset = tiles_.Offset(tile, s);
          const A* g = gamma.At(tile.s_begin + s, tile.channel_begin, width);
          const A* x = x_reader.Get(offset, width);
          const A* dy = dy_reader.Get(offset, width);
          A* dx = writer.Room(offset, width);
#pragma GCC ivdep
          for (int64_t c = 0; c < width; ++c) {
            dx[c] = rstd[c] * (dy[c] * g[c] - w_mean[c] - ((x[c] - high[c]) - low[c]) * slope[c]);
          }
          writer.Commit(offset, width);
        }
      }
    });
  }

  const BackwardProblem& problem_;
  const BackwardBuffers& buffers_;
  const ParallelFor& parallel_for_;
  const ColumnLayout& layout_;
  const ColumnTiles tiles_;
  const int64_t channels_;
  const Params<A> gamma_;
  std::vector<ChannelSums> sums_;
  std::vector<GradientTerms<A>> terms_;
};

}  // namespace

template <typename A>
void BackwardColumns(const BackwardProblem& problem, const BackwardBuffers& buffers,
                     const ParallelFor& parallel_for) {
  Columns<A>(problem, buffers, parallel_for).Run();
}

template void BackwardColumns<float>(const BackwardProblem&, const BackwardBuffers&,
                                     const ParallelFor&);
template void BackwardColumns<double>(const BackwardProblem&, const BackwardBuffers&,
                                      const ParallelFor&);

}  // namespace cpu
}  // namespace nv_norms
