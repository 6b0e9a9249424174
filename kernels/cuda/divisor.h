// Division by a number that is known when a kernel is launched.
#ifndef NV_NORMS_KERNELS_CUDA_DIVISOR_H_
#define NV_NORMS_KERNELS_CUDA_DIVISOR_H_

#include <cstdint>

#include "kernels/problem.h"

namespace nv_norms {
namespace cuda {

struct Divisor {
  unsigned value;
  unsigned inverse;  // 2^32 / value, rounded down

  static Divisor Of(int64_t value) {
    const auto of = static_cast<unsigned>(value);
    return {of, 0xffffffffu / of};
  }
  NV_NORMS_HOST_DEVICE int Quotient(unsigned of) const {
    const auto out = static_cast<unsigned>(uint64_t{of} * inverse >> 32);  // or one too few
    return static_cast<int>(out + (of - out * value >= value ? 1 : 0));
  }
};

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_DIVISOR_H_
