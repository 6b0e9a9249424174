#include "kernels/cpu/activation.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/convert.h"
#include "kernels/cpu/odometer.h"

namespace nv_norms {
namespace cpu {
namespace {

// value where t is positive, else slope * value. As a sum of the two, one of which is 0: of a
// choice between a number and a product a compiler makes a jump, which random signs make slow.
template <typename A>
A Leak(A t, A value, A slope) {
  const A above = t > 0 ? value : A(0);
  const A below = t > 0 ? A(0) : value;
  return above + slope * below;
}

template <typename A>
A Sigmoid(A t) {
  return 1 / (1 + std::exp(-t));
}

template <typename A>
void ActivateRun(const A* norm, int64_t count, const Activation& activation, A* y) {
  const A slope = static_cast<A>(activation.negative_slope);
  if (activation.silu) {
    for (int64_t i = 0; i < count; ++i) y[i] = norm[i] * Sigmoid(norm[i]);
  } else if (slope == 0) {  // 0 * -inf is NaN
    for (int64_t i = 0; i < count; ++i) y[i] = norm[i] <= 0 ? A(0) : norm[i];
  } else {
    for (int64_t i = 0; i < count; ++i) y[i] = Leak(norm[i], norm[i], slope);
  }
}

// All statistics, or all parameters, and `absent` for those that there are not.
template <typename A>
class Operand {
 public:
  Operand(DType type, const void* data, int64_t count, A absent) : given_(type, data, count) {
    if (data == nullptr) absent_.assign(count, absent);
  }
  const A* At(int64_t index) const {
    return (absent_.empty() ? given_.data() : absent_.data()) + index;
  }

 private:
  Params<A> given_;
  std::vector<A> absent_;
};

template <typename A>
struct Operands {
  Operands(const BackwardProblem& problem, const BackwardBuffers& buffers)
      : mean(problem.stat(), problem.formula == Formula::kCenter ? buffers.mean : nullptr,
             problem.geometry.statistics, 0),
        rstd(problem.stat(), buffers.rstd, problem.geometry.statistics, 1),
        gamma(problem.param, buffers.gamma, problem.geometry.params, 1),
        beta(problem.param, buffers.beta, problem.geometry.params, 0) {}
  Operand<A> mean;
  Operand<A> rstd;
  Operand<A> gamma;
  Operand<A> beta;
};

// A run along the last axis, that begins at `place`.
template <bool by_stat, bool by_param, bool silu, typename A>
void PassRun(const Operands<A>& of, const Place& place, A slope, const A* x, const A* dy,
             int64_t count, A* out) {
  const A* mean = of.mean.At(place.stat);
  const A* rstd = of.rstd.At(place.stat);
  const A* gamma = of.gamma.At(place.param);
  const A* beta = of.beta.At(place.param);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t stat = by_stat ? i : 0;
    const int64_t param = by_param ? i : 0;
    const A t = (x[i] - mean[stat]) * rstd[stat] * gamma[param] + beta[param];
    if constexpr (silu) {
      const A sigmoid = Sigmoid(t);
      out[i] = dy[i] * (sigmoid + t * sigmoid * (1 - sigmoid));
    } else {
      out[i] = Leak(t, dy[i], slope);
    }
  }
}

template <typename A>
using PassRunAs = void (*)(const Operands<A>&, const Place&, A, const A*, const A*, int64_t, A*);

// The last of the axes that have statistics of their own, or parameters, has steps of 1 in them.
template <bool silu, typename A>
PassRunAs<A> PassRunOf(const Axis& last) {
  if (last.stat_stride != 0) {
    return last.param_stride != 0 ? PassRun<true, true, silu, A> : PassRun<true, false, silu, A>;
  }
  return last.param_stride != 0 ? PassRun<false, true, silu, A> : PassRun<false, false, silu, A>;
}

}  // namespace

template <typename A>
void Activate(const ForwardProblem& problem, const A* norm, void* y,
              const ParallelFor& parallel_for) {
  const int64_t elements = problem.geometry.elements;
  const int64_t blocks = (elements + kConvertedElements - 1) / kConvertedElements;
  const Writer<A> writer(problem.y, y);
  parallel_for(blocks, kConvertedElements, [&](int64_t begin, int64_t end) {
    Writer<A> to = writer;
    for (int64_t block = begin; block < end; ++block) {
      const int64_t offset = block * kConvertedElements;
      const int64_t count = std::min(kConvertedElements, elements - offset);
      ActivateRun(norm + offset, count, problem.activation, to.Room(offset, count));
      to.Commit(offset, count);
    }
  });
}

template <typename A>
void PassGradient(const BackwardProblem& problem, const BackwardBuffers& buffers, A* out,
                  const ParallelFor& parallel_for) {
  const Geometry& geometry = problem.geometry;
  const Axis last = geometry.rank > 0 ? geometry.axes[geometry.rank - 1] : Axis();
  const PassRunAs<A> pass =
      problem.activation.silu ? PassRunOf<true, A>(last) : PassRunOf<false, A>(last);
  const A slope = static_cast<A>(problem.activation.negative_slope);
  const Operands<A> of(problem, buffers);
  const Reader<A> x_reader(problem.x, buffers.x);
  const Reader<A> dy_reader(problem.dy, buffers.dy);
  parallel_for(geometry.elements / last.size, last.size, [&](int64_t begin, int64_t end) {
    Reader<A> x_of = x_reader;
    Reader<A> dy_of = dy_reader;
    Odometer runs(geometry, [&](const Axis& axis) { return axis.stride >= last.size; });
    runs.Seek(Place(), begin);
    int64_t at = 0;  // in the run
    for (int64_t offset = begin * last.size; offset < end * last.size;) {
      const int64_t count = std::min(kConvertedElements, end * last.size - offset);
      const A* x = x_of.Get(offset, count);
      const A* dy = dy_of.Get(offset, count);
      for (int64_t done = 0; done < count;) {
        Place place = runs.place();
        if (last.stat_stride != 0) place.stat += at;
        if (last.param_stride != 0) place.param += at;
        const int64_t rest = std::min(last.size - at, count - done);
        pass(of, place, slope, x + done, dy + done, rest, out + offset + done);
        done += rest;
        at += rest;
        if (at == last.size) {
          at = 0;
          runs.Next();
        }
      }
      offset += count;
    }
  });
}

template void Activate<float>(const ForwardProblem&, const float*, void*, const ParallelFor&);
template void Activate<double>(const ForwardProblem&, const double*, void*, const ParallelFor&);
template void PassGradient<float>(const BackwardProblem&, const BackwardBuffers&, float*,
                                  const ParallelFor&);
template void PassGradient<double>(const BackwardProblem&, const BackwardBuffers&, double*,
                                   const ParallelFor&);

}  // namespace cpu
}  // namespace nv_norms
