// What the register kernels of the row gradients share.
#ifndef NV_NORMS_KERNELS_CUDA_GRADIENT_ROWS_CUH_
#define NV_NORMS_KERNELS_CUDA_GRADIENT_ROWS_CUH_

#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/rows.cuh"

namespace nv_norms {
namespace cuda {

struct GradientRowArguments {
  DType dy;
  DType x;
  DType param;
  DType dx;
  DType dparam;
  DType stat;
  Formula formula;
  int64_t rows;
  int cols;
  BackwardBuffers buffers;
  void* dgamma;  // partial sums [partials, cols], where wanted
  void* dbeta;

  static GradientRowArguments Of(const BackwardProblem& problem, const BackwardBuffers& buffers) {
    GradientRowArguments out = {};
    out.dy = problem.dy;
    out.x = problem.x;
    out.param = problem.param;
    out.dx = problem.dx;
    out.dparam = problem.dparam;
    out.stat = problem.stat();
    out.formula = problem.formula;
    out.rows = problem.geometry.rows.rows;
    out.cols = static_cast<int>(problem.geometry.rows.cols);
    out.buffers = buffers;
    return out;
  }
};

// x - mean and dy of one row, in a thread's registers.
template <typename A, int VEC, int ITEMS, typename Types = AnyTypes<A>>
struct GradientRow {
  A e[ITEMS][VEC];
  A dy[ITEMS][VEC];

  __device__ __forceinline__ void Load(const GradientRowArguments& args, int64_t base, int cols,
                                       int threads, int rank, A mean) {
    Bits<A, VEC> x_bits[ITEMS];
    Bits<A, VEC> dy_bits[ITEMS];
    LoadRow<A, VEC, ITEMS, typename Types::X>(args.x, args.buffers.x, base, cols, threads, rank,
                                              x_bits);
    LoadRow<A, VEC, ITEMS, typename Types::Y>(args.dy, args.buffers.dy, base, cols, threads, rank,
                                              dy_bits);
    ConvertRow<A, VEC, ITEMS, typename Types::X>(args.x, x_bits, cols, threads, rank, mean, e);
    ConvertRow<A, VEC, ITEMS, typename Types::Y>(args.dy, dy_bits, cols, threads, rank, A(0), dy);
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
#pragma unroll
      for (int v = 0; v < VEC; ++v) e[i][v] -= mean;
    }
  }
};

template <typename A, int VEC, int ITEMS, typename Types = AnyTypes<A>>
__device__ __forceinline__ void LoadGamma(const GradientRowArguments& args, int64_t column,
                                          int cols, int threads, int rank, A (&gamma)[ITEMS][VEC]) {
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    const int c = ColumnOf<VEC>(i, threads, rank);
    if (c < cols) {
      LoadParams<A, VEC, typename Types::P>({}, args.param, args.buffers.gamma, 0, column + c, 1,
                                            gamma[i]);
    } else {
#pragma unroll
      for (int v = 0; v < VEC; ++v) gamma[i][v] = 0;
    }
  }
}

// Sums of e, w and w * e.
template <typename A, int VEC, int ITEMS, typename Types>
__device__ __forceinline__ void AddSums(const GradientRow<A, VEC, ITEMS, Types>& row,
                                        const A (&gamma)[ITEMS][VEC], A (&sums)[3]) {
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
#pragma unroll
    for (int v = 0; v < VEC; ++v) {
      const A w = row.dy[i][v] * gamma[i][v];
      sums[0] += row.e[i][v];
      sums[1] += w;
      sums[2] += w * row.e[i][v];
    }
  }
}

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_GRADIENT_ROWS_CUH_
