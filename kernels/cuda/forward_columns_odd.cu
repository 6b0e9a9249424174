// Layer norm over a middle axis whose rows are no whole vectors: see columns_odd.cuh.
#include "kernels/cuda/columns_odd.cuh"
#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/resident.cuh"

namespace nv_norms {
namespace cuda {
namespace {

// y = ((x - high) * rstd + shift) * gamma + beta
struct Line {
  float high;
  float rstd;
  float shift;
};

template <typename X, typename Y, int ROWS>
__global__ void __launch_bounds__(kOddThreads, ROWS == kOddItems ? 1 : 2)
    ForwardOddKernel(const __grid_constant__ OddShape shape,
                     const __grid_constant__ ForwardProblem problem, const ForwardBuffers buffers) {
  __shared__ float2 params[kOddParts * ROWS];
  __shared__ float pivots[kOddEntries];  // what a part's sums are about
  __shared__ float means[kOddEntries];   // its mean, about that
  __shared__ float squares[kOddEntries];
  __shared__ Line lines[32];
  const OddPlace place(shape);
  const unsigned begin = blockIdx.x * shape.lanes;
  const unsigned column = begin + place.lane;
  const int count = column < shape.columns ? place.count : 0;
  const int64_t width = shape.width.value;
  const int64_t first =
      column + (shape.width.Quotient(column) * int64_t{shape.rows - 1} + place.part) * width;
  const int64_t step = shape.parts * width;
  X x[ROWS];
  LoadOdd(buffers.x, first, step, count, x);
  for (int r = threadIdx.x; r < shape.rows; r += shape.threads()) {
    params[r] = make_float2(ParamOr<float>(problem.param, buffers.gamma, r, 1),
                            ParamOr<float>(problem.param, buffers.beta, r, 0));
  }
  const bool about_mean = problem.formula != Formula::kRms;
  {
    // Two passes: the second one about what the first one takes for the mean of the thread's rows.
    const float inverse = 1.0f / static_cast<float>(place.count);
    float pivot = 0;
    if (about_mean && count != 0) {
      const float one = To<float>::Of(x[0]);
#pragma unroll
      for (int j = 1; j < ROWS; ++j) {
        if (j >= count) break;
        pivot += To<float>::Of(x[j]) - one;
      }
      pivot = one + pivot * inverse;
    }
    float sum = 0;
    float square = 0;
#pragma unroll
    for (int j = 0; j < ROWS; ++j) {
      if (j >= count) break;
      const float e = To<float>::Of(x[j]) - pivot;
      sum += e;
      square += e * e;
    }
    if (!about_mean) sum = 0;  // it may be infinite
    const int to = OddEntry(shape, place.part, place.lane);
    pivots[to] = pivot;
    means[to] = sum * inverse;
    squares[to] = square - sum * (sum * inverse);
  }
  __syncthreads();
  {
    const int at = OddEntry(shape, place.entry_part, place.entry_lane);
    const double reference = pivots[OddEntry(shape, 0, place.entry_lane)];
    const double rows = (shape.rows - place.entry_part + shape.parts - 1) / shape.parts;
    const double about = (pivots[at] - reference) + means[at];
    double sums[2] = {rows * about, squares[at] + rows * about * about};
    WarpSum(sums, shape.parts);
    if (place.entry_part == 0) {
      const double inverse = 1.0 / shape.rows;
      const double low = sums[0] * inverse;
      const double m2 = sums[1] - sums[0] * low;
      const double mean = reference + low;
      const auto rstd = static_cast<float>(rsqrt((m2 < 0 ? 0.0 : m2) * inverse + problem.epsilon));
      const auto high = static_cast<float>(mean);
      const bool center = problem.formula == Formula::kCenter;
      lines[place.entry_lane] = {center ? high : 0.0f, rstd,
                                 center ? -static_cast<float>(mean - high) * rstd : 0.0f};
      const unsigned stat = begin + place.entry_lane;
      if (stat < shape.columns) {
        if (buffers.mean != nullptr) static_cast<float*>(buffers.mean)[stat] = high;
        if (buffers.rstd != nullptr) static_cast<float*>(buffers.rstd)[stat] = rstd;
      }
    }
  }
  __syncthreads();
  const Line line = lines[place.lane];
  int64_t to = first;
#pragma unroll
  for (int j = 0; j < ROWS; ++j) {
    if (j >= count) break;
    const float2 param = params[place.part + j * shape.parts];
    const float y[1] = {((To<float>::Of(x[j]) - line.high) * line.rstd + line.shift) * param.x +
                        param.y};
    StoreStrip<Y>(problem.y, buffers.y, to, y, shape.keep);
    to += step;
  }
}

bool Fits(const ForwardProblem& problem) {
  return IsOddAxis(problem.geometry) && !problem.in_double() && problem.activation.none();
}

}  // namespace

Status LaunchForwardColumnsOdd(const ForwardPlan& plan, const ForwardBuffers& buffers, void*,
                               void* stream, bool* launched) {
  const ForwardProblem& problem = plan.problem;
  *launched = Fits(problem);
  if (!*launched) return Status();
  return ForwardKernelOf(problem.x, problem.y, [&](auto* x, auto* y) {
    using X = std::remove_pointer_t<decltype(x)>;
    using Y = std::remove_pointer_t<decltype(y)>;
    return WithOddAxis(problem.geometry.columns.s, [&](auto rows) {
      const OddShape shape = OddShape::Of(problem.geometry, rows, problem.y);
      return LaunchKernel(
          "normalization over an odd axis", ForwardOddKernel<X, Y, decltype(rows)::value>,
          static_cast<unsigned>(CeilDiv(shape.columns, shape.lanes)),
          static_cast<unsigned>(shape.threads()), 0, 1, stream, shape, problem, buffers);
    });
  });
}

}  // namespace cuda
}  // namespace nv_norms
