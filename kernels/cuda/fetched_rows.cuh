// The rows of a gradient that a thread holds in registers, as they lie in memory.
#ifndef NV_NORMS_KERNELS_CUDA_FETCHED_ROWS_CUH_
#define NV_NORMS_KERNELS_CUDA_FETCHED_ROWS_CUH_

#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/numbers.cuh"

namespace nv_norms {
namespace cuda {

// Hides from the compiler that these are the bits that it has converted before, so that it does
// so again in place of keeping the numbers.
template <typename T, int VEC>
__device__ __forceinline__ void Forget(Bits<float, VEC>* bits) {
  constexpr int kWords = VEC * static_cast<int>(sizeof(T)) / 4;
#pragma unroll
  for (int k = 0; k < kWords; ++k) asm volatile("" : "+r"(bits->words[k]));
}

// x and dy of a thread's items of some rows.
template <typename T, typename D, int VEC, int ITEMS, int ROWS>
struct FetchedRows {
  Bits<float, VEC> x[ROWS][ITEMS];
  Bits<float, VEC> dy[ROWS][ITEMS];
  float mean[ROWS];
  float rstd[ROWS];

  // column(i): where item i is in its row. within(i): whether it is in it at all.
  template <typename Column, typename Within>
  __device__ __forceinline__ void Fetch(const BackwardBuffers& buffers, int r, int64_t row,
                                        int cols, const Column& column, const Within& within) {
    const T* from_x = static_cast<const T*>(buffers.x) + row * cols;
    const D* from_dy = static_cast<const D*>(buffers.dy) + row * cols;
    const float* means = static_cast<const float*>(buffers.mean);
    mean[r] = means != nullptr ? means[row] : 0.0f;
    rstd[r] = static_cast<const float*>(buffers.rstd)[row];
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      if (within(i)) {
        LoadBits(from_x + column(i), &x[r][i]);
        LoadBits(from_dy + column(i), &dy[r][i]);
      }
    }
  }

  // e: x - mean. d: dy.
  __device__ __forceinline__ void Take(int r, int i, float (&e)[VEC], float (&d)[VEC]) const {
    ConvertBits<T>(x[r][i], e);
    ConvertBits<D>(dy[r][i], d);
#pragma unroll
    for (int v = 0; v < VEC; ++v) e[v] -= mean[r];
  }

  // The same, converted again.
  __device__ __forceinline__ void TakeAgain(int r, int i, float (&e)[VEC], float (&d)[VEC]) {
    Forget<T>(&x[r][i]);
    Forget<D>(&dy[r][i]);
    Take(r, i, e, d);
  }
};

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_FETCHED_ROWS_CUH_
