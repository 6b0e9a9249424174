// What the kernels of long rows share: a block's, the grid's and the cluster's.
#ifndef NV_NORMS_KERNELS_CUDA_FORWARD_RING_CUH_
#define NV_NORMS_KERNELS_CUDA_FORWARD_RING_CUH_

#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/ring.cuh"

namespace nv_norms {
namespace cuda {

// Of a row, to a thread that copies 16 bytes at once, or 4. Each number of items of a block has a
// kernel of its own: 10000 x 10000 bfloat16 has 3 items to a thread.
constexpr int kForwardLeastNumbers = 16;
constexpr int kForwardNumbers = 32;
constexpr int kForwardNarrowNumbers = 16;

struct ForwardRingArguments {
  DType param;
  Formula formula;
  float epsilon;
  int64_t rows;
  int cols;
  RingShape shape;
  ForwardBuffers buffers;
  Post* mail;  // [rows][blocks], for teams of the grid
};

// This thread's part of gamma and beta.
template <int VEC, int ITEMS>
__device__ __forceinline__ void LoadGammaBeta(const ForwardRingArguments& args,
                                              const RingPlace& place, float (&gamma)[ITEMS][VEC],
                                              float (&beta)[ITEMS][VEC]) {
  LoadOwn(place, args.shape.items, args.param, args.buffers.gamma, 1, gamma);
  LoadOwn(place, args.shape.items, args.param, args.buffers.beta, 0, beta);
}

using ForwardRingPointer = void (*)(ForwardRingArguments);

// The kernel of teams that are clusters; null where there is none for these types.
ForwardRingPointer ForwardClusterKernel(DType x, DType y, const RingShape& shape);
// The same of teams of the grid.
ForwardRingPointer ForwardTeamKernel(DType x, DType y, const RingShape& shape);

// (x - shift) * rstd + offset is xhat.
struct ForwardLine {
  float shift;
  float rstd;
  float offset;
};

// A row's statistics; mean = shift + low.
__device__ __forceinline__ ForwardLine LineOf(const ForwardRingArguments& args, int64_t row,
                                              float shift, float low, float variance, bool store) {
  ForwardLine out;
  out.shift = shift;
  out.rstd = ShortInverseRoot(variance + args.epsilon);
  out.offset = args.formula == Formula::kScaleOnly ? shift * out.rstd : -low * out.rstd;
  if (store) {
    if (args.buffers.mean != nullptr) static_cast<float*>(args.buffers.mean)[row] = shift + low;
    static_cast<float*>(args.buffers.rstd)[row] = out.rstd;
  }
  return out;
}

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_FORWARD_RING_CUH_
