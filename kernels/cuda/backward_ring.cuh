// What the gradient's kernels of long rows share: a block's, the grid's and the cluster's.
#ifndef NV_NORMS_KERNELS_CUDA_BACKWARD_RING_CUH_
#define NV_NORMS_KERNELS_CUDA_BACKWARD_RING_CUH_

#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/allies.cuh"
#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/rim.cuh"
#include "kernels/cuda/ring.cuh"
#include "kernels/cuda/segments_sums.cuh"

namespace nv_norms {
namespace cuda {

// Of a row, to a thread.
constexpr int kBackwardNumbers = 16;
constexpr int kBackwardClusterNumbers = 24;  // at most, where it copies 16 bytes at once

struct BackwardRingArguments {
  DType param;
  Formula formula;
  Activation activation;  // of rows with parameters of their own alone
  RowsOwn own;
  int64_t rows;
  int cols;
  RingShape shape;
  BackwardBuffers buffers;
  float* dgamma;  // partial sums [teams / allies, cols], where wanted
  float* dbeta;
  SegmentSums<float>* row_sums;  // [rows], where parameters are the rows' and wanted
  XhatLine<float>* row_lines;
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

// Where a team has its partial sums of columns, [cols]; null where they are not wanted.
__device__ __forceinline__ float* SumsOfTeam(const BackwardRingArguments& args,
                                             const RingPlace& place, float* sums) {
  return sums == nullptr ? nullptr : sums + place.team * args.cols;
}

// This thread's part of sums of columns, number by number if they are not aligned as vectors.
template <bool VECTORS, int VEC, int ITEMS>
__device__ __forceinline__ void StoreSums(const BackwardRingArguments& args, const RingPlace& place,
                                          const float (&sums)[ITEMS][VEC], int skip, float* to) {
  if (to == nullptr) return;
  ForItems<ITEMS>(place, args.shape.items, [&](int k, int i, bool) {
    float* const first = to + skip + (place.begin + i) * VEC;
    if constexpr (VECTORS) {
      StoreAs(first, sums[k]);
    } else {
#pragma unroll
      for (int v = 0; v < VEC; ++v) first[v] = sums[k][v];
    }
  });
}

// gamma, and the sums for dgamma and dbeta, columns' or rows'.
template <bool BY_ROW, int VEC, int ITEMS>
struct GradientParams;

// Columns': this thread's stay in its registers.
template <int VEC, int ITEMS>
struct GradientParams<false, VEC, ITEMS> {
  struct Row {};
  float gamma[ITEMS][VEC];
  float dgamma[ITEMS][VEC] = {};
  float dbeta[ITEMS][VEC] = {};

  // skip: numbers of a row before its first vector. VECTORS: these are whole vectors.
  template <bool VECTORS = true>
  __device__ __forceinline__ void Load(const BackwardRingArguments& args, const RingPlace& place,
                                       int skip = 0) {
    LoadOwn<VECTORS>(place, args.shape.items, args.param, args.buffers.gamma, skip, 1, gamma);
  }
  static __device__ __forceinline__ Row Of(const BackwardRingArguments&, int64_t) { return Row(); }
  static __device__ __forceinline__ float Scale(float rstd, const Row&) { return rstd; }

  // load(k, i, e, d) has e = x - mean and dy of an item; adds to the sums of e, w = dy * gamma
  // and w * e.
  template <typename Load>
  __device__ __forceinline__ void Sum(const BackwardRingArguments& args, const RingPlace& place,
                                      float, const Row&, const Load& load, float* sums) const {
    ForItems<ITEMS>(place, args.shape.items, [&](int k, int i, bool) {
      load(k, i, [&](const float (&e)[VEC], const float (&d)[VEC]) {
#pragma unroll
        for (int v = 0; v < VEC; ++v) {
          const float w = d[v] * gamma[k][v];
          sums[0] += e[v];
          sums[1] += w;
          sums[2] += w * e[v];
        }
      });
    });
  }

  static __device__ __forceinline__ GradientLine Line(const BackwardRingArguments& args, int64_t,
                                                      float mean, float rstd, const Row&,
                                                      const float* sums, float inverse, bool) {
    return LineOf(args.formula, mean, rstd, sums[0], sums[1], sums[2], inverse);
  }

  // load as above; store(i, dx). AGAIN: load reads dy again, else it has what Sum made of it.
  template <bool AGAIN, typename Load, typename Store>
  __device__ __forceinline__ void Apply(const BackwardRingArguments& args, const RingPlace& place,
                                        float rstd, const Row&, const GradientLine& line,
                                        const Load& load, const Store& store) {
    ForItems<ITEMS>(place, args.shape.items, [&](int k, int i, bool) {
      load(k, i, [&](const float (&e)[VEC], const float (&d)[VEC]) {
        float out[VEC];
#pragma unroll
        for (int v = 0; v < VEC; ++v) {
          out[v] = d[v] * gamma[k][v] * rstd + (line.offset - e[v] * line.slope);
          dgamma[k][v] += d[v] * (e[v] * rstd + line.xhat_offset);
          dbeta[k][v] += d[v];
        }
        if (args.buffers.dx != nullptr) store(i, out);
      });
    });
  }

  // To dgamma and dbeta [cols], where not null.
  template <bool VECTORS = true>
  __device__ __forceinline__ void Store(const BackwardRingArguments& args, const RingPlace& place,
                                        float* to_dgamma, float* to_dbeta, int skip = 0) const {
    StoreSums<VECTORS>(args, place, dgamma, skip, to_dgamma);
    StoreSums<VECTORS>(args, place, dbeta, skip, to_dbeta);
  }
};

// Rows': a row's sums of dy and dy * e are those for its dgamma and dbeta, and weighted with its
// gamma what dx needs.
template <int VEC, int ITEMS>
struct GradientParams<true, VEC, ITEMS> {
  using Row = RowParam;

  template <bool VECTORS = true>
  __device__ __forceinline__ void Load(const BackwardRingArguments&, const RingPlace&, int = 0) {}
  static __device__ __forceinline__ Row Of(const BackwardRingArguments& args, int64_t row) {
    if (row >= args.rows) return {1, 0};
    return LoadRowParam(args.own, args.param, args.buffers.gamma, args.buffers.beta, row);
  }
  static __device__ __forceinline__ float Scale(float rstd, const Row& row) {
    return rstd * row.gamma;
  }

  // Calls use(k, i, derive): derive(e, d) makes the gradient of t = xhat * gamma + beta of dy. The
  // branch is around all items: between branches the compiler would not overlap their work.
  template <typename F>
  static __device__ __forceinline__ void Derived(const BackwardRingArguments& args,
                                                 const RingPlace& place, float scale, float beta,
                                                 const F& use) {
    if (args.activation.none()) {
      ForItems<ITEMS>(place, args.shape.items, [&](int k, int i, bool) {
        use(k, i, [](const float (&)[VEC], float (&)[VEC]) {});
      });
    } else {
      const Activator<float> activator(args.activation);
      ForItems<ITEMS>(place, args.shape.items, [&](int k, int i, bool) {
        use(k, i, [&](const float (&e)[VEC], float (&d)[VEC]) {
          float t[VEC];
#pragma unroll
          for (int v = 0; v < VEC; ++v) t[v] = fmaf(e[v], scale, beta);
          activator.Derive(t, d);
        });
      });
    }
  }

  template <typename Load>
  static __device__ __forceinline__ void Sum(const BackwardRingArguments& args,
                                             const RingPlace& place, float scale, const Row& row,
                                             const Load& load, float* sums) {
    Derived(args, place, scale, row.beta, [&](int k, int i, const auto& derive) {
      load(k, i, [&](const float (&e)[VEC], float (&d)[VEC]) {
        derive(e, d);
#pragma unroll
        for (int v = 0; v < VEC; ++v) {
          sums[0] += e[v];
          sums[1] += d[v];
          sums[2] += d[v] * e[v];
        }
      });
    });
  }

  static __device__ __forceinline__ GradientLine Line(const BackwardRingArguments& args, int64_t at,
                                                      float mean, float rstd, const Row& row,
                                                      const float* sums, float inverse,
                                                      bool store) {
    const GradientLine out = LineOf(args.formula, mean, rstd, sums[0], sums[1] * row.gamma,
                                    sums[2] * row.gamma, inverse);
    if (store && args.row_sums != nullptr) {
      args.row_sums[at] = {sums[1], sums[2]};
      args.row_lines[at] = {rstd, out.xhat_offset};
    }
    return out;
  }

  template <bool AGAIN, typename Load, typename Store>
  static __device__ __forceinline__ void Apply(const BackwardRingArguments& args,
                                               const RingPlace& place, float scale, const Row& row,
                                               const GradientLine& line, const Load& load,
                                               const Store& store) {
    Derived(args, place, scale, row.beta, [&](int k, int i, const auto& derive) {
      load(k, i, [&](const float (&e)[VEC], float (&d)[VEC]) {
        if constexpr (AGAIN) derive(e, d);
        float out[VEC];
#pragma unroll
        for (int v = 0; v < VEC; ++v) {
          out[v] = d[v] * scale + (line.offset - e[v] * line.slope);
        }
        store(i, out);
      });
    });
  }

  template <bool VECTORS = true>
  static __device__ __forceinline__ void Store(const BackwardRingArguments&, const RingPlace&,
                                               float*, float*, int = 0) {}
};

// This thread's number of a row's rim, if it has one: what GradientParams does with the others.
template <typename T, typename D, typename Rim>
struct RimGradient {
  const Rim& rim;
  float gamma;
  float dgamma = 0;
  float dbeta = 0;
  Bits<float, 1> next_x = {};
  Bits<float, 1> next_dy = {};
  float e[1] = {};
  float d[1] = {};

  __device__ __forceinline__ RimGradient(const BackwardRingArguments& args, const Rim& of)
      : rim(of), gamma(of.LoadParam(args.param, args.buffers.gamma, 1)) {}
  // For the next row, whose first whole vectors lie there.
  __device__ __forceinline__ void Ask(const T* x, const D* dy, bool is_row) {
    next_x = rim.Load(x, is_row);
    next_dy = rim.Load(dy, is_row);
  }
  __device__ __forceinline__ void Take(float mean) {
    ConvertBits<T>(next_x, e);
    ConvertBits<D>(next_dy, d);
    e[0] -= mean;
  }
  __device__ __forceinline__ void Sum(float* sums) const {
    if (!rim.Has()) return;
    const float w = d[0] * gamma;
    sums[0] += e[0];
    sums[1] += w;
    sums[2] += w * e[0];
  }
  // dx: of the row's first whole vector.
  __device__ __forceinline__ void Apply(float rstd, const GradientLine& line, bool store, T* dx) {
    if (!rim.Has()) return;
    dgamma += d[0] * (e[0] * rstd + line.xhat_offset);
    dbeta += d[0];
    const float out[1] = {d[0] * gamma * rstd + (line.offset - e[0] * line.slope)};
    if (store) StoreAs(dx + rim.at, out);
  }
  __device__ __forceinline__ void Store(float* to_dgamma, float* to_dbeta) const {
    if (!rim.Has()) return;
    if (to_dgamma != nullptr) to_dgamma[rim.head + rim.at] = dgamma;
    if (to_dbeta != nullptr) to_dbeta[rim.head + rim.at] = dbeta;
  }
};

using BackwardRingPointer = void (*)(BackwardRingArguments);

// The kernel for x and dy of these types and parameters of columns or rows, null where there is
// none. Kernels has Wide<T, D, BY_ROW>(shape) for vectors of 16 bytes, Narrow<T>() for those of
// four.
template <typename Kernels, typename T, typename D, bool BY_ROW>
BackwardRingPointer BackwardRingKernelFor(const RingShape& shape) {
  if (shape.vector == kVectorOf<T>) return Kernels::template Wide<T, D, BY_ROW>(shape);
  if constexpr (BY_ROW || !std::is_same_v<T, D>) {
    return nullptr;
  } else {
    return Kernels::template Narrow<T>();
  }
}

template <typename Kernels, bool BY_ROW>
BackwardRingPointer BackwardRingKernelFor(DType x, DType dy, const RingShape& shape) {
  if (x != dy) {
    return dy == DType::kHalf ? BackwardRingKernelFor<Kernels, float, __half, BY_ROW>(shape)
                              : BackwardRingKernelFor<Kernels, float, __nv_bfloat16, BY_ROW>(shape);
  }
  if (x == DType::kFloat) return BackwardRingKernelFor<Kernels, float, float, BY_ROW>(shape);
  return x == DType::kHalf
             ? BackwardRingKernelFor<Kernels, __half, __half, BY_ROW>(shape)
             : BackwardRingKernelFor<Kernels, __nv_bfloat16, __nv_bfloat16, BY_ROW>(shape);
}

template <typename Kernels>
BackwardRingPointer BackwardRingKernelFor(DType x, DType dy, bool by_row, const RingShape& shape) {
  return by_row ? BackwardRingKernelFor<Kernels, true>(x, dy, shape)
                : BackwardRingKernelFor<Kernels, false>(x, dy, shape);
}

// The kernel of teams that are clusters; null where there is none for these types.
BackwardRingPointer BackwardClusterKernel(DType x, DType dy, bool by_row, const RingShape& shape);
// That of teams of the grid.
BackwardRingPointer BackwardTeamKernel(DType x, DType dy, bool by_row, const RingShape& shape);

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_BACKWARD_RING_CUH_
