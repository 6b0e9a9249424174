// Rows that are no whole vectors of 16 bytes and so begin anywhere: a row is whole vectors of 16
// bytes that lie in it and a rim, some numbers before the first and less than a vector behind the
// last. A team has rows that lie to vectors alike, so that each thread's columns are the same in
// every row.
#ifndef NV_NORMS_KERNELS_CUDA_RIM_CUH_
#define NV_NORMS_KERNELS_CUDA_RIM_CUH_

#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/ring_shape.h"

namespace nv_norms {
namespace cuda {

// The rim's numbers are one to a thread of the last warp, which may have the fewest vectors, of the
// team's first block. The first whole vector is aligned to UNIT numbers.
template <bool RIM, int VEC, int UNIT = kRimVectors * VEC>
struct RowRim {
  static_assert(UNIT - 1 + VEC - 1 <= 32);
  static constexpr int kNone = -(1 << 30);
  int head;  // numbers of a row before its first whole vector
  int at;    // of this thread's number, counted from there; kNone where it has none

  // blocks: to a team.
  __device__ __forceinline__ RowRim(int cols, int blocks) {
    const unsigned team = blockIdx.x / static_cast<unsigned>(blocks);
    const int before = static_cast<int>(team % UNIT) * (cols % UNIT) % UNIT;
    head = (UNIT - before) % UNIT;
    const int tail = (cols - head) % VEC;
    at = static_cast<int>(threadIdx.x) - static_cast<int>(blockDim.x) + 32;
    const bool first = blockIdx.x % static_cast<unsigned>(blocks) == 0;
    const bool has = first && at >= 0 && at < head + tail;
    at = !has ? kNone : at < head ? at - head : at + cols - tail - 2 * head;
  }
  __device__ __forceinline__ bool Has() const { return at != kNone; }
  __device__ __forceinline__ int Vectors(int cols) const { return (cols - head) / VEC; }
  // Numbers of the rim that this thread's warp has.
  __device__ __forceinline__ int OfWarp() const {
    return __popc(__ballot_sync(0xffffffffu, Has()));
  }

  // This thread's number of the row whose first whole vector lies there; 0 where it has none.
  template <typename T>
  __device__ __forceinline__ Bits<float, 1> Load(const T* vectors, bool is_row) const {
    Bits<float, 1> out = {};
    if (Has() && is_row) LoadBits(vectors + at, &out);
    return out;
  }
  __device__ __forceinline__ float LoadParam(DType type, const void* from, float absent) const {
    return Has() ? ParamOr<float>(type, from, head + at, absent) : 0.0f;
  }
};

// Rows of whole vectors.
template <int VEC, int UNIT>
struct RowRim<false, VEC, UNIT> {
  static constexpr int head = 0;
  static constexpr int at = 0;

  __device__ __forceinline__ RowRim(int, int) {}
  __device__ __forceinline__ bool Has() const { return false; }
  __device__ __forceinline__ int Vectors(int cols) const { return cols / VEC; }
  __device__ __forceinline__ int OfWarp() const { return 0; }
  template <typename T>
  __device__ __forceinline__ Bits<float, 1> Load(const T*, bool) const {
    return {};
  }
  __device__ __forceinline__ float LoadParam(DType, const void*, float) const { return 0; }
};

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_RIM_CUH_
