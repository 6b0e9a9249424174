// Columns: tiles of some rows by some columns that stay in a core's cache. Sums take four rows at a
// time, so that those of a column go to memory once for them.
#ifndef NV_NORMS_KERNELS_CPU_COLUMNS_INL_H_
#define NV_NORMS_KERNELS_CPU_COLUMNS_INL_H_

#include "kernels/cpu/rows_forward-inl.h"
#include "kernels/cpu/simd-inl.h"

namespace nv_norms {
namespace cpu {
namespace NV_NORMS_TARGET {
namespace {

// Calls visit(column, 0) for whole vectors, then visit(column, count) for the rest of the width.
template <typename A, typename Visit>
NV_NORMS_INLINE void ForColumns(int64_t width, const Visit& visit) {
  constexpr int64_t lanes = kLanes<A>;
  int64_t c = 0;
  for (; c + lanes <= width; c += lanes) visit(c, 0);
  if (c < width) visit(c, width - c);
}

// A whole vector if part is 0, else its first `part` lanes and zeros.
template <typename T>
NV_NORMS_INLINE Vec<ComputedIn<T>> LoadAt(const T* from, int64_t part) {
  return part == 0 ? Load(from) : LoadPart(from, part, ComputedIn<T>(0));
}

// The same numbers from memory to memory.
template <typename T>
NV_NORMS_INLINE void MoveAt(const T* from, int64_t part, T* to) {
  if (part == 0) {
    Move(from, to);
  } else {
    for (int64_t i = 0; i < part; ++i) to[i] = from[i];
  }
}

// Calls visit(rows, row) with four rows at a time, then with one; rows: a type with the constant.
template <typename Visit>
NV_NORMS_INLINE void ForRows(int64_t rows, const Visit& visit) {
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4) visit(std::integral_constant<int, 4>(), r);
  for (; r < rows; ++r) visit(std::integral_constant<int, 1>(), r);
}

// While `rows` rows of a tile are summed those that come kAheadInTile bytes later are brought
// closer: where a strip's rows lie apart nothing else does.
constexpr int64_t kAheadInTile = 4096;
template <int rows, typename T>
NV_NORMS_INLINE void PrefetchRows(const T* from, int64_t step, int64_t width, int64_t c) {
  constexpr int64_t line = 64 / sizeof(T);
  if (c % line != 0) return;
  const int64_t ahead = kAheadInTile / static_cast<int64_t>(sizeof(T)) / width + rows;
#pragma GCC unroll 4
  for (int r = 0; r < rows; ++r) Prefetch(from + (r + ahead) * step + c);
}

// sum += x - shift.
template <typename T>
NV_NORMS_INLINE void AddShifted(const ColumnTile<T>& tile, const ComputedIn<T>* shift,
                                ComputedIn<T>* sum) {
  using A = ComputedIn<T>;
  ForRows(tile.rows, [&](auto rows, int64_t row) __attribute__((always_inline)) {
    constexpr int together = decltype(rows)::value;
    ForColumns<A>(tile.width, [&](int64_t c, int64_t part) __attribute__((always_inline)) {
      const Vec<A> s = Load(shift + c);
      Vec<A> total{};
#pragma GCC unroll 4
      for (int r = 0; r < together; ++r)
        total += LoadAt(tile.x + (row + r) * tile.step + c, part) - s;
      Store(Load(sum + c) + total, sum + c);
    });
  });
}

// With e = x - shift: sum += e, squares += e * e.
template <bool pack, typename T>
NV_NORMS_INLINE void AddMoments(const ColumnTile<T>& tile, const ComputedIn<T>* shift,
                                ComputedIn<T>* sum, ComputedIn<T>* squares) {
  using A = ComputedIn<T>;
  ForRows(tile.rows, [&](auto rows, int64_t row) __attribute__((always_inline)) {
    constexpr int together = decltype(rows)::value;
    ForColumns<A>(tile.width, [&](int64_t c, int64_t part) __attribute__((always_inline)) {
      PrefetchRows<together>(tile.x + row * tile.step, tile.step, tile.width, c);
      const Vec<A> s = Load(shift + c);
      Vec<A> first{};
      Vec<A> second{};
#pragma GCC unroll 4
      for (int r = 0; r < together; ++r) {
        const T* x = tile.x + (row + r) * tile.step + c;
        if (pack) MoveAt(x, part, tile.packed + (row + r) * tile.width + c);
        const Vec<A> e = LoadAt(x, part) - s;
        first += e;
        second += e * e;
      }
      Store(Load(sum + c) + first, sum + c);
      Store(Load(squares + c) + second, squares + c);
    });
  });
}

// Of each column's numbers the one that is closest to about[column], into nearest, where its first
// one is. Less one of their own kind numbers of few bits (16-bit types, pixels) lose nothing; less
// any other all of them, and each step of their sum, would be rounded the same way.
template <typename T>
NV_NORMS_INLINE void FindNearest(const ColumnTile<T>& tile, const ComputedIn<T>* about,
                                 ComputedIn<T>* nearest) {
  using A = ComputedIn<T>;
  ForColumns<A>(tile.width, [&](int64_t c, int64_t part) __attribute__((always_inline)) {
    const Vec<A> middle = Load(about + c);
    Vec<A> best = Load(nearest + c);
    Vec<A> apart = (best - middle) * (best - middle);
    for (int64_t r = 1; r < tile.rows; ++r) {
      const Vec<A> x = LoadAt(tile.x + r * tile.step + c, part);
      const Vec<A> d = (x - middle) * (x - middle);
      best = d < apart ? x : best;
      apart = d < apart ? d : apart;
    }
    Store(best, nearest + c);
  });
}

// The sums about a number lose no more than a bit if that is closer to each column's mean than its
// deviation. The number next to the mean of some rows nearly always is; where not, the sums are
// taken once more about the mean that they gave.
template <typename T>
void TileMoments(Formula formula, const ColumnTile<T>& tile, ComputedIn<T>* scratch, double* mean,
                 double* m2) {
  using A = ComputedIn<T>;
  constexpr int64_t kSampled = 16;
  const int64_t padded = Padded(tile.width);
  A* shift = scratch;
  A* sum = scratch + padded;
  A* squares = scratch + 2 * padded;
  const double inverse = 1.0 / static_cast<double>(tile.rows);
  std::memset(scratch, 0, 3 * padded * sizeof(A));
  const bool center = formula != Formula::kRms;
  if (center) {
    ForColumns<A>(tile.width, [&](int64_t c, int64_t part) __attribute__((always_inline)) {
      Store(LoadAt(tile.x + c, part), shift + c);
    });
    // Spread over the tile, since neighbours are often alike.
    ColumnTile<T> some = tile;
    some.rows = tile.rows < kSampled ? tile.rows : kSampled;
    some.step = tile.rows / some.rows * tile.step;
    AddShifted(some, shift, sum);
    const A part = static_cast<A>(1.0 / static_cast<double>(some.rows));
    for (int64_t c = 0; c < padded; ++c) sum[c] = shift[c] + sum[c] * part;
    FindNearest(some, sum, shift);
    std::memset(sum, 0, padded * sizeof(A));
  }
  ColumnTile<T> again = tile;
  if (tile.packed == nullptr) {
    AddMoments<false>(tile, shift, sum, squares);
  } else {
    AddMoments<true>(tile, shift, sum, squares);
    again.x = tile.packed;
    again.step = tile.width;
  }
  if (center) {
    int far = 0;
    for (int64_t c = 0; c < padded; ++c) {
      far |= 2 * sum[c] * (sum[c] * static_cast<A>(inverse)) > squares[c];
    }
    if (far != 0) {
      for (int64_t c = 0; c < padded; ++c) shift[c] += static_cast<A>(sum[c] * inverse);
      std::memset(sum, 0, 2 * padded * sizeof(A));
      AddMoments<false>(again, shift, sum, squares);
    }
  }
  for (int64_t c = 0; c < tile.width; ++c) {
    const double low = center ? sum[c] * inverse : 0.0;
    // Not sum * 0 for RMS: the sum may be infinite.
    const double left = center ? squares[c] - sum[c] * low : squares[c];
    mean[c] = shift[c] + low;
    m2[c] = left < 0 ? 0.0 : left;  // keeps NaN
  }
}

// Stores value(column, part), as in ForColumns, for each column of a row of `width`.
template <bool stream, typename T, typename Ahead, typename Value>
NV_NORMS_INLINE void StoreColumns(T* to, int64_t width, const Ahead& ahead, const Value& value) {
  StoreAll<stream>(
      to, width, ahead, [&](int64_t c) __attribute__((always_inline)) { return value(c, 0); },
      [&](int64_t c, int64_t part) __attribute__((always_inline)) { return value(c, part); });
}

template <bool stream, bool by_row, typename T>
NV_NORMS_INLINE void TileNormalizeAs(const ColumnTile<T>& tile,
                                     const ColumnScaling<ComputedIn<T>>& scaling, T* y,
                                     int64_t y_step) {
  using A = ComputedIn<T>;
  const ColumnScaling<A> s = scaling;
  for (int64_t r = 0; r < tile.rows; ++r) {
    const T* x = tile.x + r * tile.step;
    const A gamma = by_row ? s.row_gamma[r] : A(1);
    const A beta = by_row ? s.row_beta[r] : A(0);
    StoreColumns<stream>(
        y + r * y_step, tile.width,
        [&](int64_t c) __attribute__((always_inline)) { Prefetch(x + tile.next + c); },
        [&](int64_t c, int64_t part) __attribute__((always_inline)) {
          // All is loaded first, for the reason in NormalizeBy.
          const Vec<A> v = LoadAt(x + c, part);
          const Vec<A> high = LoadAt(s.high + c, part);
          const Vec<A> low = LoadAt(s.low + c, part);
          const Vec<A> slope = LoadAt(s.slope + c, part);
          const Vec<A> b = by_row ? Splat(beta) : LoadAt(s.beta + c, part);
          const Vec<A> xhat = ((v - high) - low) * slope;
          return by_row ? xhat * gamma + b : xhat + b;
        });
  }
  if (stream) FinishStreams();
}

template <typename T>
void TileNormalize(const ColumnTile<T>& tile, const ColumnScaling<ComputedIn<T>>& scaling,
                   bool stream, T* y, int64_t y_step) {
  const bool by_row = scaling.row_gamma != nullptr;
  if (stream) {
    by_row ? TileNormalizeAs<true, true>(tile, scaling, y, y_step)
           : TileNormalizeAs<true, false>(tile, scaling, y, y_step);
  } else {
    by_row ? TileNormalizeAs<false, true>(tile, scaling, y, y_step)
           : TileNormalizeAs<false, false>(tile, scaling, y, y_step);
  }
}

template <bool pack, typename T>
NV_NORMS_INLINE void TileGradientSumsAs(const ColumnTile<T>& tile, const T* dy, int64_t dy_step,
                                        T* dy_packed, const ComputedIn<T>* about,
                                        const ComputedIn<T>* row_gamma, ComputedIn<T>* scratch,
                                        double* sums) {
  using A = ComputedIn<T>;
  const int64_t padded = Padded(tile.width);
  A* e_sum = scratch;
  A* w_sum = scratch + padded;
  A* we_sum = scratch + 2 * padded;
  std::memset(scratch, 0, 3 * padded * sizeof(A));
  ForRows(tile.rows, [&](auto rows, int64_t row) __attribute__((always_inline)) {
    constexpr int together = decltype(rows)::value;
    ForColumns<A>(tile.width, [&](int64_t c, int64_t part) __attribute__((always_inline)) {
      PrefetchRows<together>(tile.x + row * tile.step, tile.step, tile.width, c);
      PrefetchRows<together>(dy + row * dy_step, dy_step, tile.width, c);
      const Vec<A> s = LoadAt(about + c, part);
      Vec<A> e_rows{};
      Vec<A> w_rows{};
      Vec<A> we_rows{};
#pragma GCC unroll 4
      for (int r = 0; r < together; ++r) {
        const T* x_at = tile.x + (row + r) * tile.step + c;
        const T* dy_at = dy + (row + r) * dy_step + c;
        if (pack) {
          const int64_t to = (row + r) * tile.width + c;
          if (tile.packed != nullptr) MoveAt(x_at, part, tile.packed + to);
          if (dy_packed != nullptr) MoveAt(dy_at, part, dy_packed + to);
        }
        const Vec<A> e = LoadAt(x_at, part) - s;
        Vec<A> w = LoadAt(dy_at, part);
        if (row_gamma != nullptr) w = w * row_gamma[row + r];
        e_rows += e;
        w_rows += w;
        we_rows += w * e;
      }
      Store(Load(e_sum + c) + e_rows, e_sum + c);
      Store(Load(w_sum + c) + w_rows, w_sum + c);
      Store(Load(we_sum + c) + we_rows, we_sum + c);
    });
  });
  for (int64_t c = 0; c < tile.width; ++c) {
    sums[c] = e_sum[c];
    sums[tile.width + c] = w_sum[c];
    sums[2 * tile.width + c] = we_sum[c];
  }
}

template <typename T>
void TileGradientSums(const ColumnTile<T>& tile, const T* dy, int64_t dy_step, T* dy_packed,
                      const ComputedIn<T>* about, const ComputedIn<T>* row_gamma,
                      ComputedIn<T>* scratch, double* sums) {
  if (tile.packed != nullptr || dy_packed != nullptr) {
    TileGradientSumsAs<true>(tile, dy, dy_step, dy_packed, about, row_gamma, scratch, sums);
  } else {
    TileGradientSumsAs<false>(tile, dy, dy_step, dy_packed, about, row_gamma, scratch, sums);
  }
}

// A row's part of its parameters' gradients. Apart from the row's output, where the lanes that
// columns go to depend on its address.
template <typename T>
NV_NORMS_INLINE void AddRowParams(const T* x, const T* dy, int64_t width,
                                  const ColumnGradient<ComputedIn<T>>& g, int64_t row) {
  using A = ComputedIn<T>;
  Vec<A> dgamma{};
  Vec<A> dbeta{};
  ForColumns<A>(width, [&](int64_t c, int64_t part) __attribute__((always_inline)) {
    const Vec<A> d = LoadAt(dy + c, part);
    const Vec<A> e = (LoadAt(x + c, part) - LoadAt(g.high + c, part)) - LoadAt(g.low + c, part);
    dgamma += d * (e * LoadAt(g.rstd + c, part) + LoadAt(g.xhat_offset + c, part));
    dbeta += d;
  });
  g.row_dgamma[row] += SumLanes(dgamma);
  if (g.row_dbeta != nullptr) g.row_dbeta[row] += SumLanes(dbeta);
}

template <bool stream, bool by_row, typename T>
NV_NORMS_INLINE void TileInputGradientAs(const ColumnTile<T>& tile, const T* dy_tile,
                                         int64_t dy_step,
                                         const ColumnGradient<ComputedIn<T>>& gradient, T* dx,
                                         int64_t dx_step) {
  using A = ComputedIn<T>;
  const ColumnGradient<A> g = gradient;
  for (int64_t r = 0; r < tile.rows; ++r) {
    const T* x = tile.x + r * tile.step;
    const T* dy = dy_tile + r * dy_step;
    const A row_gamma = by_row ? g.row_gamma[r] : A(1);
    if (by_row && g.row_dgamma != nullptr) AddRowParams(x, dy, tile.width, g, r);
    StoreColumns<stream>(
        dx + r * dx_step, tile.width,
        [&](int64_t c) __attribute__((always_inline)) {
          Prefetch(x + tile.next + c);
          Prefetch(dy + tile.next + c);
        },
        [&](int64_t c, int64_t part) __attribute__((always_inline)) {
          // All is loaded first, for the reason in NormalizeBy.
          const Vec<A> d = LoadAt(dy + c, part);
          const Vec<A> v = LoadAt(x + c, part);
          const Vec<A> high = LoadAt(g.high + c, part);
          const Vec<A> low = LoadAt(g.low + c, part);
          const Vec<A> slope = LoadAt(g.slope + c, part);
          const Vec<A> rstd = LoadAt(g.rstd + c, part);
          const Vec<A> gamma = by_row ? Splat(row_gamma) : LoadAt(g.gamma + c, part);
          const Vec<A> w_mean = LoadAt(g.w_mean + c, part);
          return ((d * gamma - w_mean) - ((v - high) - low) * slope) * rstd;
        });
  }
  if (stream) FinishStreams();
}

template <typename T>
void TileInputGradient(const ColumnTile<T>& tile, const T* dy, int64_t dy_step,
                       const ColumnGradient<ComputedIn<T>>& gradient, bool stream, T* dx,
                       int64_t dx_step) {
  const bool by_row = gradient.row_gamma != nullptr;
  if (stream) {
    by_row ? TileInputGradientAs<true, true>(tile, dy, dy_step, gradient, dx, dx_step)
           : TileInputGradientAs<true, false>(tile, dy, dy_step, gradient, dx, dx_step);
  } else {
    by_row ? TileInputGradientAs<false, true>(tile, dy, dy_step, gradient, dx, dx_step)
           : TileInputGradientAs<false, false>(tile, dy, dy_step, gradient, dx, dx_step);
  }
}

}  // namespace
}  // namespace NV_NORMS_TARGET
}  // namespace cpu
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CPU_COLUMNS_INL_H_
