// Rows, forward. Sums run over at most kBlock numbers in float before they go to double, in an order
// that depends on the count alone.
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

template <typename T>
NV_NORMS_INLINE double SumShifted(const T* x, int64_t count, ComputedIn<T> shift) {
  using A = ComputedIn<T>;
  const Vec<A> s = Splat(shift);
  double total = 0;
  Vec<A> sum[kUnroll];
  Clear(sum);
  ForBlocks<A>(
      count,
      [&](int u, int64_t i) __attribute__((always_inline)) { sum[u] += Load(x + i) - s; },
      [&](int64_t i, int64_t rest)
          __attribute__((always_inline)) { sum[1] += LoadPart(x + i, rest, shift) - s; },
      [&]() __attribute__((always_inline)) {
        total += SumLanes(Sum(sum));
        Clear(sum);
      });
  return total;
}

template <typename T>
NV_NORMS_INLINE void SumMoments(const T* x, int64_t count, ComputedIn<T> shift, double* sum,
                                double* squares) {
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
      count, [&](int u, int64_t i) __attribute__((always_inline)) { add(u, Load(x + i) - s); },
      [&](int64_t i, int64_t rest)
          __attribute__((always_inline)) { add(1, LoadPart(x + i, rest, shift) - s); },
      [&]() __attribute__((always_inline)) {
        *sum += SumLanes(Sum(first));
        *squares += SumLanes(Sum(second));
        Clear(first);
        Clear(second);
      });
}

NV_NORMS_INLINE ComputedIn<Half> First(const Half* x) { return LoadPart(x, 1, 0.0f)[0]; }
NV_NORMS_INLINE ComputedIn<Bfloat16> First(const Bfloat16* x) { return LoadPart(x, 1, 0.0f)[0]; }
NV_NORMS_INLINE float First(const float* x) { return *x; }
NV_NORMS_INLINE double First(const double* x) { return *x; }

// Two passes. The first one is shifted by the first number, so that it loses nothing where the mean
// is large, and the second one by the mean, so that it loses nothing where that number is far off.
template <typename T>
NV_NORMS_INLINE Moments MomentsOf(Formula formula, const T* x, int64_t count) {
  using A = ComputedIn<T>;
  const double n = static_cast<double>(count);
  double sum;
  double squares;
  if (formula == Formula::kRms) {
    SumMoments(x, count, A(0), &sum, &squares);
    Moments out;
    out.count = n;
    out.m2 = squares;
    return out;
  }
  const A first = First(x);
  const A shift = static_cast<A>(first + SumShifted(x, count, first) / n);
  SumMoments(x, count, shift, &sum, &squares);
  return FromSums(n, shift, sum, squares);
}

// Calls visit(index) for whole vectors, visit_part(index, count) for parts of one, and
// visit_line(index) for whole cache lines of `to` where they are to be streamed.
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
    for (i = before; i + line <= count; i += line) visit_line(i);
  }
  for (; i + lanes <= count; i += lanes) visit(i);
  if (i < count) visit_part(i, count - i);
}

template <bool stream, typename T, typename Value, typename ValuePart>
NV_NORMS_INLINE void StoreAll(T* to, int64_t count, const Value& value,
                              const ValuePart& value_part) {
  constexpr int64_t lanes = kLanes<ComputedIn<T>>;
  constexpr int64_t line = 64 / sizeof(T);
  ForStores<T, stream>(
      to, count, [&](int64_t i) __attribute__((always_inline)) { Store(value(i), to + i); },
      [&](int64_t i, int64_t rest)
          __attribute__((always_inline)) { StorePart(value_part(i, rest), rest, to + i); },
      [&](int64_t i) __attribute__((always_inline)) {
        for (int64_t j = 0; j < line; j += lanes) Stream(value(i + j), to + i + j);
      });
}

template <bool stream, bool with_gamma, bool with_beta, typename T>
NV_NORMS_INLINE void NormalizeBy(const T* x, int64_t count,
                                 const Scaling<ComputedIn<T>>& scaling, const ComputedIn<T>* gamma,
                                 const ComputedIn<T>* beta, T* y) {
  using A = ComputedIn<T>;
  const Vec<A> high = Splat(scaling.high);
  const Vec<A> low = Splat(scaling.low);
  const Vec<A> rstd = Splat(scaling.rstd);
  StoreAll<stream>(
      y, count,
      [&](int64_t i) __attribute__((always_inline)) {
        Vec<A> out = ((Load(x + i) - high) - low) * rstd;
        if (with_gamma) out = out * Load(gamma + i);
        if (with_beta) out = out + Load(beta + i);
        return out;
      },
      [&](int64_t i, int64_t rest) __attribute__((always_inline)) {
        Vec<A> out = ((LoadPart(x + i, rest, A(0)) - high) - low) * rstd;
        if (with_gamma) out = out * LoadPart(gamma + i, rest, A(0));
        if (with_beta) out = out + LoadPart(beta + i, rest, A(0));
        return out;
      });
}

// One gamma and one beta.
template <bool stream, typename T>
NV_NORMS_INLINE void NormalizeScalar(const T* x, int64_t count,
                                     const Scaling<ComputedIn<T>>& scaling, ComputedIn<T> gamma,
                                     ComputedIn<T> beta, T* y) {
  using A = ComputedIn<T>;
  const Vec<A> high = Splat(scaling.high);
  const Vec<A> low = Splat(scaling.low);
  const Vec<A> rstd = Splat(scaling.rstd);
  const Vec<A> g = Splat(gamma);
  const Vec<A> b = Splat(beta);
  StoreAll<stream>(
      y, count,
      [&](int64_t i) __attribute__((always_inline)) {
        return ((Load(x + i) - high) - low) * rstd * g + b;
      },
      [&](int64_t i, int64_t rest) __attribute__((always_inline)) {
        return ((LoadPart(x + i, rest, A(0)) - high) - low) * rstd * g + b;
      });
}

template <bool stream, typename T>
NV_NORMS_INLINE void NormalizeRun(const RowForward<T>& task, const Scaling<ComputedIn<T>>& scaling,
                                  int64_t row, int64_t begin, int64_t end, const T* x, T* y) {
  using A = ComputedIn<T>;
  const A* gamma = task.gamma;
  const A* beta = task.beta;
  const int64_t count = end - begin;
  if (gamma == nullptr && beta == nullptr) {
    NormalizeBy<stream, false, false>(x, count, scaling, gamma, beta, y);
  } else if (!ParamByColumn(task.layout)) {
    ForParamRuns(task.layout, row, begin, end, [&](int64_t from, int64_t to, int64_t param) {
      NormalizeScalar<stream>(x + (from - begin), to - from, scaling,
                              gamma == nullptr ? A(1) : gamma[param],
                              beta == nullptr ? A(0) : beta[param], y + (from - begin));
    });
  } else if (beta == nullptr) {
    NormalizeBy<stream, true, false>(x, count, scaling, gamma + begin, beta, y);
  } else if (gamma == nullptr) {
    NormalizeBy<stream, false, true>(x, count, scaling, gamma, beta + begin, y);
  } else {
    NormalizeBy<stream, true, true>(x, count, scaling, gamma + begin, beta + begin, y);
  }
}

template <typename T>
void Normalize(const RowForward<T>& task, const Scaling<ComputedIn<T>>& scaling, int64_t row,
               int64_t begin, int64_t end, const T* x, T* y) {
  if (task.stream) {
    NormalizeRun<true>(task, scaling, row, begin, end, x, y);
    FinishStreams();
  } else {
    NormalizeRun<false>(task, scaling, row, begin, end, x, y);
  }
}

template <bool stream, typename T>
NV_NORMS_INLINE void ForwardRowsAs(const RowForward<T>& task, int64_t begin, int64_t end) {
  const int64_t cols = task.layout.cols;
  for (int64_t row = begin; row < end; ++row) {
    const T* x = task.x + (row - task.first_row) * cols;
    const Moments moments = MomentsOf(task.formula, x, cols);
    const Scaling<ComputedIn<T>> scaling = FinishStatistic<ComputedIn<T>>(
        moments, task.formula, task.epsilon, task.stat, row, task.mean, task.rstd);
    NormalizeRun<stream>(task, scaling, row, 0, cols, x, task.y + (row - task.first_row) * cols);
  }
}

template <typename T>
void ForwardRows(const RowForward<T>& task, int64_t begin, int64_t end) {
  if (task.stream) {
    ForwardRowsAs<true>(task, begin, end);
    FinishStreams();
  } else {
    ForwardRowsAs<false>(task, begin, end);
  }
}

template <typename T>
Moments MomentsOfRun(Formula formula, const T* x, int64_t count) {
  return MomentsOf(formula, x, count);
}

}  // namespace
}  // namespace NV_NORMS_TARGET
}  // namespace cpu
}  // namespace nv_norms
