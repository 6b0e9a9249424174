// What the kernels of long rows share: a block's, the grid's and the cluster's.
#ifndef NV_NORMS_KERNELS_CUDA_FORWARD_RING_CUH_
#define NV_NORMS_KERNELS_CUDA_FORWARD_RING_CUH_

#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/rim.cuh"
#include "kernels/cuda/ring.cuh"

namespace nv_norms {
namespace cuda {

// Of a row, to a thread that copies 16 bytes at once, or 4. Each number of items of a block has a
// kernel of its own: 10000 x 10000 bfloat16 has 3 items to a thread.
constexpr int kForwardLeastNumbers = 16;
constexpr int kForwardNumbers = 32;
constexpr int kForwardNarrowNumbers = 16;
constexpr int kForwardClusterRimNumbers = 24;  // of clusters, where rows have a rim

struct ForwardRingArguments {
  DType param;
  Formula formula;
  float epsilon;
  Activation activation;  // of rows with parameters of their own alone
  RowsOwn own;
  int64_t rows;
  int cols;
  RingShape shape;
  ForwardBuffers buffers;
  Post* mail;         // [rows][blocks], for teams of the grid
  unsigned* tickets;  // where rows are drawn, see tickets.cuh
};

using ForwardRingPointer = void (*)(ForwardRingArguments);

// The kernel of teams that are clusters; null where there is none for these types.
ForwardRingPointer ForwardClusterKernel(DType x, DType y, bool by_row, const RingShape& shape);
// The same of teams of the grid.
ForwardRingPointer ForwardTeamKernel(DType x, DType y, bool by_row, const RingShape& shape);

// The kernel for x and y of these types and parameters of columns or rows, null where there is
// none. Kernels has Wide<T, Y, BY_ROW>(shape) for vectors of 16 bytes, Narrow<T>() for those of
// four.
template <typename Kernels, typename T, bool BY_ROW>
ForwardRingPointer ForwardRingKernelFor(DType x, DType y, const RingShape& shape) {
  if (shape.vector != kVectorOf<T>) {
    if constexpr (BY_ROW) return nullptr;
    return x == y ? Kernels::template Narrow<T>() : nullptr;
  }
  if (x == y) return Kernels::template Wide<T, T, BY_ROW>(shape);
  if constexpr (std::is_same_v<T, float>) {
    return y == DType::kHalf ? Kernels::template Wide<T, __half, BY_ROW>(shape)
                             : Kernels::template Wide<T, __nv_bfloat16, BY_ROW>(shape);
  } else if constexpr (BY_ROW) {
    return nullptr;
  } else {
    return y == DType::kFloat ? Kernels::template Wide<T, float, false>(shape) : nullptr;
  }
}

template <typename Kernels, bool BY_ROW>
ForwardRingPointer ForwardRingKernelFor(DType x, DType y, const RingShape& shape) {
  if (x == DType::kFloat) return ForwardRingKernelFor<Kernels, float, BY_ROW>(x, y, shape);
  if (x == DType::kHalf) return ForwardRingKernelFor<Kernels, __half, BY_ROW>(x, y, shape);
  return ForwardRingKernelFor<Kernels, __nv_bfloat16, BY_ROW>(x, y, shape);
}

template <typename Kernels>
ForwardRingPointer ForwardRingKernelFor(DType x, DType y, bool by_row, const RingShape& shape) {
  return by_row ? ForwardRingKernelFor<Kernels, true>(x, y, shape)
                : ForwardRingKernelFor<Kernels, false>(x, y, shape);
}

// (x - shift) * rstd + offset is xhat.
struct ForwardLine {
  float shift;
  float rstd;
  float offset;
};

// gamma and beta, a column's or a row's.
template <bool BY_ROW, int VEC, int ITEMS>
struct ForwardParams;

// A column's: this thread's stay in its registers.
template <int VEC, int ITEMS>
struct ForwardParams<false, VEC, ITEMS> {
  struct Row {};
  float gamma[ITEMS][VEC];
  float beta[ITEMS][VEC];

  // skip: numbers of a row before its first vector. VECTORS: these are whole vectors.
  template <bool VECTORS = true>
  __device__ __forceinline__ void Load(const ForwardRingArguments& args, const RingPlace& place,
                                       int skip = 0) {
    const int items = args.shape.items;
    LoadOwn<VECTORS>(place, items, args.param, args.buffers.gamma, skip, 1, gamma);
    LoadOwn<VECTORS>(place, items, args.param, args.buffers.beta, skip, 0, beta);
  }
  static __device__ __forceinline__ Row Of(const ForwardRingArguments&, int64_t) { return Row(); }
  static __device__ __forceinline__ ForwardLine Scaled(const ForwardLine& line, const Row&) {
    return line;
  }
  // use(k, i, has, apply) for this thread's items, as ForItems; apply(values) makes y of x.
  template <bool MASKED = false, typename F>
  __device__ __forceinline__ void ForOutput(const ForwardRingArguments& args,
                                            const RingPlace& place, const ForwardLine& line,
                                            const F& use) const {
    ForItems<ITEMS, MASKED>(place, args.shape.items, [&](int k, int i, bool has) {
      use(k, i, has, [&](float (&v)[VEC]) {
#pragma unroll
        for (int j = 0; j < VEC; ++j) {
          v[j] = ((v[j] - line.shift) * line.rstd + line.offset) * gamma[k][j] + beta[k][j];
        }
      });
    });
  }
};

// A row's go into its line: (x - shift) * rstd + offset is y, or what the activation is of.
template <int VEC, int ITEMS>
struct ForwardParams<true, VEC, ITEMS> {
  using Row = RowParam;

  template <bool VECTORS = true>
  __device__ __forceinline__ void Load(const ForwardRingArguments&, const RingPlace&, int = 0) {}
  static __device__ __forceinline__ Row Of(const ForwardRingArguments& args, int64_t row) {
    return LoadRowParam(args.own, args.param, args.buffers.gamma, args.buffers.beta, row);
  }
  static __device__ __forceinline__ ForwardLine Scaled(const ForwardLine& line, const Row& row) {
    return {line.shift, line.rstd * row.gamma, line.offset * row.gamma + row.beta};
  }
  template <bool MASKED = false, typename F>
  __device__ __forceinline__ void ForOutput(const ForwardRingArguments& args,
                                            const RingPlace& place, const ForwardLine& line,
                                            const F& use) const {
    const auto apply = [&](float (&v)[VEC]) {
#pragma unroll
      for (int j = 0; j < VEC; ++j) v[j] = (v[j] - line.shift) * line.rstd + line.offset;
    };
    // A branch around all items: between branches the compiler would not overlap their work.
    if (args.activation.none()) {
      ForItems<ITEMS, MASKED>(place, args.shape.items,
                              [&](int k, int i, bool has) { use(k, i, has, apply); });
    } else {
      const Activator<float> activator(args.activation);
      ForItems<ITEMS, MASKED>(place, args.shape.items, [&](int k, int i, bool has) {
        use(k, i, has, [&](float (&v)[VEC]) {
          apply(v);
          activator.Apply(v);
        });
      });
    }
  }
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
    if (args.buffers.rstd != nullptr) static_cast<float*>(args.buffers.rstd)[row] = out.rstd;
  }
  return out;
}

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_FORWARD_RING_CUH_
