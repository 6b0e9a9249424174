// Rows, backward.
#ifndef NV_NORMS_KERNELS_CPU_ROWS_BACKWARD_INL_H_
#define NV_NORMS_KERNELS_CPU_ROWS_BACKWARD_INL_H_

#include "kernels/cpu/line_buffer-inl.h"
#include "kernels/cpu/rows_forward-inl.h"
#include "kernels/cpu/simd-inl.h"

namespace nv_norms {
namespace cpu {
namespace NV_NORMS_TARGET {
namespace {

// Vectors of the sums that a gradient needs (GradientSums), added to in turn.
template <typename A>
struct GradientVectors {
  Vec<A> e[kUnroll];
  Vec<A> w[kUnroll];
  Vec<A> we[kUnroll];
  NV_NORMS_INLINE void Clear() {
    NV_NORMS_TARGET::Clear(e);
    NV_NORMS_TARGET::Clear(w);
    NV_NORMS_TARGET::Clear(we);
  }
  NV_NORMS_INLINE void Add(int u, Vec<A> e_more, Vec<A> w_more) {
    e[u] += e_more;
    w[u] += w_more;
    we[u] += w_more * e_more;
  }
};

// e = x - shift, w = dy * gamma (dy where gamma is null): adds sum(e), sum(w), sum(w * e).
// Meanwhile half of the `count` numbers that come `next` after x and dy is brought closer, unless
// next is 0.
template <bool with_gamma, typename T>
NV_NORMS_INLINE void AddGradientSums(const T* x, const T* dy, const ComputedIn<T>* gamma,
                                     int64_t count, ComputedIn<T> shift, int64_t next,
                                     double* sums) {
  using A = ComputedIn<T>;
  constexpr int64_t line = 64 / sizeof(T);
  constexpr int64_t half = kUnroll * kLanes<A> / 2;
  const Vec<A> s = Splat(shift);
  GradientVectors<A> v;
  v.Clear();
  ForBlocks<A>(
      count,
      [&](int u, int64_t i) __attribute__((always_inline)) {
        if (u == 0 && next != 0) {
          for (int64_t j = 0; j < half; j += line) {
            Prefetch(x + next + i / 2 + j);
            Prefetch(dy + next + i / 2 + j);
          }
        }
        Vec<A> w = Load(dy + i);
        if (with_gamma) w = w * Load(gamma + i);
        v.Add(u, Load(x + i) - s, w);
      },
      [&](int64_t i, int64_t rest) __attribute__((always_inline)) {
        Vec<A> w = LoadPart(dy + i, rest, A(0));
        if (with_gamma) w = w * LoadPart(gamma + i, rest, A(0));
        v.Add(1, LoadPart(x + i, rest, shift) - s, w);
      },
      [&]() __attribute__((always_inline)) {
        sums[0] += SumLanes(Sum(v.e));
        sums[1] += SumLanes(Sum(v.w));
        sums[2] += SumLanes(Sum(v.we));
        v.Clear();
      });
}

template <typename T>
NV_NORMS_INLINE GradientSums SumsOf(const RowBackward<T>& task, int64_t row, int64_t begin,
                                    int64_t end, const T* x, const T* dy, int64_t next) {
  using A = ComputedIn<T>;
  const A mean = static_cast<A>(StoredMean(task.formula, task.stat, task.mean, row));
  GradientSums total;
  if (ParamsSideBySide(task.layout)) {
    double sums[3] = {};
    const A* gamma = task.gamma + FirstParam(task.layout, row, begin);
    AddGradientSums<true>(x, dy, gamma, end - begin, mean, next, sums);
    total.Add({sums[0], sums[1], sums[2]});
    return total;
  }
  ForParamRuns(task.layout, row, begin, end, [&](int64_t from, int64_t to, int64_t param) {
    double sums[3] = {};
    const A* none = nullptr;
    AddGradientSums<false>(x + (from - begin), dy + (from - begin), none, to - from, mean, 0, sums);
    const double gamma = task.gamma == nullptr ? 1.0 : static_cast<double>(task.gamma[param]);
    total.Add({sums[0], sums[1] * gamma, sums[2] * gamma});
  });
  return total;
}

template <typename T>
GradientSums SumsOfRun(const RowBackward<T>& task, int64_t row, int64_t begin, int64_t end,
                       const T* x, const T* dy) {
  return SumsOf(task, row, begin, end, x, dy, 0);
}

// The rows that are brought closer while dx is streamed: x and dy so many numbers further on, all
// of them or the half that AddGradientSums leaves.
struct Later {
  int64_t next = 0;
  bool at_stores = false;
};

enum class ParamSums { kNone, kGamma, kBoth };

// Brings closer what is `next` numbers further on than the i-th line of each row...
template <int rows, typename T>
NV_NORMS_INLINE void PrefetchAll(const T* x, const T* dy, int64_t step, int64_t next, int64_t i) {
#pragma GCC unroll 4
  for (int r = 0; r < rows; ++r) {
    Prefetch(x + next + r * step + i);
    Prefetch(dy + next + r * step + i);
  }
}
// ...or of the half that AddGradientSums leaves.
template <int rows, typename T>
NV_NORMS_INLINE void PrefetchOtherHalf(const T* x, const T* dy, int64_t step, int64_t count,
                                       int64_t next, int64_t i) {
  constexpr int64_t line = 64 / sizeof(T);
  const T* from = (i / line % 2 == 0 ? x : dy) + next + count / 2 + i / 2;
#pragma GCC unroll 4
  for (int r = 0; r < rows; ++r) Prefetch(from + r * step);
}

// dx of `rows` rows, each with a parameter for each column, and their dgamma and dbeta: the rows'
// sum is added to those once.
template <int rows, bool stream, ParamSums params, typename T, typename S>
NV_NORMS_INLINE void BackwardColumnwise(const GradientTerms<ComputedIn<T>>* terms, const T* x,
                                        const T* dy, int64_t step, const ComputedIn<T>* gamma,
                                        int64_t count, const Later& later, T* dx, int64_t dx_step,
                                        S* dgamma, S* dbeta) {
  using A = ComputedIn<T>;
  // dx of row r where dy, x and gamma are d, v and g; adds to the sums of these columns.
  const auto gradient = [&](int r, Vec<A> d, Vec<A> v, Vec<A> g, Vec<A>* dgamma_sum,
                            Vec<A>* dbeta_sum) __attribute__((always_inline)) {
    const GradientTerms<A>& t = terms[r];
    const Vec<A> e = (v - t.high) - t.low;
    if (params != ParamSums::kNone) *dgamma_sum += d * (e * t.rstd + t.xhat_offset);
    if (params == ParamSums::kBoth) *dbeta_sum += d;
    return ((d * g - t.w_mean) - e * t.slope) * t.rstd;
  };
  const auto run = [&](int64_t i, int64_t part) __attribute__((always_inline)) {
    const bool whole = part == 0;
    const Vec<A> g = whole ? Load(gamma + i) : LoadPart(gamma + i, part, A(0));
    Vec<A> dgamma_sum{};
    Vec<A> dbeta_sum{};
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) {
      const T* x_at = x + r * step + i;
      const T* dy_at = dy + r * step + i;
      const Vec<A> out =
          gradient(r, whole ? Load(dy_at) : LoadPart(dy_at, part, A(0)),
                   whole ? Load(x_at) : LoadPart(x_at, part, A(0)), g, &dgamma_sum, &dbeta_sum);
      T* dx_at = dx + r * dx_step + i;
      if (whole) {
        Store(out, dx_at);
      } else {
        StorePart(out, part, dx_at);
      }
    }
    if (whole) {
      if (params != ParamSums::kNone) AddTo(dgamma_sum, dgamma + i);
      if (params == ParamSums::kBoth) AddTo(dbeta_sum, dbeta + i);
    } else {
      if (params != ParamSums::kNone) AddPartTo<A>(dgamma_sum, part, dgamma + i);
      if (params == ParamSums::kBoth) AddPartTo<A>(dbeta_sum, part, dbeta + i);
    }
  };
  constexpr int64_t lanes = kLanes<A>;
  constexpr int64_t line = 64 / sizeof(T);
  // A line of each row is streamed at once. Where other stores come between its parts, and rows or
  // sums lie a multiple of 4096 bytes apart, an AMD EPYC (AVX2, two parts to a line) writes the
  // parts to memory one by one: 102400 x 1024 float32, 2 threads, took 287 ms.
  constexpr int parts = static_cast<int>(line / lanes);
  const auto run_line = [&](int64_t i) __attribute__((always_inline)) {
    Vec<A> dgamma_sum[parts] = {};
    Vec<A> dbeta_sum[parts] = {};
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) {
      Vec<A> out[parts];
#pragma GCC unroll 8
      for (int p = 0; p < parts; ++p) {
        const int64_t at = i + p * lanes;
        out[p] = gradient(r, Load(dy + r * step + at), Load(x + r * step + at), Load(gamma + at),
                          &dgamma_sum[p], &dbeta_sum[p]);
      }
      StoreLine<stream>(dx + r * dx_step + i,
                        [&](int j) __attribute__((always_inline)) { return out[j / lanes]; });
    }
#pragma GCC unroll 8
    for (int p = 0; p < parts; ++p) {
      if (params != ParamSums::kNone) AddTo(dgamma_sum[p], dgamma + i + p * lanes);
      if (params == ParamSums::kBoth) AddTo(dbeta_sum[p], dbeta + i + p * lanes);
    }
  };
  ForStores<T, stream>(
      dx, count, [&](int64_t i) __attribute__((always_inline)) { run(i, 0); },
      [&](int64_t i, int64_t rest) __attribute__((always_inline)) { run(i, rest); },
      [&](int64_t i) __attribute__((always_inline)) {
        if (!stream) {
          // What is read is in the cache.
        } else if (later.at_stores) {
          PrefetchAll<rows>(x, dy, step, later.next, i);
        } else {
          PrefetchOtherHalf<rows>(x, dy, step, count, later.next, i);
        }
        run_line(i);
      });
}

template <int rows, bool stream, typename T, typename S>
void BackwardColumnwise(const GradientTerms<ComputedIn<T>>* terms, const T* x, const T* dy,
                        int64_t step, const ComputedIn<T>* gamma, int64_t count, const Later& later,
                        T* dx, int64_t dx_step, S* dgamma, S* dbeta) {
  if (dgamma == nullptr && dbeta == nullptr) {
    BackwardColumnwise<rows, stream, ParamSums::kNone>(terms, x, dy, step, gamma, count, later, dx,
                                                       dx_step, dgamma, dbeta);
  } else if (dbeta == nullptr) {
    BackwardColumnwise<rows, stream, ParamSums::kGamma>(terms, x, dy, step, gamma, count, later, dx,
                                                        dx_step, dgamma, dbeta);
  } else {
    BackwardColumnwise<rows, stream, ParamSums::kBoth>(terms, x, dy, step, gamma, count, later, dx,
                                                       dx_step, dgamma, dbeta);
  }
}

// A run of columns with one parameter.
template <bool stream, typename T>
void BackwardScalar(const GradientTerms<ComputedIn<T>>& terms, const T* x, const T* dy,
                    ComputedIn<T> gamma, int64_t count, T* dx) {
  using A = ComputedIn<T>;
  const auto gradient = [&](Vec<A> d, Vec<A> v) __attribute__((always_inline)) {
    const Vec<A> e = (v - terms.high) - terms.low;
    return ((d * gamma - terms.w_mean) - e * terms.slope) * terms.rstd;
  };
  StoreAll<stream>(
      dx, count, Ahead<T>::SecondHalf(x + count, count),
      [&](int64_t i) __attribute__((always_inline)) { return gradient(Load(dy + i), Load(x + i)); },
      [&](int64_t i, int64_t rest) __attribute__((always_inline)) {
        return gradient(LoadPart(dy + i, rest, A(0)), LoadPart(x + i, rest, A(0)));
      });
}

template <bool stream, typename T>
NV_NORMS_INLINE void BackwardRunAs(const RowBackward<T>& task,
                                   const GradientTerms<ComputedIn<T>>& terms, int64_t row,
                                   int64_t begin, int64_t end, const T* x, const T* dy, T* dx,
                                   double* dgamma, double* dbeta) {
  using A = ComputedIn<T>;
  const int64_t first = FirstParam(task.layout, row, begin);
  if (ParamsSideBySide(task.layout)) {
    BackwardColumnwise<1, stream>(&terms, x, dy, task.layout.cols, task.gamma + first, end - begin,
                                  Later{end - begin, false}, dx, 0, dgamma, dbeta);
    return;
  }
  ForParamRuns(task.layout, row, begin, end, [&](int64_t from, int64_t to, int64_t param) {
    const int64_t skip = from - begin;
    if (dgamma != nullptr || dbeta != nullptr) {
      double sums[3] = {};
      const A* none = nullptr;
      AddGradientSums<false>(x + skip, dy + skip, none, to - from, terms.high, 0, sums);
      if (dgamma != nullptr) {
        dgamma[param - first] +=
            SumOfXhat(task.formula, terms.rstd, terms.low, terms.xhat_offset, sums[1], sums[2]);
      }
      if (dbeta != nullptr) dbeta[param - first] += sums[1];
    }
    if (dx != nullptr) {
      const A gamma = task.gamma == nullptr ? A(1) : task.gamma[param];
      BackwardScalar<stream>(terms, x + skip, dy + skip, gamma, to - from, dx + skip);
    }
  });
}

template <typename T>
void BackwardRun(const RowBackward<T>& task, const GradientTerms<ComputedIn<T>>& terms, int64_t row,
                 int64_t begin, int64_t end, const T* x, const T* dy, T* dx, double* dgamma,
                 double* dbeta) {
  if (task.stream) {
    BackwardRunAs<true>(task, terms, row, begin, end, x, dy, dx, dgamma, dbeta);
    FinishStreams();
  } else {
    BackwardRunAs<false>(task, terms, row, begin, end, x, dy, dx, dgamma, dbeta);
  }
}

// Rows that are taken together, so that the sums of their parameters' gradients go to memory once.
constexpr int kRowsTogether = 4;
// Their x and dy must stay in the cache between two passes.
constexpr int64_t kBytesTogether = kCoreBytes;

// Lines of x and dy of these rows, of gamma and of the sums: where rows are a multiple of 4096
// bytes long all of them want the same ways of the L1 cache. With 8 ways (AMD EPYC, 2 threads,
// 102400 x 1024 float32) four rows together take 133 ms, each alone 54; with 12 ways (Intel Xeon)
// four take 36, 0.98 of a copy's speed.
constexpr int64_t kWaysTogether = 2 * kRowsTogether + 4;

// Adds partial sums to the doubles, and clears them.
template <typename A>
NV_NORMS_INLINE void Flush(A* partial, int64_t count, double* to) {
  constexpr int64_t lanes = kLanes<A>;
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    AddTo(Load(partial + i), to + i);
    Store(Vec<A>{}, partial + i);
  }
  for (; i < count; ++i) {
    to[i] += partial[i];
    partial[i] = 0;
  }
}

// Sums of parameters' gradients are kept in float for so many rows: doubles are twice as much to
// read and write for each row or few. 400 MB of float32, 2 threads, milliseconds
// (on a busy machine), so and with doubles for each four rows, two or one: 42 and 49 at 1000
// columns, 64 and 74 at 32768.
constexpr int64_t kPartialRows = 32;

// Rows are read this far ahead, at least; the first of these is not tuned. Where lines are
// prefetched while dx is streamed alone, on an AMD EPYC (family 26), 400 MB of float32, one thread,
// picoseconds an element, 2 KB and 8 KB ahead: 317 and 279 at 768 columns, 346 and 289 at 512, 378
// and 284 at 256. That does not pay at 64 columns (360 and 419), nor where stores are buffered (465
// and 541 at 100 columns).
constexpr int64_t kBackwardAheadBytes = 2048;
constexpr int64_t kBackwardAheadAtStores = 8 << 10;
constexpr int64_t kLeastAtStores = 256;

// How many rows are taken together. Where lines are prefetched while dx is streamed alone, as
// above, four, two and one: 294, 319 and 349 at 128 columns, 331, 284 and 299 at 256, 374, 289 and
// 308 at 512, 427, 335 and 279 at 768, 432, 391 and 280 at 1024.
inline int64_t RowsTogetherFitting(int64_t row_bytes, bool at_stores) {
  if (at_stores) {
    return row_bytes <= 512 ? kRowsTogether : row_bytes <= 2048 ? 2 : 1;
  }
  const bool crowded = row_bytes % 4096 == 0 && Level1Ways() < kWaysTogether;
  if (crowded || 4 * row_bytes > kBytesTogether) return 1;
  return 2 * kRowsTogether * row_bytes > kBytesTogether ? 2 : kRowsTogether;
}

template <bool stream, typename T>
NV_NORMS_INLINE void BackwardRowsAs(const RowBackward<T>& task, int64_t begin, int64_t end,
                                    double* dgamma, double* dbeta) {
  using A = ComputedIn<T>;
  const int64_t cols = task.layout.cols;
  const int64_t row_bytes = cols * static_cast<int64_t>(sizeof(T));
  const bool by_column = ParamByColumn(task.layout);
  // Otherwise a row's streamed stores begin at a multiple of 64 bytes.
  const bool apart =
      stream && (row_bytes % 64 != 0 || reinterpret_cast<uintptr_t>(task.dx) % 64 != 0);
  const bool buffered =
      apart && by_column && RowsTogetherFitting(row_bytes, false) * row_bytes <= kBufferedBytes;
  const bool at_stores =
      stream && PrefetchesAtStores() && by_column && !buffered && row_bytes > kLeastAtStores;
  const int64_t fitting = RowsTogetherFitting(row_bytes, at_stores);
  const int64_t together = by_column && (!apart || buffered) ? fitting : 1;
  const int64_t ahead_bytes = at_stores ? kBackwardAheadAtStores : kBackwardAheadBytes;
  const int64_t ahead_rows = std::max(together, ahead_bytes / row_bytes);
  const Later later = {stream ? ahead_rows * cols : 0, at_stores};
  LineBuffer<T> buffer(task.dx + (begin - task.first_row) * task.dx_step);
  GradientTerms<A> terms[kRowsTogether];
  const bool partly = by_column && dgamma != nullptr;
  A* const gamma_sum = partly ? task.partial : nullptr;
  A* const beta_sum = partly && dbeta != nullptr ? task.partial + Padded(cols) : nullptr;
  int64_t summed = 0;  // rows
  int64_t row = begin;
  while (row < end) {
    const int64_t count = row + together <= end ? together : 1;
    const int64_t at = row - task.first_row;
    const T* x = task.x + at * cols;
    const T* dy = task.dy + at * cols;
    T* dx = task.dx + at * task.dx_step;
    for (int64_t r = 0; r < count; ++r) {
      const GradientSums sums =
          SumsOf(task, row + r, 0, cols, x + r * cols, dy + r * cols, at_stores ? 0 : later.next);
      terms[r] = TermsOf<A>(task.formula, static_cast<double>(cols), task.stat, task.mean,
                            task.rstd, row + r, sums);
    }
    if (buffered) {
      if (count == kRowsTogether) {
        BackwardColumnwise<kRowsTogether, false>(terms, x, dy, cols, task.gamma, cols, Later{},
                                                 buffer.Room(), cols, gamma_sum, beta_sum);
      } else if (count == 2) {
        BackwardColumnwise<2, false>(terms, x, dy, cols, task.gamma, cols, Later{}, buffer.Room(),
                                     cols, gamma_sum, beta_sum);
      } else {
        BackwardColumnwise<1, false>(terms, x, dy, cols, task.gamma, cols, Later{}, buffer.Room(),
                                     cols, gamma_sum, beta_sum);
      }
      buffer.Commit(count * cols, [&](int64_t i) __attribute__((always_inline)) {
        PrefetchOtherHalf<1>(x, dy, 0, count * cols, later.next, i);
      });
    } else if (count == kRowsTogether) {
      BackwardColumnwise<kRowsTogether, stream>(terms, x, dy, cols, task.gamma, cols, later, dx,
                                                task.dx_step, gamma_sum, beta_sum);
    } else if (count == 2) {
      BackwardColumnwise<2, stream>(terms, x, dy, cols, task.gamma, cols, later, dx, task.dx_step,
                                    gamma_sum, beta_sum);
    } else if (by_column) {
      BackwardColumnwise<1, stream>(terms, x, dy, cols, task.gamma, cols, later, dx, task.dx_step,
                                    gamma_sum, beta_sum);
    } else {
      const int64_t param = FirstParam(task.layout, row, 0);
      BackwardRunAs<stream>(task, terms[0], row, 0, cols, x, dy, dx,
                            dgamma == nullptr ? nullptr : dgamma + param,
                            dbeta == nullptr ? nullptr : dbeta + param);
    }
    row += count;
    summed += count;
    if (partly && (summed >= kPartialRows || row == end)) {
      Flush(gamma_sum, cols, dgamma);
      if (beta_sum != nullptr) Flush(beta_sum, cols, dbeta);
      summed = 0;
    }
  }
  if (buffered) buffer.Finish();
}

}  // namespace
}  // namespace NV_NORMS_TARGET
}  // namespace cpu
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CPU_ROWS_BACKWARD_INL_H_
