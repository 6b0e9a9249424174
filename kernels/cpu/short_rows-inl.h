// Short rows (short_rows.h): blocks of as many rows as a vector has lanes. Sums are over vectors of
// one column, a row to a lane, which are gathered; outputs are computed where they lie, with each
// row's numbers brought to its elements' lanes by permutations.
#ifndef NV_NORMS_KERNELS_CPU_SHORT_ROWS_INL_H_
#define NV_NORMS_KERNELS_CPU_SHORT_ROWS_INL_H_

#include "kernels/cpu/rows_forward-inl.h"
#include "kernels/cpu/simd-inl.h"

namespace nv_norms {
namespace cpu {
namespace NV_NORMS_TARGET {
namespace {

// ---- lanes ----

template <typename A>
struct Lanes;
template <>
struct Lanes<float> {
  typedef int32_t Index __attribute__((vector_size(NV_NORMS_VECTOR_BYTES)));
  static constexpr int kWide = 2;  // vectors of doubles
};
template <>
struct Lanes<double> {
  typedef int64_t Index __attribute__((vector_size(NV_NORMS_VECTOR_BYTES)));
  static constexpr int kWide = 1;
};
template <typename A>
using Index = typename Lanes<A>::Index;

// Lane i is v[index[i]].
template <typename A>
NV_NORMS_INLINE Vec<A> Permute(Vec<A> v, Index<A> index) {
  return __builtin_shuffle(v, index);
}

// Lane i is from[i * step].
template <typename A>
NV_NORMS_INLINE Vec<A> Strided(const A* from, int64_t step) {
  Vec<A> out;
  for (int i = 0; i < kLanes<A>; ++i) out[i] = from[i * step];
  return out;
}
#if NV_NORMS_VECTOR_BYTES == 64
NV_NORMS_INLINE Vec<float> Strided(const float* from, int64_t step) {
  const __m512i at =
      _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                         _mm512_set1_epi32(static_cast<int>(step)));
  return reinterpret_cast<Vec<float>>(
      _mm512_mask_i32gather_ps(_mm512_setzero_ps(), 0xffff, at, from, 4));
}
NV_NORMS_INLINE Vec<double> Strided(const double* from, int64_t step) {
  const __m256i at = _mm256_mullo_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
                                        _mm256_set1_epi32(static_cast<int>(step)));
  return reinterpret_cast<Vec<double>>(
      _mm512_mask_i32gather_pd(_mm512_setzero_pd(), 0xff, at, from, 8));
}
#elif NV_NORMS_VECTOR_BYTES == 32
NV_NORMS_INLINE Vec<float> Strided(const float* from, int64_t step) {
  const __m256i at = _mm256_mullo_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
                                        _mm256_set1_epi32(static_cast<int>(step)));
  return reinterpret_cast<Vec<float>>(_mm256_mask_i32gather_ps(
      _mm256_setzero_ps(), from, at, _mm256_castsi256_ps(_mm256_set1_epi32(-1)), 4));
}
NV_NORMS_INLINE Vec<double> Strided(const double* from, int64_t step) {
  const __m128i at =
      _mm_mullo_epi32(_mm_setr_epi32(0, 1, 2, 3), _mm_set1_epi32(static_cast<int>(step)));
  return reinterpret_cast<Vec<double>>(_mm256_mask_i32gather_pd(
      _mm256_setzero_pd(), from, at, _mm256_castsi256_pd(_mm256_set1_epi64x(-1)), 8));
}
#endif

NV_NORMS_INLINE Vec<double> Sqrt(Vec<double> v) {
#if NV_NORMS_VECTOR_BYTES == 64
  return reinterpret_cast<Vec<double>>(_mm512_maskz_sqrt_pd(0xff, reinterpret_cast<__m512d>(v)));
#elif NV_NORMS_VECTOR_BYTES == 32
  return reinterpret_cast<Vec<double>>(_mm256_sqrt_pd(reinterpret_cast<__m256d>(v)));
#else
  return Vec<double>{__builtin_sqrt(v[0]), __builtin_sqrt(v[1])};
#endif
}

// A number of each of kLanes<A> rows, in double.
template <typename A>
struct Wide {
  Vec<double> part[Lanes<A>::kWide];
};
NV_NORMS_INLINE Wide<float> ToWide(Vec<float> v) { return {{WidenLow(v), WidenHigh(v)}}; }
NV_NORMS_INLINE Wide<double> ToWide(Vec<double> v) { return {{v}}; }

NV_NORMS_INLINE Vec<float> FromWide(const Wide<float>& wide) {
  const Vec<double> low = wide.part[0];
  const Vec<double> high = wide.part[1];
#if NV_NORMS_VECTOR_BYTES == 64
  return reinterpret_cast<Vec<float>>(_mm512_maskz_insertf32x8(
      0xffff, _mm512_castps256_ps512(_mm512_maskz_cvtpd_ps(0xff, reinterpret_cast<__m512d>(low))),
      _mm512_maskz_cvtpd_ps(0xff, reinterpret_cast<__m512d>(high)), 1));
#elif NV_NORMS_VECTOR_BYTES == 32
  return reinterpret_cast<Vec<float>>(
      _mm256_set_m128(_mm256_cvtpd_ps(reinterpret_cast<__m256d>(high)),
                      _mm256_cvtpd_ps(reinterpret_cast<__m256d>(low))));
#else
  return Vec<float>{static_cast<float>(low[0]), static_cast<float>(low[1]),
                    static_cast<float>(high[0]), static_cast<float>(high[1])};
#endif
}
NV_NORMS_INLINE Vec<double> FromWide(const Wide<double>& wide) { return wide.part[0]; }

// The statistics of `rows` rows from `index` on.
template <typename A>
NV_NORMS_INLINE void StoreStatistics(const Wide<A>& wide, DType stat, int64_t index, int64_t rows,
                                     void* to) {
  if (rows == kLanes<A> && stat == TypeOf<A>()) {
    Store(FromWide(wide), static_cast<A*>(to) + index);
    return;
  }
  double lanes[kLanes<A>];
  std::memcpy(lanes, &wide, sizeof lanes);
  for (int64_t i = 0; i < rows; ++i) {
    if (stat == DType::kDouble) {
      static_cast<double*>(to)[index + i] = lanes[i];
    } else {
      static_cast<float*>(to)[index + i] = static_cast<float>(lanes[i]);
    }
  }
}

// The other lanes are 0.
template <typename A>
NV_NORMS_INLINE Wide<A> LoadStatistics(DType stat, const void* from, int64_t index, int64_t rows) {
  if (rows == kLanes<A> && stat == TypeOf<A>()) {
    return ToWide(Load(static_cast<const A*>(from) + index));
  }
  double lanes[kLanes<A>] = {};
  for (int64_t i = 0; i < rows; ++i) lanes[i] = StatisticAt(stat, from, index + i);
  Wide<A> out;
  std::memcpy(&out, lanes, sizeof out);
  return out;
}

// What belongs to an element of a block by its place alone. A vector of a block holds elements of
// several rows.
template <typename A, int64_t most_cols>
struct ShortRowTables {
  static constexpr int64_t kMost = most_cols * kLanes<A>;
  using Int = std::conditional_t<sizeof(A) == 4, int32_t, int64_t>;

  alignas(NV_NORMS_VECTOR_BYTES) Int row[kMost];
  alignas(NV_NORMS_VECTOR_BYTES) A gamma[kMost];
  alignas(NV_NORMS_VECTOR_BYTES) A beta[kMost];

  NV_NORMS_INLINE void Fill(int64_t cols, const A* gammas, const A* betas) {
    for (int64_t r = 0; r < kLanes<A>; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        row[r * cols + c] = static_cast<Int>(r);
        gamma[r * cols + c] = gammas == nullptr ? A(1) : gammas[c];
        beta[r * cols + c] = betas == nullptr ? A(0) : betas[c];
      }
    }
  }
  NV_NORMS_INLINE Index<A> Row(int64_t at) const {
    return *reinterpret_cast<const Index<A>*>(row + at);
  }
};

// Calls add(register, column) for each column.
template <typename Add>
NV_NORMS_INLINE void ForColumns(int64_t cols, const Add& add) {
  int64_t c = 0;
#pragma GCC unroll 1
  for (; c + kUnroll <= cols; c += kUnroll) {
    for (int u = 0; u < kUnroll; ++u) add(u, c + u);
  }
  if (c < cols) add(0, c);
  if (c + 1 < cols) add(1, c + 1);
  if (c + 2 < cols) add(2, c + 2);
}

// x itself, or `count` (of whole vectors) numbers of it, converted to `room`.
template <typename T, typename A>
NV_NORMS_INLINE const A* AsComputed(const T* x, int64_t count, A* room) {
  int64_t i = 0;
  do {
    Store(Load(x + i), room + i);
    i += kLanes<A>;
  } while (i < count);
  return room;
}
NV_NORMS_INLINE const float* AsComputed(const float* x, int64_t, float*) { return x; }
NV_NORMS_INLINE const double* AsComputed(const double* x, int64_t, double*) { return x; }

// How far ahead lines are brought to the cache while an output is streamed, in bytes.
constexpr int64_t kAheadBytes = 4096;

// ---- forward ----

template <typename A>
struct ShortScaling {
  Vec<A> high;
  Vec<A> low;
  Vec<A> rstd;
};

// The statistics of a block: two passes, shifted, as of longer rows (MeanOf, MomentsAbout). Four
// accumulators, so that each adds up a few numbers only before they go to double.
template <typename T, typename A>
NV_NORMS_INLINE ShortScaling<A> ShortStatistics(const RowForward<T>& task, const A* x, int64_t row,
                                                int64_t rows) {
  const int64_t cols = task.layout.cols;
  const double by_count = 1.0 / static_cast<double>(cols);
  const bool is_rms = task.formula == Formula::kRms;
  Vec<A> columns[kShortForward];
  Vec<A> sum[kUnroll];
  Vec<A> squares[kUnroll];
  columns[0] = Strided(x, cols);
  const Vec<A> first = is_rms ? Vec<A>{} : columns[0];
  Clear(sum);
  ForColumns(cols - 1, [&](int u, int64_t c) __attribute__((always_inline)) {
    columns[c + 1] = Strided(x + c + 1, cols);
    sum[u] += columns[c + 1] - first;
  });
  Wide<A> mean = ToWide(first);
  const Wide<A> shifted = ToWide(Sum(sum));
  for (int p = 0; p < Lanes<A>::kWide; ++p) {
    mean.part[p] = is_rms ? Vec<double>{} : mean.part[p] + shifted.part[p] * by_count;
  }
  const Vec<A> about = FromWide(mean);
  Clear(sum);
  Clear(squares);
  ForColumns(cols, [&](int u, int64_t c) __attribute__((always_inline)) {
    const Vec<A> e = columns[c] - about;
    sum[u] += e;
    squares[u] += e * e;
  });
  const Wide<A> e = ToWide(Sum(sum));
  const Wide<A> ee = ToWide(Sum(squares));
  mean = ToWide(about);
  Wide<A> rstd;
  for (int p = 0; p < Lanes<A>::kWide; ++p) {
    const Vec<double> low = is_rms ? Vec<double>{} : e.part[p] * by_count;
    Vec<double> m2 = ee.part[p] - e.part[p] * low;
    m2 = m2 < 0.0 ? Vec<double>{} : m2;  // keeps NaN
    mean.part[p] += low;
    rstd.part[p] = 1.0 / Sqrt(m2 * by_count + task.epsilon);
  }
  if (task.mean != nullptr) StoreStatistics(mean, task.stat, row, rows, task.mean);
  StoreStatistics(rstd, task.stat, row, rows, task.rstd);
  ShortScaling<A> out;
  out.high = out.low = Vec<A>{};
  if (task.formula == Formula::kCenter) {
    out.high = FromWide(mean);
    const Wide<A> high = ToWide(out.high);
    for (int p = 0; p < Lanes<A>::kWide; ++p) mean.part[p] -= high.part[p];
    out.low = FromWide(mean);
  }
  out.rstd = FromWide(rstd);
  return out;
}

// `blocks` blocks; `rows` rows of each have statistics. The statistics of a block are computed
// before the output of the block before it, so that neither waits for the other. Not inlined: each
// row is computed by the same code, wherever it is.
template <bool stream, typename T>
__attribute__((noinline)) void ForwardShortBlocks(
    const RowForward<T>& task, const ShortRowTables<ComputedIn<T>, kShortForward>& tables,
    int64_t row, int64_t blocks, int64_t rows, const T* x, T* y) {
  using A = ComputedIn<T>;
  constexpr int64_t lanes = kLanes<A>;
  const int64_t size = task.layout.cols * lanes;
  alignas(NV_NORMS_VECTOR_BYTES) A rooms[2][std::is_same_v<T, A> ? 1 : kShortForward * lanes];
  const A* wide = AsComputed(x, size, rooms[0]);
  ShortScaling<A> scaling = ShortStatistics(task, wide, row, rows);
  for (int64_t b = 0; b < blocks; ++b, y += size) {
    const ShortScaling<A> s = scaling;
    const A* now = wide;
    x += size;
    if (b + 1 < blocks) {
      wide = AsComputed(x, size, rooms[(b + 1) % 2]);
      scaling = ShortStatistics(task, wide, row + (b + 1) * lanes, rows);
    }
    for (int64_t i = 0; i < size; i += lanes) {
      if (stream) Prefetch(x + i + kAheadBytes / static_cast<int64_t>(sizeof(T)));
      const Index<A> at = tables.Row(i);
      Vec<A> out = ((Load(now + i) - Permute<A>(s.high, at)) - Permute<A>(s.low, at)) *
                   Permute<A>(s.rstd, at);
      out = out * Load(tables.gamma + i) + Load(tables.beta + i);
      if (stream) {
        Stream(out, y + i);
      } else {
        Store(out, y + i);
      }
    }
  }
}

// Rows [begin, end).
template <typename T>
void ForwardShortRowBlocks(const RowForward<T>& task, int64_t begin, int64_t end) {
  using A = ComputedIn<T>;
  constexpr int64_t lanes = kLanes<A>;
  const int64_t cols = task.layout.cols;
  ShortRowTables<A, kShortForward> tables;
  tables.Fill(cols, task.gamma, task.beta);
  const T* x = task.x + (begin - task.first_row) * cols;
  T* y = task.y + (begin - task.first_row) * cols;
  const int64_t blocks = (end - begin) / lanes;
  if (blocks > 0) {
    if (task.stream && reinterpret_cast<uintptr_t>(y) % (lanes * sizeof(T)) == 0) {
      ForwardShortBlocks<true>(task, tables, begin, blocks, lanes, x, y);
    } else {
      ForwardShortBlocks<false>(task, tables, begin, blocks, lanes, x, y);
    }
  }
  const int64_t done = blocks * lanes;
  const int64_t rest = end - begin - done;
  if (rest == 0) return;
  T x_rest[kShortForward * lanes] = {};
  T y_rest[kShortForward * lanes];
  std::memcpy(x_rest, x + done * cols, rest * cols * sizeof(T));
  // As the blocks before, by the same code.
  if (task.stream) {
    alignas(NV_NORMS_VECTOR_BYTES) T streamed[kShortForward * lanes];
    ForwardShortBlocks<true>(task, tables, begin + done, 1, rest, x_rest, streamed);
    FinishStreams();
    std::memcpy(y_rest, streamed, sizeof y_rest);
  } else {
    ForwardShortBlocks<false>(task, tables, begin + done, 1, rest, x_rest, y_rest);
  }
  std::memcpy(y + done * cols, y_rest, rest * cols * sizeof(T));
}

// ---- backward ----

// A number of each of kLanes<A> rows for each of these.
template <typename A>
struct ShortTerms {
  Vec<A> high;
  Vec<A> low;
  Vec<A> rstd;
  Vec<A> w_mean;
  Vec<A> slope;
  Vec<A> xhat_offset;
};

// As SumsOf and TermsOf.
template <typename T, typename A>
NV_NORMS_INLINE ShortTerms<A> ShortTermsOf(const RowBackward<T>& task, const A* x, const A* dy,
                                           int64_t row, int64_t rows) {
  const int64_t cols = task.layout.cols;
  const double by_count = 1.0 / static_cast<double>(cols);
  Wide<A> mean{};
  if (task.formula != Formula::kRms) mean = LoadStatistics<A>(task.stat, task.mean, row, rows);
  const Wide<A> rstd = LoadStatistics<A>(task.stat, task.rstd, row, rows);
  ShortTerms<A> out;
  out.high = FromWide(mean);
  out.rstd = FromWide(rstd);
  Vec<A> e_sum[kUnroll];
  Vec<A> w_sum[kUnroll];
  Vec<A> we_sum[kUnroll];
  Clear(e_sum);
  Clear(w_sum);
  Clear(we_sum);
  ForColumns(cols, [&](int u, int64_t c) __attribute__((always_inline)) {
    const Vec<A> e = Strided(x + c, cols) - out.high;
    const Vec<A> w = Strided(dy + c, cols) * task.gamma[c];
    e_sum[u] += e;
    w_sum[u] += w;
    we_sum[u] += w * e;
  });
  const Wide<A> e = ToWide(Sum(e_sum));
  const Wide<A> w = ToWide(Sum(w_sum));
  const Wide<A> we = ToWide(Sum(we_sum));
  Wide<A> low{};
  Wide<A> w_mean{};
  Wide<A> slope;
  Wide<A> xhat_offset{};
  for (int p = 0; p < Lanes<A>::kWide; ++p) {
    if (task.formula != Formula::kRms) low.part[p] = e.part[p] * by_count;
    Vec<double> w_xhat = we.part[p];
    if (task.formula == Formula::kCenter) w_xhat -= low.part[p] * w.part[p];
    if (task.formula == Formula::kScaleOnly) w_xhat += mean.part[p] * w.part[p];
    slope.part[p] = rstd.part[p] * rstd.part[p] * (w_xhat * by_count);
    if (task.formula == Formula::kCenter) w_mean.part[p] = w.part[p] * by_count;
    if (task.formula == Formula::kScaleOnly) {
      xhat_offset.part[p] = (mean.part[p] + low.part[p]) * rstd.part[p];
    }
  }
  out.low = FromWide(low);
  out.w_mean = FromWide(w_mean);
  out.slope = FromWide(slope);
  out.xhat_offset = FromWide(xhat_offset);
  return out;
}

// Sums of dy * xhat and of dy for each place of a block.
template <typename A>
struct ShortParamSums {
  alignas(NV_NORMS_VECTOR_BYTES) double gamma[kShortBackward * kLanes<A>];
  alignas(NV_NORMS_VECTOR_BYTES) double beta[kShortBackward * kLanes<A>];
};

// Blocks whose terms of dgamma and dbeta are added before they go to doubles.
constexpr int kShortTogether = 4;

// `together` blocks, at once. dx_step: from one block's dx to the next one's, 0 if nobody wants dx.
template <bool stream, int together, typename T>
__attribute__((noinline)) void BackwardShortBlocks(
    const RowBackward<T>& task, const ShortRowTables<ComputedIn<T>, kShortBackward>& tables,
    int64_t row, int64_t rows, const T* x, const T* dy, T* dx, int64_t dx_step,
    ShortParamSums<ComputedIn<T>>* sums) {
  using A = ComputedIn<T>;
  constexpr int64_t lanes = kLanes<A>;
  constexpr int64_t room = std::is_same_v<T, A> ? 1 : kShortBackward * lanes;
  const int64_t size = task.layout.cols * lanes;
  alignas(NV_NORMS_VECTOR_BYTES) A x_rooms[together][room];
  alignas(NV_NORMS_VECTOR_BYTES) A dy_rooms[together][room];
  const A* x_wide[together];
  const A* dy_wide[together];
  ShortTerms<A> terms[together];
  for (int b = 0; b < together; ++b) {
    x_wide[b] = AsComputed(x + b * size, size, x_rooms[b]);
    dy_wide[b] = AsComputed(dy + b * size, size, dy_rooms[b]);
    terms[b] = ShortTermsOf(task, x_wide[b], dy_wide[b], row + b * lanes, rows);
  }
  for (int64_t i = 0; i < size; i += lanes) {
    const Index<A> at = tables.Row(i);
    const Vec<A> g = Load(tables.gamma + i);
    Vec<A> dgamma{};
    Vec<A> dbeta{};
#pragma GCC unroll 4
    for (int b = 0; b < together; ++b) {
      if (stream) {
        Prefetch(x + (together + b) * size + i);
        Prefetch(dy + (together + b) * size + i);
      }
      const ShortTerms<A>& t = terms[b];
      const Vec<A> d = Load(dy_wide[b] + i);
      const Vec<A> rstd = Permute<A>(t.rstd, at);
      const Vec<A> e = (Load(x_wide[b] + i) - Permute<A>(t.high, at)) - Permute<A>(t.low, at);
      dgamma += d * (e * rstd + Permute<A>(t.xhat_offset, at));
      dbeta += d;
      const Vec<A> out = ((d * g - Permute<A>(t.w_mean, at)) - e * Permute<A>(t.slope, at)) * rstd;
      if (stream) {
        Stream(out, dx + b * dx_step + i);
      } else {
        Store(out, dx + b * dx_step + i);
      }
    }
    if (sums != nullptr) {
      AddTo(dgamma, sums->gamma + i);
      AddTo(dbeta, sums->beta + i);
    }
  }
}

template <bool stream, typename T>
void BackwardShortRowBlocksAs(const RowBackward<T>& task, int64_t begin, int64_t end,
                              double* dgamma, double* dbeta) {
  using A = ComputedIn<T>;
  constexpr int64_t lanes = kLanes<A>;
  const int64_t cols = task.layout.cols;
  const int64_t size = cols * lanes;
  ShortRowTables<A, kShortBackward> tables;
  const A* none = nullptr;
  tables.Fill(cols, task.gamma, none);
  ShortParamSums<A> all;
  ShortParamSums<A>* sums = dgamma == nullptr && dbeta == nullptr ? nullptr : &all;
  for (int64_t i = 0; i < size; ++i) all.gamma[i] = all.beta[i] = 0;
  T unwanted[kShortBackward * lanes];
  const T* x = task.x + (begin - task.first_row) * cols;
  const T* dy = task.dy + (begin - task.first_row) * cols;
  const bool wanted = task.dx_step != 0;
  const int64_t dx_step = wanted ? size : 0;
  T* dx = wanted ? task.dx + (begin - task.first_row) * cols : unwanted;
  int64_t row = begin;
  for (; row + kShortTogether * lanes <= end; row += kShortTogether * lanes) {
    BackwardShortBlocks<stream, kShortTogether>(task, tables, row, lanes, x, dy, dx, dx_step, sums);
    x += kShortTogether * size;
    dy += kShortTogether * size;
    dx += kShortTogether * dx_step;
  }
  T x_rest[kShortBackward * lanes] = {};
  T dy_rest[kShortBackward * lanes] = {};
  alignas(NV_NORMS_VECTOR_BYTES) T dx_rest[kShortBackward * lanes];
  for (; row < end; row += lanes, x += size, dy += size, dx += dx_step) {
    if (row + lanes <= end) {
      BackwardShortBlocks<stream, 1>(task, tables, row, lanes, x, dy, dx, dx_step, sums);
      continue;
    }
    const int64_t bytes = (end - row) * cols * static_cast<int64_t>(sizeof(T));
    std::memcpy(x_rest, x, bytes);
    std::memcpy(dy_rest, dy, bytes);
    BackwardShortBlocks<stream, 1>(task, tables, row, end - row, x_rest, dy_rest, dx_rest, 0, sums);
    FinishStreams();
    if (wanted) std::memcpy(dx, dx_rest, bytes);
  }
  for (int64_t i = 0; i < size; ++i) {
    if (dgamma != nullptr) dgamma[i % cols] += all.gamma[i];
    if (dbeta != nullptr) dbeta[i % cols] += all.beta[i];
  }
}

template <typename T>
void BackwardShortRowBlocks(const RowBackward<T>& task, int64_t begin, int64_t end, double* dgamma,
                            double* dbeta) {
  const T* dx = task.dx + (begin - task.first_row) * task.dx_step;
  constexpr uintptr_t vector = kLanes<ComputedIn<T>> * sizeof(T);
  if (task.stream && reinterpret_cast<uintptr_t>(dx) % vector == 0) {
    BackwardShortRowBlocksAs<true>(task, begin, end, dgamma, dbeta);
  } else {
    BackwardShortRowBlocksAs<false>(task, begin, end, dgamma, dbeta);
  }
}

}  // namespace
}  // namespace NV_NORMS_TARGET
}  // namespace cpu
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CPU_SHORT_ROWS_INL_H_
