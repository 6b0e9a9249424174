// Rows, backward.
#ifndef NV_NORMS_KERNELS_CPU_ROWS_BACKWARD_INL_H_
#define NV_NORMS_KERNELS_CPU_ROWS_BACKWARD_INL_H_

#include "kernels/cpu/rows_forward-inl.h"
#include "kernels/cpu/simd-inl.h"

namespace nv_norms {
namespace cpu {
namespace NV_NORMS_TARGET {
namespace {

// e = x - shift, w = dy * gamma (dy where gamma is null): adds sum(e), sum(w), sum(w * e).
template <bool with_gamma, typename T>
NV_NORMS_INLINE void AddGradientSums(const T* x, const T* dy, const ComputedIn<T>* gamma,
                                     int64_t count, ComputedIn<T> shift, double* sums) {
  using A = ComputedIn<T>;
  const Vec<A> s = Splat(shift);
  Vec<A> e_sum[kUnroll];
  Vec<A> w_sum[kUnroll];
  Vec<A> we_sum[kUnroll];
  Clear(e_sum);
  Clear(w_sum);
  Clear(we_sum);
  const auto add = [&](int u, Vec<A> e, Vec<A> w) __attribute__((always_inline)) {
    e_sum[u] += e;
    w_sum[u] += w;
    we_sum[u] += w * e;
  };
  ForBlocks<A>(
      count,
      [&](int u, int64_t i) __attribute__((always_inline)) {
        Vec<A> w = Load(dy + i);
        if (with_gamma) w = w * Load(gamma + i);
        add(u, Load(x + i) - s, w);
      },
      [&](int64_t i, int64_t rest) __attribute__((always_inline)) {
        Vec<A> w = LoadPart(dy + i, rest, A(0));
        if (with_gamma) w = w * LoadPart(gamma + i, rest, A(0));
        add(1, LoadPart(x + i, rest, shift) - s, w);
      },
      [&]() __attribute__((always_inline)) {
        sums[0] += SumLanes(Sum(e_sum));
        sums[1] += SumLanes(Sum(w_sum));
        sums[2] += SumLanes(Sum(we_sum));
        Clear(e_sum);
        Clear(w_sum);
        Clear(we_sum);
      });
}

template <typename T>
NV_NORMS_INLINE GradientSums SumsOf(const RowBackward<T>& task, int64_t row, int64_t begin,
                                    int64_t end, const T* x, const T* dy) {
  using A = ComputedIn<T>;
  const A mean = static_cast<A>(StoredMean(task.formula, task.stat, task.mean, row));
  GradientSums total;
  if (ParamByColumn(task.layout)) {
    double sums[3] = {};
    AddGradientSums<true>(x, dy, task.gamma + begin, end - begin, mean, sums);
    total.Add({sums[0], sums[1], sums[2]});
    return total;
  }
  ForParamRuns(task.layout, row, begin, end, [&](int64_t from, int64_t to, int64_t param) {
    double sums[3] = {};
    const A* none = nullptr;
    AddGradientSums<false>(x + (from - begin), dy + (from - begin), none, to - from, mean, sums);
    const double gamma = task.gamma == nullptr ? 1.0 : static_cast<double>(task.gamma[param]);
    total.Add({sums[0], sums[1] * gamma, sums[2] * gamma});
  });
  return total;
}

template <typename T>
GradientSums SumsOfRun(const RowBackward<T>& task, int64_t row, int64_t begin, int64_t end,
                       const T* x, const T* dy) {
  return SumsOf(task, row, begin, end, x, dy);
}

enum class ParamSums { kNone, kGamma, kBoth };

// dx of `rows` rows, each with a parameter for each column, and their dgamma and dbeta: the rows'
// sum is added to the doubles once.
template <int rows, bool stream, ParamSums params, typename T>
NV_NORMS_INLINE void BackwardColumnwise(const GradientTerms<ComputedIn<T>>* terms, const T* x,
                                        const T* dy, int64_t step, const ComputedIn<T>* gamma,
                                        int64_t count, T* dx, int64_t dx_step, double* dgamma,
                                        double* dbeta) {
  using A = ComputedIn<T>;
  const auto run = [&](int64_t i, int64_t part, bool streamed) __attribute__((always_inline)) {
    const bool whole = part == 0;
    const Vec<A> g = whole ? Load(gamma + i) : LoadPart(gamma + i, part, A(0));
    Vec<A> dgamma_sum{};
    Vec<A> dbeta_sum{};
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) {
      const GradientTerms<A>& t = terms[r];
      const T* x_at = x + r * step + i;
      const T* dy_at = dy + r * step + i;
      const Vec<A> d = whole ? Load(dy_at) : LoadPart(dy_at, part, A(0));
      const Vec<A> e = ((whole ? Load(x_at) : LoadPart(x_at, part, A(0))) - t.high) - t.low;
      if (params != ParamSums::kNone) dgamma_sum += d * (e * t.rstd + t.xhat_offset);
      if (params == ParamSums::kBoth) dbeta_sum += d;
      const Vec<A> out = ((d * g - t.w_mean) - e * t.slope) * t.rstd;
      T* dx_at = dx + r * dx_step + i;
      if (!whole) {
        StorePart(out, part, dx_at);
      } else if (streamed) {
        Stream(out, dx_at);
      } else {
        Store(out, dx_at);
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
  ForStores<T, stream>(
      dx, count, [&](int64_t i) __attribute__((always_inline)) { run(i, 0, false); },
      [&](int64_t i, int64_t rest) __attribute__((always_inline)) { run(i, rest, false); },
      [&](int64_t i) __attribute__((always_inline)) {
  // The next rows, as in StoreAll.
#pragma GCC unroll 4
        for (int r = 0; r < rows; ++r) {
          Prefetch(x + (rows + r) * step + i);
          Prefetch(dy + (rows + r) * step + i);
        }
        for (int64_t j = 0; j < line; j += lanes) run(i + j, 0, true);
      });
}

template <int rows, bool stream, typename T>
void BackwardColumnwise(const GradientTerms<ComputedIn<T>>* terms, const T* x, const T* dy,
                        int64_t step, const ComputedIn<T>* gamma, int64_t count, T* dx,
                        int64_t dx_step, double* dgamma, double* dbeta) {
  if (dgamma == nullptr && dbeta == nullptr) {
    BackwardColumnwise<rows, stream, ParamSums::kNone>(terms, x, dy, step, gamma, count, dx,
                                                       dx_step, dgamma, dbeta);
  } else if (dbeta == nullptr) {
    BackwardColumnwise<rows, stream, ParamSums::kGamma>(terms, x, dy, step, gamma, count, dx,
                                                        dx_step, dgamma, dbeta);
  } else {
    BackwardColumnwise<rows, stream, ParamSums::kBoth>(terms, x, dy, step, gamma, count, dx,
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
      dx, count, PrefetchHalf<T>{x + count, count},
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
  if (ParamByColumn(task.layout)) {
    BackwardColumnwise<1, stream>(&terms, x, dy, task.layout.cols, task.gamma + begin, end - begin,
                                  dx, 0, dgamma, dbeta);
    return;
  }
  const int64_t first = FirstParam(task.layout, row, begin);
  ForParamRuns(task.layout, row, begin, end, [&](int64_t from, int64_t to, int64_t param) {
    const int64_t skip = from - begin;
    if (dgamma != nullptr || dbeta != nullptr) {
      double sums[3] = {};
      const A* none = nullptr;
      AddGradientSums<false>(x + skip, dy + skip, none, to - from, terms.high, sums);
      const double rstd = terms.rstd;
      if (dgamma != nullptr) {
        dgamma[param - first] +=
            rstd * (sums[2] - terms.low * sums[1]) + terms.xhat_offset * sums[1];
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

template <bool stream, typename T>
NV_NORMS_INLINE void BackwardRowsAs(const RowBackward<T>& task, int64_t begin, int64_t end,
                                    double* dgamma, double* dbeta) {
  using A = ComputedIn<T>;
  const int64_t cols = task.layout.cols;
  const int64_t row_bytes = cols * static_cast<int64_t>(sizeof(T));
  // A row's streamed stores begin at a multiple of 64 bytes.
  const bool alike =
      ParamByColumn(task.layout) &&
      (!stream || (row_bytes % 64 == 0 && reinterpret_cast<uintptr_t>(task.dx) % 64 == 0));
  const int64_t together = !alike || 4 * row_bytes > kBytesTogether         ? 1
                           : 2 * kRowsTogether * row_bytes > kBytesTogether ? 2
                                                                            : kRowsTogether;
  GradientTerms<A> terms[kRowsTogether];
  int64_t row = begin;
  while (row < end) {
    const int64_t count = row + together <= end ? together : 1;
    const int64_t at = row - task.first_row;
    const T* x = task.x + at * cols;
    const T* dy = task.dy + at * cols;
    T* dx = task.dx + at * task.dx_step;
    for (int64_t r = 0; r < count; ++r) {
      const GradientSums sums = SumsOf(task, row + r, 0, cols, x + r * cols, dy + r * cols);
      terms[r] = TermsOf<A>(task.formula, static_cast<double>(cols), task.stat, task.mean,
                            task.rstd, row + r, sums);
    }
    if (count == kRowsTogether) {
      BackwardColumnwise<kRowsTogether, stream>(terms, x, dy, cols, task.gamma, cols, dx,
                                                task.dx_step, dgamma, dbeta);
    } else if (count == 2) {
      BackwardColumnwise<2, stream>(terms, x, dy, cols, task.gamma, cols, dx, task.dx_step, dgamma,
                                    dbeta);
    } else {
      const int64_t param = ParamByColumn(task.layout) ? 0 : FirstParam(task.layout, row, 0);
      BackwardRunAs<stream>(task, terms[0], row, 0, cols, x, dy, dx,
                            dgamma == nullptr ? nullptr : dgamma + param,
                            dbeta == nullptr ? nullptr : dbeta + param);
    }
    row += count;
  }
}

}  // namespace
}  // namespace NV_NORMS_TARGET
}  // namespace cpu
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CPU_ROWS_BACKWARD_INL_H_
