// x is [n, s, channels]: a statistic for each n and each group of channels. x is cut into tiles of
// some s by some channels, small enough for a core's cache: the moments of each channel of each
// tile, then of each group, then the output tile by tile.
#include <vector>

#include "kernels/cpu/columns.h"
#include "kernels/cpu/layouts.h"
#include "kernels/cpu/moments.h"

namespace nv_norms {
namespace cpu {
namespace {

template <typename A>
void TileMoments(const ForwardProblem& problem, const ColumnTiles& tiles, const Tile& tile,
                 Reader<A>* reader, std::vector<A>* rows, Moments* out) {
  const int64_t count = tile.rows();
  const int64_t width = tile.width();
  std::vector<A> shift(width);
  std::vector<A> sum(width);
  std::vector<A> squares(width);
  rows->resize(count * width);
  for (int64_t s = 0; s < count; ++s) {
    const A* x = reader->Get(tiles.Offset(tile, s), width);
    std::copy(x, x + width, rows->data() + s * width);
  }
  const double total = static_cast<double>(count);
  if (problem.formula != Formula::kRms) {
    const A* first = rows->data();
    for (int64_t s = 0; s < count; ++s) {
      const A* x = rows->data() + s * width;
      for (int64_t c = 0; c < width; ++c) sum[c] += x[c] - first[c];
    }
    for (int64_t c = 0; c < width; ++c) {
      shift[c] = static_cast<A>(first[c] + sum[c] / total);
      sum[c] = 0;
    }
  }
  for (int64_t s = 0; s < count; ++s) {
    const A* x = rows->data() + s * width;
    for (int64_t c = 0; c < width; ++c) {
      const A e = x[c] - shift[c];
      sum[c] += e;
      squares[c] += e * e;
    }
  }
  for (int64_t c = 0; c < width; ++c) {
    if (problem.formula == Formula::kRms) {
      out[c].count = total;
      out[c].mean = 0;
      out[c].m2 = squares[c];
    } else {
      out[c] = FromSums(total, shift[c], sum[c], squares[c]);
    }
  }
}

}  // namespace

template <typename A>
void ForwardColumns(const ForwardProblem& problem, const ForwardBuffers& buffers,
                    const ParallelFor& parallel_for) {
  const Geometry& geometry = problem.geometry;
  const ColumnLayout& layout = geometry.columns;
  const ColumnTiles tiles(layout);
  const int64_t channels = layout.channels();
  const Params<A> gamma(problem.param, buffers.gamma, geometry.params);
  const Params<A> beta(problem.param, buffers.beta, geometry.params);

  std::vector<Moments> partial(layout.n * tiles.slabs() * channels);
  parallel_for(tiles.count(), tiles.elements(), [&](int64_t begin, int64_t end) {
    Reader<A> reader(problem.x, buffers.x);
    std::vector<A> rows;
    for (int64_t i = begin; i < end; ++i) {
      const Tile tile = tiles.At(i);
      TileMoments(problem, tiles, tile, &reader, &rows,
                  &partial[(tile.n * tiles.slabs() + tile.slab) * channels + tile.channel_begin]);
    }
  });

  std::vector<A> high(layout.n * channels);
  std::vector<A> low(layout.n * channels);
  std::vector<A> rstd(layout.n * channels);
  parallel_for(geometry.statistics, layout.depth * tiles.slabs(), [&](int64_t begin, int64_t end) {
    for (int64_t stat = begin; stat < end; ++stat) {
      const int64_t n = stat / layout.groups;
      const int64_t first = stat % layout.groups * layout.depth;
      Moments moments;
      for (int64_t slab = 0; slab < tiles.slabs(); ++slab) {
        for (int64_t c = first; c < first + layout.depth; ++c) {
          Merge(partial[(n * tiles.slabs() + slab) * channels + c], &moments);
        }
      }
      const Scaling<A> scaling = FinishStatistic<A>(problem, buffers, moments, stat);
      for (int64_t c = n * channels + first; c < n * channels + first + layout.depth; ++c) {
        high[c] = scaling.high;
        low[c] = scaling.low;
        rstd[c] = scaling.rstd;
      }
    }
  });

  parallel_for(tiles.count(), tiles.elements(), [&](int64_t begin, int64_t end) {
    Reader<A> reader(problem.x, buffers.x);
    Writer<A> writer(problem.y, buffers.y);
    ChannelParams<A> g(layout, gamma, 1);
    ChannelParams<A> b(layout, beta, 0);
    for (int64_t i = begin; i < end; ++i) {
      const Tile tile = tiles.At(i);
      const int64_t width = tile.width();
      const A* h = &high[tile.n * channels + tile.channel_begin];
      const A* l = &low[tile.n * channels + tile.channel_begin];
      const A* r = &rstd[tile.n * channels + tile.channel_begin];
      for (int64_t s = 0; s < tile.rows(); ++s) {
        const int64_t offset = tiles.Offset(tile, s);
        const A* gs = g.At(tile.s_begin + s, tile.channel_begin, width);
        const A* bs = b.At(tile.s_begin + s, tile.channel_begin, width);
        const A* x = reader.Get(offset, width);
        A* y = writer.Room(offset, width);
#pragma GCC ivdep
        for (int64_t c = 0; c < width; ++c) {
          y[c] = ((x[c] - h[c]) - l[c]) * r[c] * gs[c] + bs[c];
        }
        writer.Commit(offset, width);
      }
    }
  });
}

template void ForwardColumns<float>(const ForwardProblem&, const ForwardBuffers&,
                                    const ParallelFor&);
template void ForwardColumns<double>(const ForwardProblem&, const ForwardBuffers&,
                                     const ParallelFor&);

}  // namespace cpu
}  // namespace nv_norms
