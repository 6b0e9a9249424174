// Layer norm over a middle axis of few rows: see columns_short.cuh.
#include "kernels/cuda/columns_short.cuh"
#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/resident.cuh"
#include "kernels/cuda/rows.cuh"

namespace nv_norms {
namespace cuda {
namespace {

template <typename X, typename Y, int VEC, int ROWS, int UNITS>
__global__ void __launch_bounds__(kShortThreads)
    ForwardShortKernel(const __grid_constant__ ShortShape shape,
                       const __grid_constant__ ForwardProblem problem,
                       const ForwardBuffers buffers) {
  __shared__ float2 params[ROWS];
  const unsigned begin = blockIdx.x * (UNITS * kShortThreads) + threadIdx.x;
  Bits<float, VEC> bits[UNITS][ROWS];
#pragma unroll
  for (int u = 0; u < UNITS; ++u) {
    const unsigned unit = begin + u * kShortThreads;
    if (unit >= shape.units) break;
    LoadShort<X>(shape, buffers.x, ShortPlace(shape, unit, VEC).first, bits[u]);
  }
  if (threadIdx.x < shape.rows) {
    params[threadIdx.x] = make_float2(ParamOr<float>(problem.param, buffers.gamma, threadIdx.x, 1),
                                      ParamOr<float>(problem.param, buffers.beta, threadIdx.x, 0));
  }
  __syncthreads();
  const float inverse = 1.0f / static_cast<float>(shape.rows);
  const auto epsilon = static_cast<float>(problem.epsilon);
  const int64_t step = static_cast<int64_t>(shape.width.value) * VEC;
#pragma unroll
  for (int u = 0; u < UNITS; ++u) {
    const unsigned unit = begin + u * kShortThreads;
    if (unit >= shape.units) break;
    const ShortPlace place(shape, unit, VEC);
    // Two passes: the second one about what the first one takes for the mean.
    float high[VEC] = {};
    float sum[VEC] = {};
    float squares[VEC] = {};
    if (problem.formula != Formula::kRms) {
      float first[VEC];
      ConvertBits<X>(bits[u][0], first);
#pragma unroll
      for (int r = 1; r < ROWS; ++r) {
        if (r >= shape.rows) break;
        float x[VEC];
        ConvertBits<X>(bits[u][r], x);
#pragma unroll
        for (int v = 0; v < VEC; ++v) high[v] += x[v] - first[v];
      }
#pragma unroll
      for (int v = 0; v < VEC; ++v) high[v] = first[v] + high[v] * inverse;
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      if (r >= shape.rows) break;
      float x[VEC];
      ConvertBits<X>(bits[u][r], x);
#pragma unroll
      for (int v = 0; v < VEC; ++v) {
        const float e = x[v] - high[v];
        sum[v] += e;
        squares[v] += e * e;
      }
    }
    float mean[VEC];
    float rstd[VEC];
    float shift[VEC];
#pragma unroll
    for (int v = 0; v < VEC; ++v) {
      const float low = problem.formula == Formula::kRms ? 0.0f : sum[v] * inverse;
      // Not sum * 0 for RMS: the sum may be infinite.
      float m2 = problem.formula == Formula::kRms ? squares[v] : squares[v] - sum[v] * low;
      m2 = m2 < 0 ? 0.0f : m2;  // keeps NaN
      mean[v] = high[v] + low;
      rstd[v] = ShortInverseRoot(m2 * inverse + epsilon);
      shift[v] = problem.formula == Formula::kScaleOnly ? high[v] * rstd[v] : -low * rstd[v];
    }
    if (buffers.mean != nullptr) StoreAs(static_cast<float*>(buffers.mean) + place.stat, mean);
    if (buffers.rstd != nullptr) StoreAs(static_cast<float*>(buffers.rstd) + place.stat, rstd);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      if (r >= shape.rows) break;
      const float2 param = params[r];
      float y[VEC];
      ConvertBits<X>(bits[u][r], y);
#pragma unroll
      for (int v = 0; v < VEC; ++v) {
        y[v] = ((y[v] - high[v]) * rstd[v] + shift[v]) * param.x + param.y;
      }
      StoreStrip<Y>(problem.y, buffers.y, place.first + r * step, y, shape.keep);
    }
  }
}

}  // namespace

bool ForwardShortFits(const ForwardProblem& problem) {
  return IsShortAxis(problem.geometry) && !problem.in_double();
}

Status LaunchForwardColumnsShort(const ForwardPlan& plan, const ForwardBuffers& buffers, void*,
                                 void* stream, bool* launched) {
  const ForwardProblem& problem = plan.problem;
  *launched = ForwardShortFits(problem) && problem.activation.none();
  if (!*launched) return Status();
  const int vector = ShortVector(problem.geometry.columns.s);
  const bool vectors = VectorsSuitShortAxis(problem.geometry.columns, plan.device) &&
                       VectorAligned(buffers.x, problem.x, vector) &&
                       VectorAligned(buffers.y, problem.y, vector) && AlignedTo(buffers.mean, 16) &&
                       AlignedTo(buffers.rstd, 16);
  return ForwardKernelOf(problem.x, problem.y, [&](auto* x, auto* y) {
    using X = std::remove_pointer_t<decltype(x)>;
    using Y = std::remove_pointer_t<decltype(y)>;
    return WithShortAxis(
        vectors, problem.geometry.columns.s, [&](auto columns, auto rows, auto units) {
          const ShortShape shape = ShortShape::Of(problem.geometry, columns, problem.y);
          return LaunchKernel(
              "normalization over a short axis",
              ForwardShortKernel<X, Y, decltype(columns)::value, decltype(rows)::value,
                                 decltype(units)::value>,
              static_cast<unsigned>(CeilDiv(shape.units, units * int64_t{kShortThreads})),
              kShortThreads, 0, 1, stream, shape, problem, buffers);
        });
  });
}

}  // namespace cuda
}  // namespace nv_norms
