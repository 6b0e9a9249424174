// Short rows (short_rows.h): blocks of as many rows as a vector has lanes. Sums are over vectors of
// one column, a row to a lane, which permutations make; outputs are computed where they lie, with
// each row's numbers brought to its elements' lanes likewise. Here is what both passes need.
#ifndef NV_NORMS_KERNELS_CPU_SHORT_LANES_INL_H_
#define NV_NORMS_KERNELS_CPU_SHORT_LANES_INL_H_

#include "kernels/cpu/rows_forward-inl.h"
#include "kernels/cpu/simd-inl.h"

namespace nv_norms {
namespace cpu {
namespace NV_NORMS_TARGET {
namespace {

template <typename A>
struct Lanes;
template <>
struct Lanes<float> {
  using Int = int32_t;
  typedef Int Index __attribute__((vector_size(NV_NORMS_VECTOR_BYTES)));
  static constexpr int kWide = 2;  // vectors of doubles
};
template <>
struct Lanes<double> {
  using Int = int64_t;
  typedef Int Index __attribute__((vector_size(NV_NORMS_VECTOR_BYTES)));
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

// Lane r is r * cols: where a block's rows begin.
template <typename A, typename Int, Int... row>
NV_NORMS_INLINE Index<A> RowStarts(int64_t cols, std::integer_sequence<Int, row...>) {
  return Index<A>{row...} * static_cast<Int>(cols);
}
template <typename A>
NV_NORMS_INLINE Index<A> RowStarts(int64_t cols) {
  return RowStarts<A>(cols, std::make_integer_sequence<typename Lanes<A>::Int, kLanes<A>>());
}

// Column `column` of the blocks at from[0], from[1], ..., each of which is `cols` whole vectors:
// lane r is from[i][starts[r] + column]. A permutation takes what is of it in two vectors that lie
// side by side. AVX-512 on an AMD EPYC (family 26), float32, picoseconds an element, by Strided and
// so: 311 and 66 at 3 columns, 308 and 146 at 12, 308 and 198 at 16 (on a busy machine). With 4
// doubles to a vector that is twice as slow as Strided.
template <typename A, size_t count>
NV_NORMS_INLINE void LoadColumn(const A* const (&from)[count], int64_t cols, Index<A> starts,
                                int64_t column, Vec<A> (&out)[count]) {
  constexpr int64_t lanes = kLanes<A>;
  if constexpr (lanes < 8) {
    for (size_t i = 0; i < count; ++i) out[i] = Strided(from[i] + column, cols);
  } else {
    using Int = typename Lanes<A>::Int;
    const Index<A> at = starts + static_cast<Int>(column);
    const Index<A> pair_of = at & static_cast<Int>(-2 * lanes);
    const auto in_pair = [&](const A* block, int64_t pair) __attribute__((always_inline)) {
      const A* first = block + 2 * pair * lanes;
      return __builtin_shuffle(Load(first), Load(2 * pair + 1 < cols ? first + lanes : first), at);
    };
    for (size_t i = 0; i < count; ++i) out[i] = in_pair(from[i], 0);
#pragma GCC unroll 1
    for (int64_t pair = 1; 2 * pair < cols; ++pair) {
      const auto here = pair_of == static_cast<Int>(2 * lanes * pair);
      for (size_t i = 0; i < count; ++i) out[i] = here ? in_pair(from[i], pair) : out[i];
    }
  }
}
template <typename A>
NV_NORMS_INLINE Vec<A> LoadColumn(const A* x, int64_t cols, Index<A> starts, int64_t column) {
  Vec<A> out[1];
  LoadColumn({x}, cols, starts, column, out);
  return out[0];
}

NV_NORMS_INLINE Vec<double> Sqrt(Vec<double> v) {
#if NV_NORMS_VECTOR_BYTES == 64
  return reinterpret_cast<Vec<double>>(_mm512_maskz_sqrt_pd(0xff, reinterpret_cast<__m512d>(v)));
#elif NV_NORMS_VECTOR_BYTES == 32
  return reinterpret_cast<Vec<double>>(_mm256_sqrt_pd(reinterpret_cast<__m256d>(v)));
#else
  return Vec<double>{__builtin_sqrt(v[0]), __builtin_sqrt(v[1])};
#endif
}

// 1 / sqrt(v), v >= 0 or NaN, as a number to be rounded to A.
template <typename A>
NV_NORMS_INLINE Vec<double> ReciprocalRoot(Vec<double> v) {
#if NV_NORMS_VECTOR_BYTES == 64
  if constexpr (std::is_same_v<A, float>) {
    // Two of Newton's steps double 14 bits twice. They make NaN of 0 and infinity, and there and
    // beyond a float's range the first guess is right already.
    const Vec<double> guess =
        reinterpret_cast<Vec<double>>(_mm512_maskz_rsqrt14_pd(0xff, reinterpret_cast<__m512d>(v)));
    const Vec<double> half = v * 0.5;
    Vec<double> root = guess * (1.5 - half * guess * guess);
    root = root * (1.5 - half * root * root);
    return v > 1e-100 ? (v < 1e100 ? root : guess) : guess;
  }
#endif
  return 1.0 / Sqrt(v);
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
#elif defined(__x86_64__)
  return reinterpret_cast<Vec<float>>(_mm_movelh_ps(_mm_cvtpd_ps(reinterpret_cast<__m128d>(low)),
                                                    _mm_cvtpd_ps(reinterpret_cast<__m128d>(high))));
#else
  Vec<float> out = {static_cast<float>(low[0]), static_cast<float>(low[1]),
                    static_cast<float>(high[0]), static_cast<float>(high[1])};
  // GCC 12 forgets this rounding where WidenHigh follows: a mean less itself in float was 0.
  __asm__("" : "+m"(out));
  return out;
#endif
}
NV_NORMS_INLINE Vec<double> FromWide(const Wide<double>& wide) { return wide.part[0]; }

// Of two vectors, each with sums of some rows (the lanes of one row: those alike but for the bits
// of 2 * stride - 1): lanes whose bit `stride` is set go on with b's rows, the others with a's.
template <int stride, typename A, int... lane>
NV_NORMS_INLINE Vec<A> JoinRows(Vec<A> a, Vec<A> b, std::integer_sequence<int, lane...>) {
  using Int = typename Lanes<A>::Int;
  constexpr int n = kLanes<A>;
  const Index<A> own = {static_cast<Int>((lane & stride) != 0 ? n + lane : lane)...};
  const Index<A> other = {
      static_cast<Int>((lane & stride) != 0 ? n + lane - stride : lane + stride)...};
  return __builtin_shuffle(a, b, own) + __builtin_shuffle(a, b, other);
}
// Lane r is the sum of rows[r]'s lanes.
template <typename A, int count = kLanes<A>>
NV_NORMS_INLINE Vec<A> SumOfEach(const Vec<A>* rows) {
  if constexpr (count == 1) {
    return rows[0];
  } else {
    constexpr int half = count / 2;
    return JoinRows<half, A>(SumOfEach<A, half>(rows), SumOfEach<A, half>(rows + half),
                             std::make_integer_sequence<int, kLanes<A>>());
  }
}

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

// Where the rows of a block, one parameter each, have theirs.
template <typename A>
struct RowParams {
  int64_t at[kLanes<A>];

  NV_NORMS_INLINE void Find(const RowLayout& layout, int64_t row) {
    FindRowParams(layout, row, kLanes<A>, at);
  }

  // `otherwise` where there are none.
  NV_NORMS_INLINE Vec<A> Of(const A* params, A otherwise) const {
    if (params == nullptr) return Splat(otherwise);
    alignas(NV_NORMS_VECTOR_BYTES) A out[kLanes<A>];
    for (int64_t i = 0; i < kLanes<A>; ++i) out[i] = params[at[i]];
    return Load(out);
  }

  // Adds the numbers of the first `rows` rows to those of their parameters.
  NV_NORMS_INLINE void Add(const Wide<A>& wide, int64_t rows, double* to) const {
    if (to == nullptr) return;
    double lanes[kLanes<A>];
    std::memcpy(lanes, &wide, sizeof lanes);
    for (int64_t i = 0; i < rows; ++i) to[at[i]] += lanes[i];
  }
};

// What belongs to an element of a block by its place alone. A vector of a block holds elements of
// several rows.
template <typename A, int64_t most_cols>
struct ShortRowTables {
  static constexpr int64_t kMost = most_cols * kLanes<A>;
  using Int = typename Lanes<A>::Int;

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

// How far ahead lines are brought to the cache while an output is streamed, in bytes.
constexpr int64_t kAheadBytes = 4096;

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

}  // namespace
}  // namespace NV_NORMS_TARGET
}  // namespace cpu
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CPU_SHORT_LANES_INL_H_
