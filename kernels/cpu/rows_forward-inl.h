// Rows, forward. Sums run over at most kBlock numbers in float before they go to double, in an
// order that depends on the count alone.
#ifndef NV_NORMS_KERNELS_CPU_ROWS_FORWARD_INL_H_
#define NV_NORMS_KERNELS_CPU_ROWS_FORWARD_INL_H_

#include "kernels/cpu/line_buffer-inl.h"
#include "kernels/cpu/simd-inl.h"

namespace nv_norms {
namespace cpu {
namespace NV_NORMS_TARGET {
namespace {

constexpr int kUnroll = 4;
constexpr int kVectorsInBlock = kUnroll * 64;

// Calls add(register, vector index) for whole vectors and add_part(index, count) for the rest of
// [0, count); flush() after each block.
template <typename A, typename Add, typename AddPart, typename Flush>
NV_NORMS_INLINE void ForBlocks(int64_t count, const Add& add, const AddPart& add_part,
                               const Flush& flush) {
  constexpr int64_t lanes = kLanes<A>;
  constexpr int64_t block = kVectorsInBlock * lanes;
  int64_t i = 0;
  do {
    const int64_t end = count - i > block ? i + block : count;
    for (; i + kUnroll * lanes <= end; i += kUnroll * lanes) {
      for (int u = 0; u < kUnroll; ++u) add(u, i + u * lanes);
    }
    for (; i + lanes <= end; i += lanes) add(0, i);
    if (i < end) {
      add_part(i, end - i);
      i = end;
    }
    flush();
  } while (i < count);
}

template <typename V>
NV_NORMS_INLINE V Sum(const V* v) {
  return (v[0] + v[1]) + (v[2] + v[3]);
}
template <typename V>
NV_NORMS_INLINE void Clear(V* v) {
  for (int u = 0; u < kUnroll; ++u) v[u] = V{};
}

// Numbers of 16 bits have their moments from one pass: see MeanOf.
template <typename T>
constexpr bool kOnePass = sizeof(T) == 2;

// Each pass over a row prefetches a part of a row that comes later, `next`: a quarter in each of
// the first two passes (half in one), half while lines are streamed (StoreAll), so that the memory
// is busy all the time; or all of it while lines are streamed (PrefetchesAtStores). `next` may be
// null.
template <typename T>
constexpr int64_t kPrefetchParts = kOnePass<T> ? 2 : 4;
template <typename T>
NV_NORMS_INLINE void PrefetchPart(const T* next, int64_t i) {
  if (next != nullptr) Prefetch(next + i / kPrefetchParts<T>);
}

// While lines of a row are streamed: of `next`, which has as many numbers, all or the second half.
template <typename T>
class Ahead {
 public:
  static NV_NORMS_INLINE Ahead All(const T* next) { return Ahead(next, 0); }
  static NV_NORMS_INLINE Ahead SecondHalf(const T* next, int64_t count) {
    return Ahead(next + count / 2, 1);
  }
  // Of the part of the row that begins with its i-th number.
  NV_NORMS_INLINE Ahead From(int64_t i) const { return Ahead(at_ + (i >> shift_), shift_); }
  NV_NORMS_INLINE void operator()(int64_t i) const { Prefetch(at_ + (i >> shift_)); }

 private:
  NV_NORMS_INLINE Ahead(const T* at, int shift) : at_(at), shift_(shift) {}
  const T* at_;
  int shift_;
};

template <typename T>
NV_NORMS_INLINE double SumShifted(const T* x, int64_t count, ComputedIn<T> shift, const T* next) {
  using A = ComputedIn<T>;
  const Vec<A> s = Splat(shift);
  double total = 0;
  Vec<A> sum[kUnroll];
  Clear(sum);
  ForBlocks<A>(
      count,
      [&](int u, int64_t i) __attribute__((always_inline)) {
        if (u == 0) PrefetchPart(next, i);
        sum[u] += Load(x + i) - s;
      },
      [&](int64_t i, int64_t rest)
          __attribute__((always_inline)) { sum[1] += LoadPart(x + i, rest, shift) - s; },
      [&]() __attribute__((always_inline)) {
        total += SumLanes(Sum(sum));
        Clear(sum);
      });
  return total;
}

template <typename T>
NV_NORMS_INLINE void SumMoments(const T* x, int64_t count, ComputedIn<T> shift, const T* next,
                                double* sum, double* squares) {
  using A = ComputedIn<T>;
  const Vec<A> s = Splat(shift);
  Vec<A> first[kUnroll];
  Vec<A> second[kUnroll];
  Clear(first);
  Clear(second);
  *sum = *squares = 0;
  const auto add = [&](int u, Vec<A> e) __attribute__((always_inline)) {
    first[u] += e;
    second[u] += e * e;
  };
  ForBlocks<A>(
      count,
      [&](int u, int64_t i) __attribute__((always_inline)) {
        if (u == 0) PrefetchPart(next, i);
        add(u, Load(x + i) - s);
      },
      [&](int64_t i, int64_t rest)
          __attribute__((always_inline)) { add(1, LoadPart(x + i, rest, shift) - s); },
      [&]() __attribute__((always_inline)) {
        *sum += SumLanes(Sum(first));
        *squares += SumLanes(Sum(second));
        Clear(first);
        Clear(second);
      });
}

// The nearest number of its type.
template <typename T>
NV_NORMS_INLINE float RoundedTo(float value) {
  return Widen(Narrow(Splat(value), T()), T())[0];
}

// Two passes. The first one is shifted by the first number, so that it loses nothing where the mean
// is large, and the second one by the mean, so that it loses nothing where that number is far off.
//
// Numbers of 16 bits leave room in a float's: one pass about the mean of the first of them, rounded
// to their type, so that the differences are exact; where that turns out to be far from the mean,
// another pass about the mean.
template <typename T>
NV_NORMS_INLINE ComputedIn<T> MeanOf(Formula formula, const T* x, int64_t count, const T* next) {
  using A = ComputedIn<T>;
  if (formula == Formula::kRms) return A(0);
  if constexpr (kOnePass<T>) {
    constexpr int64_t lanes = kLanes<A>;
    const int64_t first = count < lanes ? count : lanes;
    const Vec<A> v = count < lanes ? LoadPart(x, count, A(0)) : Load(x);
    return RoundedTo<T>(static_cast<A>(SumLanes(v) / static_cast<double>(first)));
  } else {
    const A first = *x;
    return static_cast<A>(first + SumShifted(x, count, first, next) / static_cast<double>(count));
  }
}

// A mean that was guessed may be so many deviations off: twice what a pass about the very mean
// rounds, five times in the variance, of a float's last bits.
constexpr double kFarOff = 2;

template <typename T>
NV_NORMS_INLINE Moments MomentsAbout(Formula formula, const T* x, int64_t count, ComputedIn<T> mean,
                                     const T* next) {
  const double n = static_cast<double>(count);
  double sum;
  double squares;
  SumMoments(x, count, mean, next, &sum, &squares);
  if (formula != Formula::kRms) {
    Moments out = FromSums(n, mean, sum, squares);
    if constexpr (kOnePass<T>) {
      if (sum * sum > (kFarOff * kFarOff) * n * out.m2) {
        const T* none = nullptr;
        mean = RoundedTo<T>(static_cast<float>(out.mean));
        SumMoments(x, count, mean, none, &sum, &squares);
        out = FromSums(n, mean, sum, squares);
      }
    }
    return out;
  }
  Moments out;
  out.count = n;
  out.m2 = squares;
  return out;
}

// Calls visit(index) for whole vectors and visit_part(index, count) for parts of one; and
// visit_line(index) for whole cache lines of `to` where they are to be streamed, for as many
// numbers anywhere where vectors are stored in pairs.
template <typename T, bool stream, typename Visit, typename VisitPart, typename VisitLine>
NV_NORMS_INLINE void ForStores(const T* to, int64_t count, const Visit& visit,
                               const VisitPart& visit_part, const VisitLine& visit_line) {
  constexpr int64_t lanes = kLanes<ComputedIn<T>>;
  constexpr int64_t line = 64 / sizeof(T);
  int64_t i = 0;
  if (stream) {
    const int64_t offset = static_cast<int64_t>(reinterpret_cast<uintptr_t>(to) % 64 / sizeof(T));
    const int64_t before = offset == 0 ? 0 : line - offset < count ? line - offset : count;
    for (; i + lanes <= before; i += lanes) visit(i);
    if (i < before) visit_part(i, before - i);
    i = before;
  }
  if (stream || kStoredInPairs<T>) {
    for (; i + line <= count; i += line) visit_line(i);
  }
  for (; i + lanes <= count; i += lanes) visit(i);
  if (i < count) visit_part(i, count - i);
}

// Calls ahead(index) before each line that is streamed.
template <bool stream, typename T, typename Ahead, typename Value, typename ValuePart>
NV_NORMS_INLINE void StoreAll(T* to, int64_t count, const Ahead& ahead, const Value& value,
                              const ValuePart& value_part) {
  ForStores<T, stream>(
      to, count, [&](int64_t i) __attribute__((always_inline)) { Store(value(i), to + i); },
      [&](int64_t i, int64_t rest)
          __attribute__((always_inline)) { StorePart(value_part(i, rest), rest, to + i); },
      [&](int64_t i) __attribute__((always_inline)) {
        if (stream) ahead(i);
        StoreLine<stream>(to + i,
                          [&](int j) __attribute__((always_inline)) { return value(i + j); });
      });
}

// Of a constant row without an epsilon the root is infinite and low 0, and x * root, not NaN.
template <typename A>
NV_NORMS_INLINE A LowTimesRoot(const Scaling<A>& scaling) {
  return std::isinf(scaling.rstd) ? A(0) : scaling.rstd * scaling.low;
}

template <bool stream, bool with_gamma, bool with_beta, typename T>
NV_NORMS_INLINE void NormalizeBy(const T* x, int64_t count, const Scaling<ComputedIn<T>>& scaling,
                                 const ComputedIn<T>* gamma, const ComputedIn<T>* beta,
                                 const Ahead<T>& ahead, T* y) {
  using A = ComputedIn<T>;
  const Vec<A> high = Splat(scaling.high);
  const Vec<A> rstd = Splat(scaling.rstd);
  const Vec<A> low = Splat(LowTimesRoot(scaling));
  // The parameters are loaded before, wherever a lane stands: only in one block of code does the
  // compiler join a product and a sum, and where a part of a vector begins hangs on y's address.
  const auto output = [&](Vec<A> v, Vec<A> g, Vec<A> b) __attribute__((always_inline)) {
    Vec<A> out = (v - high) * rstd - low;
    if (with_gamma) out = out * g;
    if (with_beta) out = out + b;
    return out;
  };
  StoreAll<stream>(
      y, count, ahead,
      [&](int64_t i) __attribute__((always_inline)) {
        const Vec<A> g = with_gamma ? Load(gamma + i) : Vec<A>{};
        const Vec<A> b = with_beta ? Load(beta + i) : Vec<A>{};
        return output(Load(x + i), g, b);
      },
      [&](int64_t i, int64_t rest) __attribute__((always_inline)) {
        const Vec<A> g = with_gamma ? LoadPart(gamma + i, rest, A(0)) : Vec<A>{};
        const Vec<A> b = with_beta ? LoadPart(beta + i, rest, A(0)) : Vec<A>{};
        return output(LoadPart(x + i, rest, A(0)), g, b);
      });
}

// One gamma and one beta.
template <bool stream, typename T>
NV_NORMS_INLINE void NormalizeScalar(const T* x, int64_t count,
                                     const Scaling<ComputedIn<T>>& scaling, ComputedIn<T> gamma,
                                     ComputedIn<T> beta, const Ahead<T>& ahead, T* y) {
  using A = ComputedIn<T>;
  const Vec<A> high = Splat(scaling.high);
  const Vec<A> rstd = Splat(scaling.rstd);
  const Vec<A> low = Splat(LowTimesRoot(scaling));
  const Vec<A> g = Splat(gamma);
  const Vec<A> b = Splat(beta);
  StoreAll<stream>(
      y, count, ahead,
      [&](int64_t i)
          __attribute__((always_inline)) { return ((Load(x + i) - high) * rstd - low) * g + b; },
      [&](int64_t i, int64_t rest) __attribute__((always_inline)) {
        return ((LoadPart(x + i, rest, A(0)) - high) * rstd - low) * g + b;
      });
}

template <bool stream, typename T>
NV_NORMS_INLINE void NormalizeRun(const RowForward<T>& task, const Scaling<ComputedIn<T>>& scaling,
                                  int64_t row, int64_t begin, int64_t end, const T* x,
                                  const Ahead<T>& ahead, T* y) {
  using A = ComputedIn<T>;
  const A* gamma = task.gamma;
  const A* beta = task.beta;
  const int64_t count = end - begin;
  if (gamma == nullptr && beta == nullptr) {
    NormalizeBy<stream, false, false>(x, count, scaling, gamma, beta, ahead, y);
  } else if (!ParamsSideBySide(task.layout)) {
    ForParamRuns(task.layout, row, begin, end, [&](int64_t from, int64_t to, int64_t param) {
      NormalizeScalar<stream>(
          x + (from - begin), to - from, scaling, gamma == nullptr ? A(1) : gamma[param],
          beta == nullptr ? A(0) : beta[param], ahead.From(from - begin), y + (from - begin));
    });
  } else {
    const int64_t first = FirstParam(task.layout, row, begin);
    if (beta == nullptr) {
      NormalizeBy<stream, true, false>(x, count, scaling, gamma + first, beta, ahead, y);
    } else if (gamma == nullptr) {
      NormalizeBy<stream, false, true>(x, count, scaling, gamma, beta + first, ahead, y);
    } else {
      NormalizeBy<stream, true, true>(x, count, scaling, gamma + first, beta + first, ahead, y);
    }
  }
}

template <typename T>
void Normalize(const RowForward<T>& task, const Scaling<ComputedIn<T>>& scaling, int64_t row,
               int64_t begin, int64_t end, const T* x, T* y) {
  // Slabs are normalized in descending order.
  const int64_t count = end - begin;
  const Ahead<T> ahead = Ahead<T>::SecondHalf(x - count, count);
  if (task.stream) {
    NormalizeRun<true>(task, scaling, row, begin, end, x, ahead, y);
    FinishStreams();
  } else {
    NormalizeRun<false>(task, scaling, row, begin, end, x, ahead, y);
  }
}

// Rows are brought closer so far ahead, at least one. AMD EPYC (family 26), float32, 400 MB, one
// thread, picoseconds an element, one row ahead and so: 273 and 181 at 768 columns, 286 and 162 at
// 512, 267 and 163 at 384; two threads 168 and 155, 165 and 150, 163 and 155.
constexpr int64_t kForwardAheadBytes = 15 << 10;

// Longer rows than this are streamed where they lie, though they begin amid a line: as above, one
// thread, where they lie and through a buffer (LineBuffer), 428 and 344 at 113 columns, 216 and 174
// at 500, 184 and 172 at 1000, 193 and 204 at 1001, 202 and 263 at 2047.
constexpr int64_t kBufferedForward = 4000;

// Three rows at a time: the first pass over one, the second pass over the one before it, and the
// output of the one before that. Each pass needs a number that the pass before it has at its very
// end; meanwhile the core works on other rows.
template <bool stream, typename T>
NV_NORMS_INLINE void ForwardShortRows(const RowForward<T>& task, int64_t begin, int64_t end) {
  using A = ComputedIn<T>;
  const int64_t cols = task.layout.cols;
  const int64_t row_bytes = cols * static_cast<int64_t>(sizeof(T));
  const int64_t far = std::max<int64_t>(1, kForwardAheadBytes / row_bytes) * cols;
  const bool at_stores = PrefetchesAtStores();
  const T* x = task.x + (begin - task.first_row) * cols;
  T* y = task.y + (begin - task.first_row) * cols;
  const bool apart = row_bytes % 64 != 0 || reinterpret_cast<uintptr_t>(y) % 64 != 0;
  const bool buffered = stream && apart && row_bytes <= kBufferedForward;
  LineBuffer<T> buffer(y);
  y -= 2 * cols;
  A mean = 0;
  Scaling<A> scaling;
  for (int64_t row = begin; row < end + 2; ++row, x += cols, y += cols) {
    const T* next = stream && !at_stores ? x + far : nullptr;
    const T* next_quarter = stream && !at_stores ? x + far + (kOnePass<T> ? 0 : cols / 4) : nullptr;
    const Scaling<A> output = scaling;
    if (row > begin && row <= end) {
      const Moments moments = MomentsAbout(task.formula, x - cols, cols, mean, next_quarter);
      scaling = FinishStatistic<A>(moments, task.formula, task.epsilon, task.stat, row - 1,
                                   task.mean, task.rstd);
    }
    if (row < end) mean = MeanOf(task.formula, x, cols, next);
    if (row < begin + 2) continue;
    const Ahead<T> ahead = at_stores ? Ahead<T>::All(x + far) : Ahead<T>::SecondHalf(x + far, cols);
    if (buffered) {
      NormalizeRun<false>(task, output, row - 2, 0, cols, x - 2 * cols, ahead, buffer.Room());
      buffer.Commit(cols, ahead);
    } else {
      NormalizeRun<stream>(task, output, row - 2, 0, cols, x - 2 * cols, ahead, y);
    }
  }
  if (buffered) buffer.Finish();
}

// Rows of more elements are read in pieces, whose two passes find them in the L1 cache.
constexpr int64_t kPiece = 2048;

// The first pass over a piece comes before the second one over the piece before it, for the same
// reason as in ForwardShortRows.
template <typename T>
NV_NORMS_INLINE Moments MomentsOf(Formula formula, const T* x, int64_t count, const T* next) {
  Moments total;
  int64_t before = 0;  // the size of the piece before
  ComputedIn<T> mean = 0;
  for (int64_t i = 0;; i += kPiece) {
    const int64_t size = i >= count ? 0 : count - i < kPiece ? count - i : kPiece;
    const T* first = next == nullptr ? nullptr : next + i / kPrefetchParts<T>;
    const ComputedIn<T> mean_before = mean;
    if (size > 0) mean = MeanOf(formula, x + i, size, first);
    if (before > 0) {
      const T* second =
          next == nullptr ? nullptr
                          : next + (kOnePass<T> ? 0 : count / 4) + (i - kPiece) / kPrefetchParts<T>;
      Merge(MomentsAbout(formula, x + i - kPiece, before, mean_before, second), &total);
    }
    if (size == 0) return total;
    before = size;
  }
}

template <bool stream, typename T>
NV_NORMS_INLINE void ForwardLongRows(const RowForward<T>& task, int64_t begin, int64_t end) {
  const int64_t cols = task.layout.cols;
  for (int64_t row = begin; row < end; ++row) {
    const T* x = task.x + (row - task.first_row) * cols;
    const T* next = stream ? x + cols : nullptr;
    const Scaling<ComputedIn<T>> scaling =
        FinishStatistic<ComputedIn<T>>(MomentsOf(task.formula, x, cols, next), task.formula,
                                       task.epsilon, task.stat, row, task.mean, task.rstd);
    NormalizeRun<stream>(task, scaling, row, 0, cols, x, Ahead<T>::SecondHalf(x + cols, cols),
                         task.y + (row - task.first_row) * cols);
  }
}

template <bool stream, typename T>
void ForwardRowsAs(const RowForward<T>& task, int64_t begin, int64_t end) {
  if (task.layout.cols > kPiece) {
    ForwardLongRows<stream>(task, begin, end);
  } else {
    ForwardShortRows<stream>(task, begin, end);
  }
}

template <typename T>
Moments MomentsOfRun(Formula formula, const T* x, int64_t count) {
  const T* none = nullptr;
  return MomentsOf(formula, x, count, none);
}

}  // namespace
}  // namespace NV_NORMS_TARGET
}  // namespace cpu
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CPU_ROWS_FORWARD_INL_H_
