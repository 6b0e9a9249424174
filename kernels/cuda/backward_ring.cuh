// What the gradient's kernels of long rows share: a block's, the grid's and the cluster's.
#ifndef NV_NORMS_KERNELS_CUDA_BACKWARD_RING_CUH_
#define NV_NORMS_KERNELS_CUDA_BACKWARD_RING_CUH_

#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/ring.cuh"

namespace nv_norms {
namespace cuda {

// Of a row, to a thread.
constexpr int kBackwardNumbers = 16;
constexpr int kBackwardClusterNumbers = 24;  // at most, where it copies 16 bytes at once

struct BackwardRingArguments {
  DType param;
  Formula formula;
  int64_t rows;
  int cols;
  RingShape shape;
  BackwardBuffers buffers;
  float* dgamma;  // partial sums [teams, cols], where wanted
  float* dbeta;
  Post* mail;  // [rows][blocks], for teams of the grid
};

// Bytes of x in a stage, and where a stage begins; dy's come behind x's. No number more than x's
// bytes is kept for it: kernels of clusters have no register left, and one that is spilled is read
// in every row. 1000 x 100000 float32 took 0.41 ms so, and takes 0.31.
template <typename T, typename D>
constexpr int kDyPerX = sizeof(T) / sizeof(D);
template <typename T, typename D, int VEC>
__device__ __forceinline__ int StageXBytes(const RingShape& shape) {
  constexpr int kUnit = 16 * kDyPerX<T, D>;
  return (shape.share * static_cast<int>(VEC * sizeof(T)) + kUnit - 1) / kUnit * kUnit;
}
template <typename T, typename D>
__device__ __forceinline__ int StageAt(int stage, int x_bytes) {
  constexpr int kRatio = kDyPerX<T, D>;
  return stage * (kRatio + 1) * (x_bytes / kRatio);
}

// This thread's part of gamma.
template <int VEC, int ITEMS>
__device__ __forceinline__ void LoadGamma(const BackwardRingArguments& args, const RingPlace& place,
                                          float (&gamma)[ITEMS][VEC]) {
  LoadOwn(place, args.shape.items, args.param, args.buffers.gamma, 1, gamma);
}

// This thread's part of its team's sums.
template <int VEC, int ITEMS>
__device__ __forceinline__ void StoreSums(const BackwardRingArguments& args, const RingPlace& place,
                                          const float (&sums)[ITEMS][VEC], float* to) {
  if (to == nullptr) return;
  to += place.team * args.cols;
  ForItems<ITEMS>(place, args.shape.items,
                  [&](int k, int i) { StoreAs(to + (place.begin + i) * VEC, sums[k]); });
}

using BackwardRingPointer = void (*)(BackwardRingArguments);

// The kernel of teams that are clusters.
BackwardRingPointer BackwardClusterKernel(DType x, DType dy, const RingShape& shape);
// That of teams of the grid.
BackwardRingPointer BackwardTeamKernel(DType x, DType dy, const RingShape& shape);

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_BACKWARD_RING_CUH_
