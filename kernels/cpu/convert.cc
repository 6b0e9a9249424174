#include "kernels/cpu/convert.h"

#include <cstring>

#include "kernels/cpu/targets.h"

namespace nv_norms {
namespace cpu {
namespace {

NV_NORMS_INLINE uint32_t Bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
NV_NORMS_INLINE float FromBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// The conversions have no branches, so that they vectorize, and no subnormal floats inside, because
// TensorFlow's threads flush those to zero.
NV_NORMS_INLINE float HalfToFloat(uint16_t half) {
  const uint32_t magnitude = (half & 0x7fffu) << 13;
  const uint32_t exponent = magnitude & 0x0f800000u;
  const uint32_t rebiased = magnitude + (112u << 23);
  const uint32_t infinite = rebiased + (112u << 23);
  const uint32_t subnormal = Bits(FromBits(magnitude + (113u << 23)) - FromBits(113u << 23));
  uint32_t bits = exponent == 0x0f800000u ? infinite : rebiased;
  bits = exponent == 0 ? subnormal : bits;
  return FromBits(bits | (half & 0x8000u) << 16);
}

NV_NORMS_INLINE uint16_t FloatToHalf(float value) {
  const uint32_t sign = Bits(value) & 0x80000000u;
  const uint32_t magnitude = Bits(value) ^ sign;
  const uint32_t special = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
  // Adding 0.5 moves the last bit of a subnormal half to the last bit of a float.
  const uint32_t subnormal = Bits(FromBits(magnitude) + 0.5f) - Bits(0.5f);
  const uint32_t odd = (magnitude >> 13) & 1u;
  const uint32_t normal = (magnitude - (112u << 23) + 0xfffu + odd) >> 13;
  uint32_t half = magnitude >= (143u << 23) ? special : normal;
  half = magnitude < (113u << 23) ? subnormal : half;
  return static_cast<uint16_t>(half | sign >> 16);
}

NV_NORMS_INLINE float Bfloat16ToFloat(uint16_t value) {
  return FromBits(static_cast<uint32_t>(value) << 16);
}

NV_NORMS_INLINE uint16_t FloatToBfloat16(float value) {
  const uint32_t bits = Bits(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t nan = (bits >> 16) | 0x40u;
  return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

// Rounds to odd, so that rounding once more to 16 bits gives what rounding the double would.
NV_NORMS_INLINE float ToOdd(double value) {
  float rounded = static_cast<float>(value);
  if (static_cast<double>(rounded) == value || value != value) return rounded;
  uint32_t bits = Bits(rounded);
  const double magnitude = value < 0 ? -value : value;
  const double reached = rounded < 0 ? -static_cast<double>(rounded) : rounded;
  if (reached > magnitude) --bits;
  return FromBits(bits | 1u);
}

template <typename From, typename To>
NV_NORMS_INLINE void Cast(const From* from, int64_t count, To* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = static_cast<To>(from[i]);
}

NV_NORMS_CLONES void Convert(const float* from, int64_t count, double* to) {
  Cast(from, count, to);
}
NV_NORMS_CLONES void Convert(const double* from, int64_t count, float* to) {
  Cast(from, count, to);
}

NV_NORMS_CLONES void LoadHalf(const uint16_t* from, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = HalfToFloat(from[i]);
}
NV_NORMS_CLONES void LoadHalf(const uint16_t* from, int64_t count, double* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = HalfToFloat(from[i]);
}
NV_NORMS_CLONES void LoadBfloat16(const uint16_t* from, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = Bfloat16ToFloat(from[i]);
}
NV_NORMS_CLONES void LoadBfloat16(const uint16_t* from, int64_t count, double* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = Bfloat16ToFloat(from[i]);
}
NV_NORMS_CLONES void StoreHalf(const float* from, int64_t count, uint16_t* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = FloatToHalf(from[i]);
}
void StoreHalf(const double* from, int64_t count, uint16_t* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = FloatToHalf(ToOdd(from[i]));
}
NV_NORMS_CLONES void StoreBfloat16(const float* from, int64_t count, uint16_t* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = FloatToBfloat16(from[i]);
}
void StoreBfloat16(const double* from, int64_t count, uint16_t* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = FloatToBfloat16(ToOdd(from[i]));
}

inline void Convert(const float* from, int64_t count, float* to) {
  std::memcpy(to, from, count * sizeof *to);
}
inline void Convert(const double* from, int64_t count, double* to) {
  std::memcpy(to, from, count * sizeof *to);
}

}  // namespace

template <typename A>
void Load(DType type, const void* from, int64_t offset, int64_t count, A* to) {
  switch (type) {
    case DType::kHalf:
      return LoadHalf(static_cast<const uint16_t*>(from) + offset, count, to);
    case DType::kBfloat16:
      return LoadBfloat16(static_cast<const uint16_t*>(from) + offset, count, to);
    case DType::kFloat:
      return Convert(static_cast<const float*>(from) + offset, count, to);
    case DType::kDouble:
      return Convert(static_cast<const double*>(from) + offset, count, to);
  }
}

template <typename A>
void Store(DType type, const A* from, int64_t count, void* to, int64_t offset) {
  switch (type) {
    case DType::kHalf:
      return StoreHalf(from, count, static_cast<uint16_t*>(to) + offset);
    case DType::kBfloat16:
      return StoreBfloat16(from, count, static_cast<uint16_t*>(to) + offset);
    case DType::kFloat:
      return Convert(from, count, static_cast<float*>(to) + offset);
    case DType::kDouble:
      return Convert(from, count, static_cast<double*>(to) + offset);
  }
}

template void Load<float>(DType, const void*, int64_t, int64_t, float*);
template void Load<double>(DType, const void*, int64_t, int64_t, double*);
template void Store<float>(DType, const float*, int64_t, void*, int64_t);
template void Store<double>(DType, const double*, int64_t, void*, int64_t);

}  // namespace cpu
}  // namespace nv_norms
