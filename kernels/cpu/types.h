// The kernels' element types, and the type that each is computed in.
#ifndef NV_NORMS_KERNELS_CPU_TYPES_H_
#define NV_NORMS_KERNELS_CPU_TYPES_H_

#include <cstdint>

#include "kernels/problem.h"

namespace nv_norms {
namespace cpu {

struct Half {
  uint16_t bits;
};
struct Bfloat16 {
  uint16_t bits;
};

template <typename T>
struct ComputedInType {
  using type = float;
};
template <>
struct ComputedInType<double> {
  using type = double;
};
template <typename T>
using ComputedIn = typename ComputedInType<T>::type;

template <typename T>
constexpr DType TypeOf();
template <>
constexpr DType TypeOf<Half>() {
  return DType::kHalf;
}
template <>
constexpr DType TypeOf<Bfloat16>() {
  return DType::kBfloat16;
}
template <>
constexpr DType TypeOf<float>() {
  return DType::kFloat;
}
template <>
constexpr DType TypeOf<double>() {
  return DType::kDouble;
}

}  // namespace cpu
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CPU_TYPES_H_
