// Columns: tiles of some rows by some columns that stay in a core's cache. Each step takes four
// rows (two in the gradient), so that the sums of a column go to memory once for them.
#ifndef NV_NORMS_KERNELS_CPU_COLUMNS_INL_H_
#define NV_NORMS_KERNELS_CPU_COLUMNS_INL_H_

#include "kernels/cpu/rows_forward-inl.h"
#include "kernels/cpu/simd-inl.h"

namespace nv_norms {
namespace cpu {
namespace NV_NORMS_TARGET {
namespace {

// Calls visit(column) for whole vectors, then visit_part(column, count) for the rest of the width.
template <typename A, typename Visit, typename VisitPart>
NV_NORMS_INLINE void ForColumns(int64_t width, const Visit& visit, const VisitPart& visit_part) {
  constexpr int64_t lanes = kLanes<A>;
  int64_t c = 0;
  for (; c + lanes <= width; c += lanes) visit(c);
  if (c < width) visit_part(c, width - c);
}

// Calls visit(row, rows) with `together` rows at a time, then with one.
template <int together, typename Visit, typename VisitOne>
NV_NORMS_INLINE void ForRows(int64_t rows, const Visit& visit, const VisitOne& visit_one) {
  int64_t r = 0;
  for (; r + together <= rows; r += together) visit(r);
  for (; r < rows; ++r) visit_one(r);
}

template <int rows, typename T>
NV_NORMS_INLINE void AddRowsShifted(const T* x, int64_t step, int64_t width,
                                    const ComputedIn<T>* shift, ComputedIn<T>* sum) {
  using A = ComputedIn<T>;
  const auto add = [&](int64_t c, int64_t part) __attribute__((always_inline)) {
    const Vec<A> s = Load(shift + c);
    Vec<A> total = Load(sum + c);
    Vec<A> rows_sum{};
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) {
      const T* at = x + r * step + c;
      rows_sum += (part == 0 ? Load(at) : LoadPart(at, part, A(0))) - s;
    }
    Store(total + rows_sum, sum + c);
  };
  ForColumns<A>(
      width, [&](int64_t c) __attribute__((always_inline)) { add(c, 0); },
      [&](int64_t c, int64_t part) __attribute__((always_inline)) { add(c, part); });
}

template <int rows, typename T>
NV_NORMS_INLINE void AddRowsMoments(const T* x, int64_t step, int64_t width,
                                    const ComputedIn<T>* shift, ComputedIn<T>* sum,
                                    ComputedIn<T>* squares) {
  using A = ComputedIn<T>;
  const auto add = [&](int64_t c, int64_t part) __attribute__((always_inline)) {
    const Vec<A> s = Load(shift + c);
    Vec<A> first{};
    Vec<A> second{};
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) {
      const T* at = x + r * step + c;
      const Vec<A> e = (part == 0 ? Load(at) : LoadPart(at, part, A(0))) - s;
      first += e;
      second += e * e;
    }
    Store(Load(sum + c) + first, sum + c);
    Store(Load(squares + c) + second, squares + c);
  };
  ForColumns<A>(
      width, [&](int64_t c) __attribute__((always_inline)) { add(c, 0); },
      [&](int64_t c, int64_t part) __attribute__((always_inline)) { add(c, part); });
}

template <typename T>
void TileMoments(Formula formula, const ColumnTile<T>& tile, ComputedIn<T>* scratch, double* mean,
                 double* m2) {
  using A = ComputedIn<T>;
  const int64_t padded = Padded(tile.width);
  A* shift = scratch;
  A* sum = scratch + padded;
  A* squares = scratch + 2 * padded;
  const double rows = static_cast<double>(tile.rows);
  const double inverse = 1.0 / rows;
  std::memset(scratch, 0, 3 * padded * sizeof(A));
  const bool center = formula != Formula::kRms;
  if (center) {
    ForColumns<A>(
        tile.width,
        [&](int64_t c) __attribute__((always_inline)) { Store(Load(tile.x + c), shift + c); },
        [&](int64_t c, int64_t part)
            __attribute__((always_inline)) { Store(LoadPart(tile.x + c, part, A(0)), shift + c); });
    ForRows<4>(
        tile.rows,
        [&](int64_t r) __attribute__((always_inline)) {
          AddRowsShifted<4>(tile.x + r * tile.step, tile.step, tile.width, shift, sum);
        },
        [&](int64_t r) __attribute__((always_inline)) {
          AddRowsShifted<1>(tile.x + r * tile.step, tile.step, tile.width, shift, sum);
        });
    for (int64_t c = 0; c < padded; ++c) shift[c] += static_cast<A>(sum[c] * inverse);
    std::memset(sum, 0, padded * sizeof(A));
  }
  ForRows<4>(
      tile.rows,
      [&](int64_t r) __attribute__((always_inline)) {
        AddRowsMoments<4>(tile.x + r * tile.step, tile.step, tile.width, shift, sum, squares);
      },
      [&](int64_t r) __attribute__((always_inline)) {
        AddRowsMoments<1>(tile.x + r * tile.step, tile.step, tile.width, shift, sum, squares);
      });
  for (int64_t c = 0; c < tile.width; ++c) {
    const double low = center ? sum[c] * inverse : 0.0;
    const double left = squares[c] - sum[c] * low;
    mean[c] = shift[c] + low;
    m2[c] = left < 0 ? 0.0 : left;  // keeps NaN
  }
}

template <bool stream, bool by_row, typename T>
NV_NORMS_INLINE void TileNormalizeAs(const ColumnTile<T>& tile,
                                     const ColumnScaling<ComputedIn<T>>& scaling, T* y) {
  using A = ComputedIn<T>;
  const ColumnScaling<A> s = scaling;
  for (int64_t r = 0; r < tile.rows; ++r) {
    const T* x = tile.x + r * tile.step;
    const A gamma = by_row ? s.row_gamma[r] : A(1);
    const A beta = by_row ? s.row_beta[r] : A(0);
    StoreAll<stream>(
        y + r * tile.step, tile.width, x + tile.step,
        [&](int64_t c) __attribute__((always_inline)) {
          const Vec<A> xhat =
              ((Load(x + c) - Load(s.high + c)) - Load(s.low + c)) * Load(s.slope + c);
          return by_row ? xhat * gamma + beta : xhat + Load(s.beta + c);
        },
        [&](int64_t c, int64_t n) __attribute__((always_inline)) {
          const Vec<A> xhat = ((LoadPart(x + c, n, A(0)) - LoadPart(s.high + c, n, A(0))) -
                               LoadPart(s.low + c, n, A(0))) *
                              LoadPart(s.slope + c, n, A(0));
          return by_row ? xhat * gamma + beta : xhat + LoadPart(s.beta + c, n, A(0));
        });
  }
  if (stream) FinishStreams();
}

template <typename T>
void TileNormalize(const ColumnTile<T>& tile, const ColumnScaling<ComputedIn<T>>& scaling,
                   bool stream, T* y) {
  const bool by_row = scaling.row_gamma != nullptr;
  if (stream) {
    by_row ? TileNormalizeAs<true, true>(tile, scaling, y)
           : TileNormalizeAs<true, false>(tile, scaling, y);
  } else {
    by_row ? TileNormalizeAs<false, true>(tile, scaling, y)
           : TileNormalizeAs<false, false>(tile, scaling, y);
  }
}

template <int rows, typename T>
NV_NORMS_INLINE void AddRowsGradientSums(const T* x, const T* dy, int64_t step, int64_t width,
                                         const ComputedIn<T>* about, const ComputedIn<T>* row_gamma,
                                         ComputedIn<T>* e_sum, ComputedIn<T>* w_sum,
                                         ComputedIn<T>* we_sum) {
  using A = ComputedIn<T>;
  const auto add = [&](int64_t c, int64_t part) __attribute__((always_inline)) {
    const Vec<A> s = part == 0 ? Load(about + c) : LoadPart(about + c, part, A(0));
    Vec<A> e_rows{};
    Vec<A> w_rows{};
    Vec<A> we_rows{};
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) {
      const T* x_at = x + r * step + c;
      const T* dy_at = dy + r * step + c;
      const Vec<A> e = (part == 0 ? Load(x_at) : LoadPart(x_at, part, A(0))) - s;
      Vec<A> w = part == 0 ? Load(dy_at) : LoadPart(dy_at, part, A(0));
      if (row_gamma != nullptr) w = w * row_gamma[r];
      e_rows += e;
      w_rows += w;
      we_rows += w * e;
    }
    Store(Load(e_sum + c) + e_rows, e_sum + c);
    Store(Load(w_sum + c) + w_rows, w_sum + c);
    Store(Load(we_sum + c) + we_rows, we_sum + c);
  };
  ForColumns<A>(
      width, [&](int64_t c) __attribute__((always_inline)) { add(c, 0); },
      [&](int64_t c, int64_t part) __attribute__((always_inline)) { add(c, part); });
}

template <typename T>
void TileGradientSums(const ColumnTile<T>& tile, const T* dy, const ComputedIn<T>* about,
                      const ComputedIn<T>* row_gamma, ComputedIn<T>* scratch, double* sums) {
  using A = ComputedIn<T>;
  const int64_t padded = Padded(tile.width);
  A* e = scratch;
  A* w = scratch + padded;
  A* we = scratch + 2 * padded;
  std::memset(scratch, 0, 3 * padded * sizeof(A));
  const auto add = [&](auto rows, int64_t r) __attribute__((always_inline)) {
    AddRowsGradientSums<decltype(rows)::value>(
        tile.x + r * tile.step, dy + r * tile.step, tile.step, tile.width, about,
        row_gamma == nullptr ? nullptr : row_gamma + r, e, w, we);
  };
  ForRows<4>(
      tile.rows,
      [&](int64_t r) __attribute__((always_inline)) { add(std::integral_constant<int, 4>(), r); },
      [&](int64_t r) __attribute__((always_inline)) { add(std::integral_constant<int, 1>(), r); });
  for (int64_t c = 0; c < tile.width; ++c) {
    sums[c] = e[c];
    sums[tile.width + c] = w[c];
    sums[2 * tile.width + c] = we[c];
  }
}

template <bool stream, bool by_row, typename T>
NV_NORMS_INLINE void TileInputGradientAs(const ColumnTile<T>& tile, const T* dy_tile,
                                         const ColumnGradient<ComputedIn<T>>& gradient, T* dx) {
  using A = ComputedIn<T>;
  const ColumnGradient<A> g = gradient;
  for (int64_t r = 0; r < tile.rows; ++r) {
    const T* x = tile.x + r * tile.step;
    const T* dy = dy_tile + r * tile.step;
    const A row_gamma = by_row ? g.row_gamma[r] : A(1);
    StoreAll<stream>(
        dx + r * tile.step, tile.width, x + tile.step,
        [&](int64_t c) __attribute__((always_inline)) {
          const Vec<A> w = by_row ? Load(dy + c) * row_gamma : Load(dy + c) * Load(g.gamma + c);
          const Vec<A> e = (Load(x + c) - Load(g.high + c)) - Load(g.low + c);
          return ((w - Load(g.w_mean + c)) - e * Load(g.slope + c)) * Load(g.rstd + c);
        },
        [&](int64_t c, int64_t n) __attribute__((always_inline)) {
          const Vec<A> d = LoadPart(dy + c, n, A(0));
          const Vec<A> w = by_row ? d * row_gamma : d * LoadPart(g.gamma + c, n, A(0));
          const Vec<A> e = (LoadPart(x + c, n, A(0)) - LoadPart(g.high + c, n, A(0))) -
                           LoadPart(g.low + c, n, A(0));
          return ((w - LoadPart(g.w_mean + c, n, A(0))) - e * LoadPart(g.slope + c, n, A(0))) *
                 LoadPart(g.rstd + c, n, A(0));
        });
  }
  if (stream) FinishStreams();
}

template <typename T>
void TileInputGradient(const ColumnTile<T>& tile, const T* dy,
                       const ColumnGradient<ComputedIn<T>>& gradient, bool stream, T* dx) {
  const bool by_row = gradient.row_gamma != nullptr;
  if (stream) {
    by_row ? TileInputGradientAs<true, true>(tile, dy, gradient, dx)
           : TileInputGradientAs<true, false>(tile, dy, gradient, dx);
  } else {
    by_row ? TileInputGradientAs<false, true>(tile, dy, gradient, dx)
           : TileInputGradientAs<false, false>(tile, dy, gradient, dx);
  }
}

template <typename T>
void RowParamGradients(const T* x, const T* dy, int64_t width,
                       const ColumnGradient<ComputedIn<T>>& gradient, double* dgamma,
                       double* dbeta) {
  using A = ComputedIn<T>;
  const ColumnGradient<A>& g = gradient;
  Vec<double> dgamma_sum{};
  Vec<double> dbeta_sum{};
  constexpr int64_t block = 16 * kLanes<A>;
  for (int64_t begin = 0; begin < width; begin += block) {
    const int64_t count = width - begin < block ? width - begin : block;
    Vec<A> dg{};
    Vec<A> db{};
    const auto add = [&](int64_t at, int64_t n) __attribute__((always_inline)) {
      const int64_t c = begin + at;
      const auto load = [&](auto* from) __attribute__((always_inline)) {
        return n == 0 ? Load(from + c) : LoadPart(from + c, n, A(0));
      };
      const Vec<A> d = load(dy);
      const Vec<A> e = (load(x) - load(g.high)) - load(g.low);
      dg += d * (e * load(g.rstd) + load(g.xhat_offset));
      db += d;
    };
    ForColumns<A>(
        count, [&](int64_t c) __attribute__((always_inline)) { add(c, 0); },
        [&](int64_t c, int64_t part) __attribute__((always_inline)) { add(c, part); });
    dgamma_sum += ToDouble(dg);
    dbeta_sum += ToDouble(db);
  }
  *dgamma += SumLanes(dgamma_sum);
  *dbeta += SumLanes(dbeta_sum);
}

}  // namespace
}  // namespace NV_NORMS_TARGET
}  // namespace cpu
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CPU_COLUMNS_INL_H_
