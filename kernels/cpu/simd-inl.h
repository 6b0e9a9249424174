// Vectors of NV_NORMS_VECTOR_BYTES bytes in GCC's vector extension, and what it does not have:
// loads and stores of 16-bit floats, of part of a vector and past the cache, and sums over lanes.
// Included once by each targets_*.cc, below its #pragma GCC target.
#ifndef NV_NORMS_KERNELS_CPU_SIMD_INL_H_
#define NV_NORMS_KERNELS_CPU_SIMD_INL_H_

#ifndef NV_NORMS_TARGET
#error "for targets_*.cc only"
#endif

namespace nv_norms {
namespace cpu {
namespace NV_NORMS_TARGET {
namespace {

template <typename A>
struct Simd;
template <>
struct Simd<float> {
  typedef float V __attribute__((vector_size(NV_NORMS_VECTOR_BYTES)));
  typedef float Unaligned
      __attribute__((vector_size(NV_NORMS_VECTOR_BYTES), aligned(4), may_alias));
};
template <>
struct Simd<double> {
  typedef double V __attribute__((vector_size(NV_NORMS_VECTOR_BYTES)));
  typedef double Unaligned
      __attribute__((vector_size(NV_NORMS_VECTOR_BYTES), aligned(8), may_alias));
};

template <typename A>
using Vec = typename Simd<A>::V;
template <typename A>
constexpr int kLanes = NV_NORMS_VECTOR_BYTES / sizeof(A);

typedef uint32_t U32 __attribute__((vector_size(NV_NORMS_VECTOR_BYTES)));
typedef uint32_t U32OfAny __attribute__((vector_size(NV_NORMS_VECTOR_BYTES), may_alias));
typedef uint16_t U16 __attribute__((vector_size(NV_NORMS_VECTOR_BYTES / 2)));
typedef uint16_t U16Two __attribute__((vector_size(NV_NORMS_VECTOR_BYTES)));
typedef uint16_t U16TwoUnaligned
    __attribute__((vector_size(NV_NORMS_VECTOR_BYTES), aligned(2), may_alias));
typedef uint16_t U16Unaligned
    __attribute__((vector_size(NV_NORMS_VECTOR_BYTES / 2), aligned(2), may_alias));

NV_NORMS_INLINE U32 Bits(Vec<float> v) { return reinterpret_cast<U32>(v); }
NV_NORMS_INLINE Vec<float> FromBits(U32 v) { return reinterpret_cast<Vec<float>>(v); }

template <typename A>
NV_NORMS_INLINE Vec<A> Splat(A a) {
  return a - Vec<A>{};  // not {} + a: that would make -0 of a into 0
}

// GCC 12 converts a vector's halves one after the other, which takes four to six instructions.
NV_NORMS_INLINE U32 WidenBits(U16 v) {
#if NV_NORMS_VECTOR_BYTES == 64
  return reinterpret_cast<U32>(_mm512_maskz_cvtepu16_epi32(0xffff, reinterpret_cast<__m256i>(v)));
#elif NV_NORMS_VECTOR_BYTES == 32
  return reinterpret_cast<U32>(_mm256_cvtepu16_epi32(reinterpret_cast<__m128i>(v)));
#else
  return __builtin_convertvector(v, U32);
#endif
}
// The lower half of each.
NV_NORMS_INLINE U16 NarrowBits(U32 v) {
#if NV_NORMS_VECTOR_BYTES == 64
  return reinterpret_cast<U16>(_mm512_maskz_cvtepi32_epi16(0xffff, reinterpret_cast<__m512i>(v)));
#else
  return __builtin_convertvector(v, U16);
#endif
}

// Bits of halves and floats. No subnormal float is made on the way: TensorFlow's threads flush
// those to zero.
NV_NORMS_INLINE Vec<float> Widen(U16 half, Half) {
#if NV_NORMS_VECTOR_BYTES == 64
  return reinterpret_cast<Vec<float>>(
      _mm512_maskz_cvtph_ps(0xffff, reinterpret_cast<__m256i>(half)));
#elif NV_NORMS_VECTOR_BYTES == 32
  return reinterpret_cast<Vec<float>>(_mm256_cvtph_ps(reinterpret_cast<__m128i>(half)));
#else
  const U32 wide = __builtin_convertvector(half, U32);
  const U32 magnitude = (wide & 0x7fffu) << 13;
  const U32 exponent = magnitude & 0x0f800000u;
  const U32 rebiased = magnitude + (112u << 23);
  const U32 infinite = rebiased + (112u << 23);
  const U32 subnormal = Bits(FromBits(magnitude + (113u << 23)) - FromBits(U32{} + (113u << 23)));
  U32 bits = exponent == 0x0f800000u ? infinite : rebiased;
  bits = exponent == 0 ? subnormal : bits;
  return FromBits(bits | (wide & 0x8000u) << 16);
#endif
}

NV_NORMS_INLINE U16 Narrow(Vec<float> value, Half) {
#if NV_NORMS_VECTOR_BYTES == 64
  return reinterpret_cast<U16>(
      _mm512_maskz_cvtps_ph(0xffff, reinterpret_cast<__m512>(value), _MM_FROUND_TO_NEAREST_INT));
#elif NV_NORMS_VECTOR_BYTES == 32
  return reinterpret_cast<U16>(
      _mm256_cvtps_ph(reinterpret_cast<__m256>(value), _MM_FROUND_TO_NEAREST_INT));
#else
  const U32 sign = Bits(value) & 0x80000000u;
  const U32 magnitude = Bits(value) ^ sign;
  const U32 special = magnitude > 0x7f800000u ? U32{} + 0x7e00u : U32{} + 0x7c00u;
  // Adding 0.5 moves the last bit of a subnormal half to the last bit of a float.
  const U32 subnormal = Bits(FromBits(magnitude) + 0.5f) - 0x3f000000u;
  const U32 odd = (magnitude >> 13) & 1u;
  const U32 normal = (magnitude - (112u << 23) + 0xfffu + odd) >> 13;
  U32 half = magnitude >= (143u << 23) ? special : normal;
  half = magnitude < (113u << 23) ? subnormal : half;
  return __builtin_convertvector(half | sign >> 16, U16);
#endif
}

NV_NORMS_INLINE Vec<float> Widen(U16 value, Bfloat16) { return FromBits(WidenBits(value) << 16); }

// Rounds to the upper 16 bits of each.
NV_NORMS_INLINE U32 RoundToUpper(Vec<float> value) {
  const U32 bits = Bits(value);
  const U32 rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  return (bits & 0x7fffffffu) > 0x7f800000u ? bits | 0x400000u : rounded;
}

#if NV_NORMS_BFLOAT16
// The instructions that round to bfloat16 take subnormal numbers for zeros.
NV_NORMS_INLINE bool AnySubnormal(Vec<float> a, Vec<float> b) {
  constexpr int kSubnormal = 0x20;
  const __mmask16 in_a = _mm512_fpclass_ps_mask(reinterpret_cast<__m512>(a), kSubnormal);
  const __mmask16 in_b = _mm512_fpclass_ps_mask(reinterpret_cast<__m512>(b), kSubnormal);
  return __builtin_expect(_kortestz_mask16_u8(in_a, in_b) == 0, false);
}
#endif

NV_NORMS_INLINE U16 Narrow(Vec<float> value, Bfloat16) {
#if NV_NORMS_BFLOAT16
  if (!AnySubnormal(value, value)) {
    return reinterpret_cast<U16>(_mm512_maskz_cvtneps_pbh(0xffff, reinterpret_cast<__m512>(value)));
  }
#endif
  return NarrowBits(RoundToUpper(value) >> 16);
}

// Two vectors side by side.
NV_NORMS_INLINE U16Two NarrowTwo(Vec<float> a, Vec<float> b, Bfloat16) {
#if NV_NORMS_BFLOAT16
  if (!AnySubnormal(a, b)) {
    return reinterpret_cast<U16Two>(_mm512_maskz_cvtne2ps_pbh(
        0xffffffffu, reinterpret_cast<__m512>(b), reinterpret_cast<__m512>(a)));
  }
#endif
  const U32 upper_a = RoundToUpper(a);
  const U32 upper_b = RoundToUpper(b);
#if NV_NORMS_VECTOR_BYTES == 64
  const U16Two odd = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31,
                      33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
  return reinterpret_cast<U16Two>(_mm512_maskz_permutex2var_epi16(
      0xffffffffu, reinterpret_cast<__m512i>(upper_a), reinterpret_cast<__m512i>(odd),
      reinterpret_cast<__m512i>(upper_b)));
#elif NV_NORMS_VECTOR_BYTES == 32
  const __m256i packed = _mm256_packus_epi32(reinterpret_cast<__m256i>(upper_a >> 16),
                                             reinterpret_cast<__m256i>(upper_b >> 16));
  return reinterpret_cast<U16Two>(_mm256_permute4x64_epi64(packed, 0xd8));
#else
  const U16 halves[2] = {NarrowBits(upper_a >> 16), NarrowBits(upper_b >> 16)};
  U16Two out;
  std::memcpy(&out, halves, sizeof out);
  return out;
#endif
}

// ---- a whole vector ----

NV_NORMS_INLINE Vec<float> Load(const float* from) {
  return *reinterpret_cast<const Simd<float>::Unaligned*>(from);
}
NV_NORMS_INLINE Vec<double> Load(const double* from) {
  return *reinterpret_cast<const Simd<double>::Unaligned*>(from);
}
NV_NORMS_INLINE Vec<float> Load(const Half* from) {
  return Widen(*reinterpret_cast<const U16Unaligned*>(from), Half());
}
NV_NORMS_INLINE Vec<float> Load(const Bfloat16* from) {
  return Widen(*reinterpret_cast<const U16Unaligned*>(from), Bfloat16());
}

NV_NORMS_INLINE void Store(Vec<float> v, float* to) {
  *reinterpret_cast<Simd<float>::Unaligned*>(to) = v;
}
NV_NORMS_INLINE void Store(Vec<double> v, double* to) {
  *reinterpret_cast<Simd<double>::Unaligned*>(to) = v;
}
NV_NORMS_INLINE void Store(Vec<float> v, Half* to) {
  *reinterpret_cast<U16Unaligned*>(to) = Narrow(v, Half());
}
NV_NORMS_INLINE void Store(Vec<float> v, Bfloat16* to) {
  *reinterpret_cast<U16Unaligned*>(to) = Narrow(v, Bfloat16());
}

// A vector's numbers from memory to memory, as they are.
NV_NORMS_INLINE void Move(const float* from, float* to) { Store(Load(from), to); }
NV_NORMS_INLINE void Move(const double* from, double* to) { Store(Load(from), to); }
template <typename T>
NV_NORMS_INLINE void Move(const T* from, T* to) {
  *reinterpret_cast<U16Unaligned*>(to) = *reinterpret_cast<const U16Unaligned*>(from);
}

// ---- past the cache; `to` is a multiple of what is stored ----

NV_NORMS_INLINE void StreamBytes(U16 v, void* to) {
#if !defined(__x86_64__)
  *static_cast<U16*>(to) = v;
#elif NV_NORMS_VECTOR_BYTES == 64
  _mm256_stream_si256(static_cast<__m256i*>(to), reinterpret_cast<__m256i>(v));
#elif NV_NORMS_VECTOR_BYTES == 32
  _mm_stream_si128(static_cast<__m128i*>(to), reinterpret_cast<__m128i>(v));
#else
  typedef long long One __attribute__((vector_size(8)));
  _mm_stream_si64(static_cast<long long*>(to), reinterpret_cast<One>(v)[0]);
#endif
}
template <typename V>
NV_NORMS_INLINE void StreamWide(V v, void* to) {
#if !defined(__x86_64__)
  *static_cast<V*>(to) = v;
#elif NV_NORMS_VECTOR_BYTES == 64
  _mm512_stream_si512(static_cast<__m512i*>(to), reinterpret_cast<__m512i>(v));
#elif NV_NORMS_VECTOR_BYTES == 32
  _mm256_stream_si256(static_cast<__m256i*>(to), reinterpret_cast<__m256i>(v));
#else
  _mm_stream_si128(static_cast<__m128i*>(to), reinterpret_cast<__m128i>(v));
#endif
}
NV_NORMS_INLINE void Stream(Vec<float> v, float* to) { StreamWide(v, to); }
NV_NORMS_INLINE void Stream(Vec<double> v, double* to) { StreamWide(v, to); }
NV_NORMS_INLINE void Stream(Vec<float> v, Half* to) { StreamBytes(Narrow(v, Half()), to); }
NV_NORMS_INLINE void Stream(Vec<float> v, Bfloat16* to) { StreamBytes(Narrow(v, Bfloat16()), to); }

// Whether two vectors are stored at once faster than each. Of halves they are not: AMD EPYC (family
// 25, AVX-512), 200 MB, two threads, picoseconds a number, each and two: 768 columns 120 and 124,
// gradient 208 and 262.
template <typename T>
constexpr bool kStoredInPairs = std::is_same<T, Bfloat16>::value;

// As many numbers as a line of the cache has, of the vectors value(0), value(kLanes), ...
template <bool stream, typename T, typename Value>
NV_NORMS_INLINE void StoreLine(T* to, const Value& value) {
  constexpr int lanes = kLanes<ComputedIn<T>>;
  constexpr int line = 64 / sizeof(T);
  if constexpr (kStoredInPairs<T>) {
#pragma GCC unroll 8
    for (int i = 0; i < line; i += 2 * lanes) {
      const U16Two two = NarrowTwo(value(i), value(i + lanes), T());
      if (stream) {
        StreamWide(two, to + i);
      } else {
        *reinterpret_cast<U16TwoUnaligned*>(to + i) = two;
      }
    }
  } else {
#pragma GCC unroll 8
    for (int i = 0; i < line; i += lanes) {
      if (stream) {
        Stream(value(i), to + i);
      } else {
        Store(value(i), to + i);
      }
    }
  }
}

// Orders streamed stores before what follows.
NV_NORMS_INLINE void FinishStreams() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

// Brings the line of `at` to the core's L2 cache; any address will do.
NV_NORMS_INLINE void Prefetch(const void* at) { __builtin_prefetch(at, 0, 2); }

// ---- the first `count` lanes ----

// The other lanes are `fill`.
template <typename T>
NV_NORMS_INLINE Vec<ComputedIn<T>> LoadPart(const T* from, int64_t count, ComputedIn<T> fill) {
  constexpr int lanes = kLanes<ComputedIn<T>>;
  if constexpr (NV_NORMS_VECTOR_BYTES == 16 && std::is_same_v<T, ComputedIn<T>>) {
    Vec<ComputedIn<T>> out = Splat(fill);
#pragma GCC unroll 4
    for (int i = 0; i < lanes; ++i) {
      if (i < count) out[i] = from[i];
    }
    return out;
  }
  alignas(NV_NORMS_VECTOR_BYTES) T part[lanes] = {};
  for (int64_t i = 0; i < count; ++i) part[i] = from[i];
  Vec<ComputedIn<T>> out = Load(part);
  for (int64_t i = count; i < lanes; ++i) out[i] = fill;
  return out;
}
template <typename T>
NV_NORMS_INLINE void StorePart(Vec<ComputedIn<T>> v, int64_t count, T* to) {
  alignas(NV_NORMS_VECTOR_BYTES) T part[kLanes<ComputedIn<T>>];
  Store(v, part);
  for (int64_t i = 0; i < count; ++i) to[i] = part[i];
}
#if NV_NORMS_VECTOR_BYTES == 32
NV_NORMS_INLINE __m256i FirstLanes(int64_t count, float) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)),
                            _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
NV_NORMS_INLINE __m256i FirstLanes(int64_t count, double) {
  return _mm256_cmpgt_epi64(_mm256_set1_epi64x(count), _mm256_setr_epi64x(0, 1, 2, 3));
}
NV_NORMS_INLINE Vec<float> LoadPart(const float* from, int64_t count, float fill) {
  const __m256i mask = FirstLanes(count, fill);
  return reinterpret_cast<Vec<float>>(_mm256_blendv_ps(
      _mm256_set1_ps(fill), _mm256_maskload_ps(from, mask), _mm256_castsi256_ps(mask)));
}
NV_NORMS_INLINE Vec<double> LoadPart(const double* from, int64_t count, double fill) {
  const __m256i mask = FirstLanes(count, fill);
  return reinterpret_cast<Vec<double>>(_mm256_blendv_pd(
      _mm256_set1_pd(fill), _mm256_maskload_pd(from, mask), _mm256_castsi256_pd(mask)));
}
NV_NORMS_INLINE void StorePart(Vec<float> v, int64_t count, float* to) {
  _mm256_maskstore_ps(to, FirstLanes(count, 0.0f), reinterpret_cast<__m256>(v));
}
NV_NORMS_INLINE void StorePart(Vec<double> v, int64_t count, double* to) {
  _mm256_maskstore_pd(to, FirstLanes(count, 0.0), reinterpret_cast<__m256d>(v));
}
#endif
#if NV_NORMS_VECTOR_BYTES == 64
NV_NORMS_INLINE Vec<float> LoadPart(const float* from, int64_t count, float fill) {
  const __mmask16 mask = static_cast<__mmask16>(_bzhi_u32(0xffffu, static_cast<unsigned>(count)));
  return reinterpret_cast<Vec<float>>(_mm512_mask_loadu_ps(_mm512_set1_ps(fill), mask, from));
}
NV_NORMS_INLINE void StorePart(Vec<float> v, int64_t count, float* to) {
  const __mmask16 mask = static_cast<__mmask16>(_bzhi_u32(0xffffu, static_cast<unsigned>(count)));
  _mm512_mask_storeu_ps(to, mask, reinterpret_cast<__m512>(v));
}
NV_NORMS_INLINE Vec<double> LoadPart(const double* from, int64_t count, double fill) {
  const __mmask8 mask = static_cast<__mmask8>(_bzhi_u32(0xffu, static_cast<unsigned>(count)));
  return reinterpret_cast<Vec<double>>(_mm512_mask_loadu_pd(_mm512_set1_pd(fill), mask, from));
}
NV_NORMS_INLINE void StorePart(Vec<double> v, int64_t count, double* to) {
  const __mmask8 mask = static_cast<__mmask8>(_bzhi_u32(0xffu, static_cast<unsigned>(count)));
  _mm512_mask_storeu_pd(to, mask, reinterpret_cast<__m512d>(v));
}
NV_NORMS_INLINE __m256i LoadPartBits(const void* from, int64_t count) {
  return _mm256_maskz_loadu_epi16(
      static_cast<__mmask16>(_bzhi_u32(0xffffu, static_cast<unsigned>(count))), from);
}
template <typename T>
NV_NORMS_INLINE Vec<float> LoadPart16(const T* from, int64_t count, float fill) {
  const __mmask16 mask = static_cast<__mmask16>(_bzhi_u32(0xffffu, static_cast<unsigned>(count)));
  const Vec<float> v = Widen(reinterpret_cast<U16>(LoadPartBits(from, count)), T());
  return reinterpret_cast<Vec<float>>(
      _mm512_mask_mov_ps(_mm512_set1_ps(fill), mask, reinterpret_cast<__m512>(v)));
}
template <typename T>
NV_NORMS_INLINE void StorePart16(Vec<float> v, int64_t count, T* to) {
  _mm256_mask_storeu_epi16(to,
                           static_cast<__mmask16>(_bzhi_u32(0xffffu, static_cast<unsigned>(count))),
                           reinterpret_cast<__m256i>(Narrow(v, T())));
}
NV_NORMS_INLINE Vec<float> LoadPart(const Half* from, int64_t count, float fill) {
  return LoadPart16(from, count, fill);
}
NV_NORMS_INLINE Vec<float> LoadPart(const Bfloat16* from, int64_t count, float fill) {
  return LoadPart16(from, count, fill);
}
NV_NORMS_INLINE void StorePart(Vec<float> v, int64_t count, Half* to) { StorePart16(v, count, to); }
NV_NORMS_INLINE void StorePart(Vec<float> v, int64_t count, Bfloat16* to) {
  StorePart16(v, count, to);
}
#endif

// ---- lanes to double ----

NV_NORMS_INLINE Vec<double> WidenLow(Vec<float> v) {
#if NV_NORMS_VECTOR_BYTES == 64
  const __m256 low = _mm512_maskz_extractf32x8_ps(0xff, reinterpret_cast<__m512>(v), 0);
  return reinterpret_cast<Vec<double>>(_mm512_maskz_cvtps_pd(0xff, low));
#elif NV_NORMS_VECTOR_BYTES == 32
  return reinterpret_cast<Vec<double>>(
      _mm256_cvtps_pd(_mm256_castps256_ps128(reinterpret_cast<__m256>(v))));
#elif defined(__x86_64__)
  return reinterpret_cast<Vec<double>>(_mm_cvtps_pd(reinterpret_cast<__m128>(v)));
#else
  return Vec<double>{v[0], v[1]};
#endif
}
NV_NORMS_INLINE Vec<double> WidenHigh(Vec<float> v) {
#if NV_NORMS_VECTOR_BYTES == 64
  const __m256 high = _mm512_maskz_extractf32x8_ps(0xff, reinterpret_cast<__m512>(v), 1);
  return reinterpret_cast<Vec<double>>(_mm512_maskz_cvtps_pd(0xff, high));
#elif NV_NORMS_VECTOR_BYTES == 32
  return reinterpret_cast<Vec<double>>(
      _mm256_cvtps_pd(_mm256_extractf128_ps(reinterpret_cast<__m256>(v), 1)));
#elif defined(__x86_64__)
  const __m128 all = reinterpret_cast<__m128>(v);
  return reinterpret_cast<Vec<double>>(_mm_cvtps_pd(_mm_movehl_ps(all, all)));
#else
  return Vec<double>{v[2], v[3]};
#endif
}

template <typename Half, typename V>
NV_NORMS_INLINE Half FoldLanes(V v) {
  Half halves[2];
  static_assert(sizeof halves == sizeof v, "a half of V");
  std::memcpy(halves, &v, sizeof v);
  return halves[0] + halves[1];
}
NV_NORMS_INLINE double SumLanes(Vec<double> v) {
  typedef double Two __attribute__((vector_size(16)));
#if NV_NORMS_VECTOR_BYTES == 64
  typedef double Four __attribute__((vector_size(32)));
  const Two two = FoldLanes<Two>(FoldLanes<Four>(v));
#elif NV_NORMS_VECTOR_BYTES == 32
  const Two two = FoldLanes<Two>(v);
#else
  const Two two = v;
#endif
  return two[0] + two[1];
}
NV_NORMS_INLINE Vec<double> ToDouble(Vec<double> v) { return v; }
// Lanes i and i + half of v added.
NV_NORMS_INLINE Vec<double> ToDouble(Vec<float> v) { return WidenLow(v) + WidenHigh(v); }

NV_NORMS_INLINE double SumLanes(Vec<float> v) { return SumLanes(ToDouble(v)); }

// to += v
NV_NORMS_INLINE void AddTo(Vec<double> v, double* to) { Store(Load(to) + v, to); }
NV_NORMS_INLINE void AddTo(Vec<float> v, float* to) { Store(Load(to) + v, to); }
NV_NORMS_INLINE void AddTo(Vec<float> v, double* to) {
  Store(Load(to) + WidenLow(v), to);
  Store(Load(to + kLanes<double>) + WidenHigh(v), to + kLanes<double>);
}
template <typename A, typename Sum>
NV_NORMS_INLINE void AddPartTo(Vec<A> v, int64_t count, Sum* to) {
  for (int64_t i = 0; i < count; ++i) to[i] += v[i];
}

}  // namespace
}  // namespace NV_NORMS_TARGET
}  // namespace cpu
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CPU_SIMD_INL_H_
