// The activation behind a norm (kernels/problem.h): its arithmetic, and which kernels have it
// inside. Behind all others it is a pass of its own: activation.cu.
#ifndef NV_NORMS_KERNELS_CUDA_ACTIVATION_CUH_
#define NV_NORMS_KERNELS_CUDA_ACTIVATION_CUH_

#include <cfloat>
#include <cmath>

#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/launch.cuh"

namespace nv_norms {
namespace cuda {

template <typename Problem>
bool Activated(const Problem& problem) {
  return !problem.activation.none();
}

// Whether there is one and the kernels that keep x on the chip have it inside: those for columns,
// and those for rows whose parameters belong to segments (segments.h).
inline bool ActivatedOnChip(const ForwardProblem& problem) {
  const Geometry& geometry = problem.geometry;
  return Activated(problem) && !problem.in_double() &&
         (problem.y == problem.x || problem.x == DType::kFloat) &&
         (geometry.layout == Layout::kColumns ||
          (geometry.layout == Layout::kRows && !geometry.rows.by_column()));
}

// All kernels for columns have its gradient inside where parameters belong to columns.
inline bool ActivatedInColumns(const BackwardProblem& problem) {
  return Activated(problem) && problem.geometry.layout == Layout::kColumns &&
         problem.geometry.columns.s_stride == 0 && problem.formula == Formula::kCenter;
}
// Those that keep x and dy on the chip have it for these types, those for segments, too.
inline bool ActivatedOnChip(const BackwardProblem& problem) {
  const Geometry& geometry = problem.geometry;
  const bool segments = Activated(problem) && geometry.layout == Layout::kRows &&
                        !geometry.rows.by_column() && problem.formula == Formula::kCenter;
  return (segments || ActivatedInColumns(problem)) && !problem.in_double() &&
         problem.dx == problem.x && (problem.dy == problem.x || MixedGradient(problem));
}

// Over y in place.
Status LaunchActivation(const ForwardProblem& problem, void* y, void* stream);
// Of dy, its gradient by t = xhat * gamma + beta to `to`, which is aligned to 16 bytes.
int64_t ActivationGradientBytes(const BackwardProblem& problem);
Status LaunchActivationGradient(const BackwardProblem& problem, const BackwardBuffers& buffers,
                                void* to, void* stream);

// The problem without its activation.
template <typename Plan>
Plan WithoutActivation(Plan plan) {
  plan.problem.activation = Activation();
  return plan;
}

// The activation's gradient to `dy`, then launch(plan, buffers) of the norm alone.
template <typename Launch>
Status LaunchApart(const BackwardPlan& plan, const BackwardBuffers& buffers, void* dy, void* stream,
                   const Launch& launch) {
  NV_NORMS_RETURN_IF_ERROR(LaunchActivationGradient(plan.problem, buffers, dy, stream));
  BackwardBuffers activated = buffers;
  activated.dy = dy;
  return launch(WithoutActivation(plan), activated);
}

// NaN stays.
__device__ __forceinline__ double AtLeast(double t, double least) { return t < least ? least : t; }
__device__ __forceinline__ float AtLeast(float t, float least) {
#if __CUDA_ARCH__ >= 800
  float out;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(out) : "f"(t), "f"(least));
  return out;
#else
  return t < least ? least : t;
#endif
}

// 1 / (1 + exp(-t))
__device__ __forceinline__ double Sigmoid(double t) { return 1 / (1 + exp(-t)); }
__device__ __forceinline__ float Sigmoid(float t) {
  float out;  // __fdividef(1, t) is 0 for t of 2^126 and more
  asm("rcp.approx.f32 %0, %1;" : "=f"(out) : "f"(1 + __expf(-t)));
  return out;
}

// For kernels that are compiled for one kind each.
enum class Behind { kNothing, kRelu, kSilu };

template <typename A>
struct Activator {
  A slope;
  A least;  // what a t below it counts as: 0 times minus infinity would not be 0
  bool silu;

  NV_NORMS_HOST_DEVICE explicit Activator(const Activation& activation)
      : slope(static_cast<A>(activation.negative_slope)),
        least(slope != 0       ? A(-INFINITY)
              : sizeof(A) == 8 ? A(-DBL_MAX)
                               : A(-FLT_MAX)),
        silu(activation.silu) {}

  template <int N>
  __device__ __forceinline__ void Apply(A (&t)[N]) const {
    if (silu) {
#pragma unroll
      for (int i = 0; i < N; ++i) t[i] *= Sigmoid(t[i]);
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        t[i] = t[i] > 0 ? t[i] : fma(AtLeast(t[i], least), slope, A(0));  // + 0: not -0
      }
    }
  }

  // Multiplies d by the derivative at t.
  template <int N>
  __device__ __forceinline__ void Derive(const A (&t)[N], A (&d)[N]) const {
    if (silu) {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const A sigmoid = Sigmoid(t[i]);
        d[i] *= fma(t[i] * sigmoid, 1 - sigmoid, sigmoid);
      }
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        if (!(t[i] > 0)) d[i] *= slope;
      }
    }
  }
};

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_ACTIVATION_CUH_
