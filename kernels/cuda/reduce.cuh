// Sums over the threads of a row: of a part of a warp, a block, or a cluster of blocks. Every
// thread gets the sum, and the order of the additions is fixed.
#ifndef NV_NORMS_KERNELS_CUDA_REDUCE_CUH_
#define NV_NORMS_KERNELS_CUDA_REDUCE_CUH_

#include "kernels/cuda/cluster.cuh"

namespace nv_norms {
namespace cuda {

constexpr int kMaxWarps = 32;
constexpr int kMaxCluster = 8;

template <int N, typename A>
__device__ __forceinline__ void WarpSum(A (&values)[N], int lanes) {
  for (int step = lanes / 2; step > 0; step /= 2) {
#pragma unroll
    for (int n = 0; n < N; ++n) values[n] += __shfl_xor_sync(0xffffffffu, values[n], step);
  }
}

// To sum about: where one element of three is far from the others, it is not this one.
__device__ __forceinline__ float MedianOfThree(float a, float b, float c) {
  return fmaxf(fminf(a, b), fminf(fmaxf(a, b), c));
}

// Moments of a warp's lanes, those that are a multiple of `vectors` apart, by Chan's formula: how
// many elements, their mean and the squares about it. `vectors` is a power of two.
template <int N>
__device__ __forceinline__ void MergeLanes(int vectors, float& count, float (&mean)[N],
                                           float (&squares)[N]) {
#pragma unroll 1
  for (int lanes = vectors; lanes < 32; lanes *= 2) {
    const float other = __shfl_xor_sync(0xffffffffu, count, lanes);
    const float total = count + other;
    const float share = total > 0 ? other / total : 0.0f;
    const float weight = count * share;
#pragma unroll
    for (int n = 0; n < N; ++n) {
      const float move = __shfl_xor_sync(0xffffffffu, mean[n], lanes) - mean[n];
      squares[n] += __shfl_xor_sync(0xffffffffu, squares[n], lanes) + move * move * weight;
      mean[n] += move * share;
    }
    count = total;
  }
}

// Whether 2^k elements are counted: then it is time to Center the sums.
__device__ __forceinline__ bool IsPowerOfTwo(float count) {
  return (__float_as_uint(count) & 0x7fffff) == 0;
}

// Moves what sums of x - reference and of its square are about to the mean so far. Done at every
// power of two, it costs next to nothing, and wherever a thread began, its sums end near its mean.
template <int N>
__device__ __forceinline__ void Center(float count, float (&reference)[N], float (&sum)[N],
                                       float (&squares)[N]) {
  const float inverse = 1.0f / count;
#pragma unroll
  for (int n = 0; n < N; ++n) {
    const float center = reference[n] + sum[n] * inverse;
    if (!isfinite(center)) continue;
    const float move = center - reference[n];
    squares[n] += move * (count * move - 2 * sum[n]);
    sum[n] -= count * move;
    reference[n] = center;
  }
}

// Sums of x - reference and of its square, each thread's about a reference of its own, to what is
// of all lanes with these columns: sum becomes a mean, about what is now the reference, the same in
// all of them, and squares those about it. Unless `shift`, the references are 0 and stay so, and
// the means are 0: sums may be infinite.
template <int N>
__device__ __forceinline__ void MergeThreads(int vectors, bool shift, float& count,
                                             float (&reference)[N], float (&sum)[N],
                                             float (&squares)[N]) {
  const float inverse = count > 0 ? 1.0f / count : 0.0f;
#pragma unroll
  for (int n = 0; n < N; ++n) {
    if (!shift) sum[n] = 0;
    const float mean = sum[n] * inverse;
    const float common = __shfl_sync(0xffffffffu, reference[n], threadIdx.x % vectors);
    squares[n] -= sum[n] * mean;
    sum[n] = count > 0 ? (reference[n] - common) + mean : 0.0f;
    reference[n] = common;
  }
  MergeLanes(vectors, count, sum, squares);
}

// One for each reduction of a kernel: nothing is written twice, so one barrier is enough.
template <int N, typename A>
struct alignas(16) BlockStorage {
  A warps[N][kMaxWarps];
  A blocks[N][kMaxCluster];
};

// All threads of the block call it. blockDim.x is a multiple of 32.
template <int N, typename A>
__device__ __forceinline__ void BlockSum(A (&values)[N], BlockStorage<N, A>* storage) {
  WarpSum(values, 32);
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int warps = blockDim.x / 32;
  if (lane == 0) {
#pragma unroll
    for (int n = 0; n < N; ++n) storage->warps[n][warp] = values[n];
  }
  __syncthreads();
#pragma unroll
  for (int n = 0; n < N; ++n) values[n] = lane < warps ? storage->warps[n][lane] : A(0);
  WarpSum(values, 32);
}

// The same for blocks of few warps: every thread adds up the warps' sums, which takes less time
// than a second round of shuffles.
template <int N>
__device__ __forceinline__ void ShortBlockSum(float (&values)[N], BlockStorage<N, float>* storage) {
  WarpSum(values, 32);
  const int warps = blockDim.x / 32;
  if (warps == 1) return;
  if (threadIdx.x % 32 == 0) {
#pragma unroll
    for (int n = 0; n < N; ++n) storage->warps[n][threadIdx.x / 32] = values[n];
  }
  if (warps % 2 != 0 && threadIdx.x < N) storage->warps[threadIdx.x][warps] = 0;  // pairs are read
  __syncthreads();
#pragma unroll
  for (int n = 0; n < N; ++n) values[n] = 0;
#pragma unroll 1
  for (int warp = 0; warp < warps; warp += 2) {
#pragma unroll
    for (int n = 0; n < N; ++n) {
      const float2 pair = *reinterpret_cast<const float2*>(&storage->warps[n][warp]);
      values[n] += pair.x + pair.y;
    }
  }
}

// The same over the blocks of a cluster. The caller syncs the cluster once more before a block
// ends.
template <int N, typename A>
__device__ __forceinline__ void ClusterSum(A (&values)[N], BlockStorage<N, A>* storage,
                                           int blocks) {
  BlockSum(values, storage);
#if __CUDA_ARCH__ >= 900
  if (blocks > 1) {
    if (threadIdx.x < blocks) {
      BlockStorage<N, A>* other = InBlockOfCluster(storage, threadIdx.x);
#pragma unroll
      for (int n = 0; n < N; ++n) other->blocks[n][BlockRankInCluster()] = values[n];
    }
    SyncCluster();
#pragma unroll
    for (int n = 0; n < N; ++n) {
      values[n] = 0;
      for (int block = 0; block < blocks; ++block) values[n] += storage->blocks[n][block];
    }
  }
#endif
}

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_REDUCE_CUH_
