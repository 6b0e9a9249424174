// Rows of samples that have parameters of their own (RowLayout::repeat): each sample is a problem
// of rows that share them.
#ifndef NV_NORMS_KERNELS_SAMPLE_ROWS_H_
#define NV_NORMS_KERNELS_SAMPLE_ROWS_H_

#include "kernels/problem.h"

namespace nv_norms {

inline int64_t SamplesOf(const RowLayout& layout) { return layout.rows / layout.repeat; }

// A sample's problem, of a ForwardProblem or a BackwardProblem.
template <typename Problem>
Problem OneSample(const Problem& problem) {
  const RowLayout& layout = problem.geometry.rows;
  Problem out = problem;
  // Two axes and one of them make no errors.
  (void)LayerNormGeometry({layout.repeat, layout.cols}, {1}, /*per_sample=*/false, &out.geometry);
  return out;
}

namespace sample_rows_internal {

inline const void* From(const void* buffer, DType type, int64_t elements) {
  return buffer == nullptr ? nullptr : static_cast<const char*>(buffer) + elements * SizeOf(type);
}
inline void* From(void* buffer, DType type, int64_t elements) {
  return buffer == nullptr ? nullptr : static_cast<char*>(buffer) + elements * SizeOf(type);
}

}  // namespace sample_rows_internal

// A sample's part of the buffers; what is not there stays so.
inline ForwardBuffers OneSample(const ForwardProblem& problem, const ForwardBuffers& buffers,
                                int64_t sample) {
  using sample_rows_internal::From;
  const RowLayout& layout = problem.geometry.rows;
  const int64_t row = sample * layout.repeat;
  ForwardBuffers out;
  out.x = From(buffers.x, problem.x, row * layout.cols);
  out.gamma = From(buffers.gamma, problem.param, sample * layout.cols);
  out.beta = From(buffers.beta, problem.param, sample * layout.cols);
  out.y = From(buffers.y, problem.y, row * layout.cols);
  out.mean = From(buffers.mean, problem.stat(), row);
  out.rstd = From(buffers.rstd, problem.stat(), row);
  return out;
}

inline BackwardBuffers OneSample(const BackwardProblem& problem, const BackwardBuffers& buffers,
                                 int64_t sample) {
  using sample_rows_internal::From;
  const RowLayout& layout = problem.geometry.rows;
  const int64_t row = sample * layout.repeat;
  BackwardBuffers out;
  out.dy = From(buffers.dy, problem.dy, row * layout.cols);
  out.x = From(buffers.x, problem.x, row * layout.cols);
  out.gamma = From(buffers.gamma, problem.param, sample * layout.cols);
  out.mean = From(buffers.mean, problem.stat(), row);
  out.rstd = From(buffers.rstd, problem.stat(), row);
  out.dx = From(buffers.dx, problem.dx, row * layout.cols);
  out.dgamma = From(buffers.dgamma, problem.dparam, sample * layout.cols);
  out.dbeta = From(buffers.dbeta, problem.dparam, sample * layout.cols);
  return out;
}

}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_SAMPLE_ROWS_H_
