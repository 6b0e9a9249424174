// The activation behind a norm, and its gradient, as passes of their own: for any geometry, type
// and alignment. activation.cuh says which kernels need none.
#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/launch.cuh"

namespace nv_norms {
namespace cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kVec = 8;
constexpr int kBatch = 2;  // vectors of a run that a thread asks for at once
constexpr int64_t kMaxBlocks = 1 << 20;

unsigned BlocksFor(int64_t count) {
  return static_cast<unsigned>(std::min(kMaxBlocks, CeilDiv(count, kThreads * kVec)));
}

// Calls f(index, whole) for the first element of every kVec; whole: they may be read and written at
// once.
template <typename F>
__device__ __forceinline__ void ForVectors(int64_t count, bool vectors, const F& f) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * (kThreads * kVec);
  for (int64_t i = (blockIdx.x * int64_t{kThreads} + threadIdx.x) * kVec; i < count; i += step) {
    f(i, vectors && i + kVec <= count);
  }
}

template <typename A>
__device__ __forceinline__ void Load(DType type, const void* from, int64_t index, int64_t count,
                                     bool whole, A (&to)[kVec]) {
  if (whole) return LoadVector<A, kVec>(type, from, index, to);
#pragma unroll
  for (int v = 0; v < kVec; ++v) {
    to[v] = index + v < count ? LoadOne<A>(type, from, index + v) : A(0);
  }
}

template <typename A>
__device__ __forceinline__ void Store(DType type, void* to, int64_t index, int64_t count,
                                      bool whole, const A (&from)[kVec]) {
  if (whole) return StoreVector<A, kVec>(type, to, index, from);
#pragma unroll
  for (int v = 0; v < kVec; ++v) {
    if (index + v < count) StoreOne<A>(type, to, index + v, from[v]);
  }
}

template <typename A>
__global__ void __launch_bounds__(kThreads)
    ActivationKernel(DType type, void* y, int64_t count, Activator<A> activator, bool vectors) {
  ForVectors(count, vectors, [&](int64_t i, bool whole) {
    A t[kVec];
    Load(type, y, i, count, whole, t);
    activator.Apply(t);
    Store(type, y, i, count, whole, t);
  });
}

// Most tensors have fewer than 2^32 elements, and a division in 64 bits takes some 70 instructions.
__device__ __forceinline__ int64_t Divide(int64_t a, int64_t b, int64_t* rest) {
  if (((a | b) >> 32) == 0) {
    const uint32_t quotient = static_cast<uint32_t>(a) / static_cast<uint32_t>(b);
    *rest = static_cast<uint32_t>(a) - quotient * static_cast<uint32_t>(b);
    return quotient;
  }
  const int64_t quotient = a / b;
  *rest = a - quotient * b;
  return quotient;
}

// Where an element's statistic and parameters lie.
struct ElementPlace {
  int64_t stat = 0;
  int64_t param = 0;
  int64_t left = 1;  // elements of the last axis from this one on

  // Of element `index` of the first `rank` axes.
  __device__ __forceinline__ ElementPlace(const Geometry& geometry, int rank, int64_t index) {
#pragma unroll 1
    for (int i = rank - 1; i >= 0; --i) {
      const Axis& axis = geometry.axes[i];
      int64_t at;
      index = Divide(index, axis.size, &at);
      stat += at * axis.stat_stride;
      param += at * axis.param_stride;
      if (i == geometry.rank - 1) left = axis.size - at;
    }
  }
};

// t = source * scale + beta, where source is x, less the mean where that is subtracted.
template <typename A>
struct ElementLine {
  A mean;
  A scale;
  A beta;

  __device__ __forceinline__ ElementLine(const BackwardProblem& problem,
                                         const BackwardBuffers& buffers, int64_t stat,
                                         int64_t param) {
    mean =
        problem.formula == Formula::kCenter ? StoredMean<A>(buffers, problem.stat(), stat) : A(0);
    scale = LoadOne<A>(problem.stat(), buffers.rstd, stat) *
            ParamOr<A>(problem.param, buffers.gamma, param, 1);
    beta = ParamOr<A>(problem.param, buffers.beta, param, 0);
  }
};

template <typename A>
__global__ void __launch_bounds__(kThreads)
    ActivationGradientKernel(const __grid_constant__ BackwardProblem problem,
                             const BackwardBuffers buffers, void* to, bool vectors) {
  const Geometry& geometry = problem.geometry;
  const int64_t count = geometry.elements;
  const Activator<A> activator(problem.activation);
  const Axis last = geometry.rank > 0 ? geometry.axes[geometry.rank - 1] : Axis();
  ForVectors(count, vectors, [&](int64_t i, bool whole) {
    A x[kVec];
    A dy[kVec];
    Load(problem.x, buffers.x, i, count, whole, x);
    Load(problem.dy, buffers.dy, i, count, whole, dy);
    const ElementPlace first(geometry, geometry.rank, i);
    const bool run = first.left >= kVec;
    const bool same = run && last.stat_stride == 0 && last.param_stride == 0;
    ElementLine<A> line(problem, buffers, first.stat, first.param);
    A t[kVec];
#pragma unroll
    for (int v = 0; v < kVec; ++v) {
      if (v > 0 && !same && i + v < count) {
        if (run) {
          line = ElementLine<A>(problem, buffers, first.stat + v * last.stat_stride,
                                first.param + v * last.param_stride);
        } else {
          const ElementPlace place(geometry, geometry.rank, i + v);
          line = ElementLine<A>(problem, buffers, place.stat, place.param);
        }
      }
      t[v] = (x[v] - line.mean) * line.scale + line.beta;
    }
    activator.Derive(t, dy);
    Store(problem.dy, to, i, count, whole, dy);
  });
}

// The same where elements with equal parameters and statistics come in runs of whole vectors, such
// as instance and group norm channels first have them: a warp to a piece of a run. The gradient of
// norm and activation, float16, 4 x 64 x 64^3, H200: by the kernel above 0.325 ms, by this one
// 0.242.
template <typename A>
__global__ void __launch_bounds__(kThreads, sizeof(A) == 8 ? 2 : 3)
    RunsGradientKernel(const __grid_constant__ BackwardProblem problem,
                       const BackwardBuffers buffers, void* to, int64_t pieces) {
  constexpr int kHop = 32 * kVec;
  const Geometry& geometry = problem.geometry;
  const Activator<A> activator(problem.activation);
  const int64_t length = geometry.axes[geometry.rank - 1].size;
  const int64_t count = geometry.elements / length * pieces;
  const int64_t step = static_cast<int64_t>(gridDim.x) * (kThreads / 32);
  for (int64_t i = blockIdx.x * int64_t{kThreads / 32} + threadIdx.x / 32; i < count; i += step) {
    int64_t piece;
    const int64_t run = Divide(i, pieces, &piece);
    const int64_t begin = piece * (kBatch * kHop) + threadIdx.x % 32 * kVec;  // in the run
    const int64_t at = run * length + begin;
    Bits<A, kVec> x_bits[kBatch];
    Bits<A, kVec> dy_bits[kBatch];
    Typed<A>::Call(problem.x, [&](auto* tag) {
      using T = std::remove_pointer_t<decltype(tag)>;
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        if (begin + b * kHop < length) {
          LoadBits(static_cast<const T*>(buffers.x) + at + b * kHop, &x_bits[b]);
        }
      }
    });
    Typed<A>::Call(problem.dy, [&](auto* tag) {
      using T = std::remove_pointer_t<decltype(tag)>;
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        if (begin + b * kHop < length) {
          LoadBits(static_cast<const T*>(buffers.dy) + at + b * kHop, &dy_bits[b]);
        }
      }
    });
    const ElementPlace place(geometry, geometry.rank - 1, run);
    const ElementLine<A> line(problem, buffers, place.stat, place.param);
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      if (begin + b * kHop >= length) break;
      A x[kVec];
      A dy[kVec];
      Typed<A>::Call(problem.x, [&](auto* tag) {
        ConvertBits<std::remove_pointer_t<decltype(tag)>>(x_bits[b], x);
      });
      Typed<A>::Call(problem.dy, [&](auto* tag) {
        ConvertBits<std::remove_pointer_t<decltype(tag)>>(dy_bits[b], dy);
      });
      A t[kVec];
#pragma unroll
      for (int v = 0; v < kVec; ++v) t[v] = (x[v] - line.mean) * line.scale + line.beta;
      activator.Derive(t, dy);
      StoreVector<A, kVec>(problem.dy, to, at + b * kHop, dy);
    }
  }
}

}  // namespace

Status LaunchActivation(const ForwardProblem& problem, void* y, void* stream) {
  const int64_t count = problem.geometry.elements;
  const bool vectors = VectorAligned(y, problem.y, kVec);
  const char* name = "activation of a normalization";
  if (problem.y == DType::kDouble) {
    return LaunchKernel(name, ActivationKernel<double>, BlocksFor(count), kThreads, 0, 1, stream,
                        problem.y, y, count, Activator<double>(problem.activation), vectors);
  }
  return LaunchKernel(name, ActivationKernel<float>, BlocksFor(count), kThreads, 0, 1, stream,
                      problem.y, y, count, Activator<float>(problem.activation), vectors);
}

int64_t ActivationGradientBytes(const BackwardProblem& problem) {
  return Align16(problem.geometry.elements * SizeOf(problem.dy));
}

Status LaunchActivationGradient(const BackwardProblem& problem, const BackwardBuffers& buffers,
                                void* to, void* stream) {
  const bool vectors = VectorAligned(buffers.x, problem.x, kVec) &&
                       VectorAligned(buffers.dy, problem.dy, kVec) &&
                       VectorAligned(to, problem.dy, kVec);
  const char* name = "gradient of a normalization's activation";
  const Geometry& geometry = problem.geometry;
  const Axis last = geometry.rank > 0 ? geometry.axes[geometry.rank - 1] : Axis();
  if (vectors && last.stat_stride == 0 && last.param_stride == 0 && last.size % kVec == 0) {
    const int64_t pieces = CeilDiv(last.size, 32 * kVec * kBatch);
    const int64_t blocks = CeilDiv(geometry.elements / last.size * pieces, kThreads / 32);
    return LaunchKernel(
        name, problem.in_double() ? RunsGradientKernel<double> : RunsGradientKernel<float>,
        static_cast<unsigned>(std::min(kMaxBlocks, blocks)), kThreads, 0, 1, stream, problem,
        buffers, to, pieces);
  }
  return LaunchKernel(
      name,
      problem.in_double() ? ActivationGradientKernel<double> : ActivationGradientKernel<float>,
      BlocksFor(problem.geometry.elements), kThreads, 0, 1, stream, problem, buffers, to, vectors);
}

}  // namespace cuda
}  // namespace nv_norms
