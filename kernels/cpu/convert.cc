#include "kernels/cpu/convert.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/kernels.h"

namespace nv_norms {
namespace cpu {
namespace {

inline uint32_t Bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
inline float FromBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Rounds to odd, so that rounding once more to 16 bits gives what rounding the double would.
inline float ToOdd(double value) {
  float rounded = static_cast<float>(value);
  if (static_cast<double>(rounded) == value || value != value) return rounded;
  uint32_t bits = Bits(rounded);
  const double magnitude = value < 0 ? -value : value;
  const double reached = rounded < 0 ? -static_cast<double>(rounded) : rounded;
  if (reached > magnitude) --bits;
  return FromBits(bits | 1u);
}

// Between doubles and narrower types by way of a run of floats.
constexpr int64_t kRun = 256;

template <typename T>
void LoadAs(const T* from, int64_t count, float* to) {
  KernelsFor<T>().load(from, count, to);
}
template <typename T>
void LoadAs(const T* from, int64_t count, double* to) {
  float run[kRun];
  for (int64_t begin = 0; begin < count; begin += kRun) {
    const int64_t size = std::min(kRun, count - begin);
    KernelsFor<T>().load(from + begin, size, run);
    for (int64_t i = 0; i < size; ++i) to[begin + i] = run[i];
  }
}
void LoadAs(const double* from, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = static_cast<float>(from[i]);
}
void LoadAs(const double* from, int64_t count, double* to) {
  std::memcpy(to, from, count * sizeof *to);
}

template <typename T>
void StoreAs(const float* from, int64_t count, T* to) {
  KernelsFor<T>().store(from, count, to);
}
template <typename T>
void StoreAs(const double* from, int64_t count, T* to) {
  float run[kRun];
  for (int64_t begin = 0; begin < count; begin += kRun) {
    const int64_t size = std::min(kRun, count - begin);
    for (int64_t i = 0; i < size; ++i) run[i] = ToOdd(from[begin + i]);
    KernelsFor<T>().store(run, size, to + begin);
  }
}
void StoreAs(const double* from, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = static_cast<float>(from[i]);
}
void StoreAs(const float* from, int64_t count, double* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = from[i];
}
void StoreAs(const double* from, int64_t count, double* to) {
  std::memcpy(to, from, count * sizeof *to);
}

}  // namespace

template <typename A>
void Load(DType type, const void* from, int64_t offset, int64_t count, A* to) {
  switch (type) {
    case DType::kHalf:
      return LoadAs(static_cast<const Half*>(from) + offset, count, to);
    case DType::kBfloat16:
      return LoadAs(static_cast<const Bfloat16*>(from) + offset, count, to);
    case DType::kFloat:
      return LoadAs(static_cast<const float*>(from) + offset, count, to);
    case DType::kDouble:
      return LoadAs(static_cast<const double*>(from) + offset, count, to);
  }
}

template <typename A>
void Store(DType type, const A* from, int64_t count, void* to, int64_t offset) {
  switch (type) {
    case DType::kHalf:
      return StoreAs(from, count, static_cast<Half*>(to) + offset);
    case DType::kBfloat16:
      return StoreAs(from, count, static_cast<Bfloat16*>(to) + offset);
    case DType::kFloat:
      return StoreAs(from, count, static_cast<float*>(to) + offset);
    case DType::kDouble:
      return StoreAs(from, count, static_cast<double*>(to) + offset);
  }
}

template void Load<float>(DType, const void*, int64_t, int64_t, float*);
template void Load<double>(DType, const void*, int64_t, int64_t, double*);
template void Store<float>(DType, const float*, int64_t, void*, int64_t);
template void Store<double>(DType, const double*, int64_t, void*, int64_t);

}  // namespace cpu
}  // namespace nv_norms
