// What the row kernels share: how a row lies in the threads' registers, and whose parameter is
// whose.
#ifndef NV_NORMS_KERNELS_CUDA_ROWS_CUH_
#define NV_NORMS_KERNELS_CUDA_ROWS_CUH_

#include <type_traits>

#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/geometry.h"

namespace nv_norms {
namespace cuda {

// How a register kernel cuts a row: `items` numbers to a thread, `threads` threads to a row, of
// which `blocks` blocks (a cluster) hold equal shares.
struct RowTile {
  int items = 1;
  int threads = 1;  // a power of two up to 32: several rows to a block; else the block's threads
  int blocks = 1;
};

// Which parameter belongs to column c of a row: c itself, or one for a run of columns.
struct RowParams {
  bool by_column = true;
  bool by_row = false;  // the same for all columns
  int64_t modulus = 1;
  int64_t row_stride = 0;
  int64_t col_divisor = 1;

  static RowParams Of(const RowLayout& rows) {
    RowParams out;
    out.by_column = rows.by_column();
    out.by_row = rows.by_row();
    out.modulus = rows.modulus;
    out.row_stride = rows.row_stride;
    out.col_divisor = rows.col_divisor;
    return out;
  }
};

// `VEC` consecutive parameters' worth of a row, from column c. Absent parameters are 1 or 0.
template <typename A, int VEC, typename How = Any<A>>
__device__ __forceinline__ void LoadParams(const RowParams& params, DType type, const void* from,
                                           int64_t row, int64_t c, A absent, A (&to)[VEC]) {
  if (from == nullptr) {
#pragma unroll
    for (int v = 0; v < VEC; ++v) to[v] = absent;
  } else if (params.by_column) {
    LoadVector<A, VEC, How>(type, from, c, to);
  } else if (params.by_row) {
    const A value = LoadOne<A, How>(type, from, row % params.modulus * params.row_stride);
#pragma unroll
    for (int v = 0; v < VEC; ++v) to[v] = value;
  } else {
    const int64_t base = row % params.modulus * params.row_stride;
    const uint32_t divisor =
        static_cast<uint32_t>(params.col_divisor);  // rows are shorter than 2^31
    const uint32_t column = static_cast<uint32_t>(c);
    uint32_t run = column / divisor;
    uint32_t next = (run + 1) * divisor;  // may wrap around only where no column reaches it
    A value = LoadOne<A, How>(type, from, base + run);
#pragma unroll
    for (int v = 0; v < VEC; ++v) {
      if (column + v == next && v > 0) {
        ++run;
        next += divisor;
        value = LoadOne<A, How>(type, from, base + run);
      }
      to[v] = value;
    }
  }
}

// Which parameters are a row's own: that of gamma and beta at row % modulus * stride. Rows are
// fewer than 2^31.
struct RowsOwn {
  unsigned modulus;
  int64_t stride;

  static RowsOwn Of(const RowLayout& layout) {
    return {static_cast<unsigned>(layout.modulus), layout.row_stride};
  }
};

struct RowParam {
  float gamma;
  float beta;
};

__device__ __forceinline__ RowParam LoadRowParam(const RowsOwn& own, DType type, const void* gamma,
                                                 const void* beta, int64_t row) {
  const int64_t at = static_cast<unsigned>(row) % own.modulus * own.stride;
  return {ParamOr<float>(type, gamma, at, 1), ParamOr<float>(type, beta, at, 0)};
}

// A row is dealt out to `threads` threads in vectors: item i of thread `rank` starts at this
// column.
template <int VEC>
__device__ __forceinline__ int ColumnOf(int i, int threads, int rank) {
  return (i * threads + rank) * VEC;
}

// This thread's items of a row of `cols` columns that starts at element `base`.
template <typename A, int VEC, int ITEMS, typename How = Any<A>>
__device__ __forceinline__ void LoadRow(DType type, const void* from, int64_t base, int cols,
                                        int threads, int rank, Bits<A, VEC> (&to)[ITEMS]) {
  How::Call(type, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    const T* row = static_cast<const T*>(from) + base;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      const int c = ColumnOf<VEC>(i, threads, rank);
      if (c < cols) LoadBits(row + c, &to[i]);
    }
  });
}

// The loaded items as A; `absent` beyond the row's end.
template <typename A, int VEC, int ITEMS, typename How = Any<A>>
__device__ __forceinline__ void ConvertRow(DType type, const Bits<A, VEC> (&from)[ITEMS], int cols,
                                           int threads, int rank, A absent, A (&to)[ITEMS][VEC]) {
  How::Call(type, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      if (ColumnOf<VEC>(i, threads, rank) < cols) {
        ConvertBits<T>(from[i], to[i]);
      } else {
#pragma unroll
        for (int v = 0; v < VEC; ++v) to[i][v] = absent;
      }
    }
  });
}

// The sum of a thread's numbers of a row or tile, less `first` each, which stands beyond the row's
// end.
template <typename A, int VEC, int ITEMS>
__device__ __forceinline__ A SumFrom(const A (&values)[ITEMS][VEC], A first) {
  A sum = 0;
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
#pragma unroll
    for (int v = 0; v < VEC; ++v) sum += values[i][v] - first;
  }
  return sum;
}

// Adds a thread's numbers less `shift`, and the squares of these.
template <typename A, int VEC, int ITEMS>
__device__ __forceinline__ void AddSquares(const A (&values)[ITEMS][VEC], A shift, int cols,
                                           int threads, int rank, A (&sums)[2]) {
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    if (ColumnOf<VEC>(i, threads, rank) < cols) {
#pragma unroll
      for (int v = 0; v < VEC; ++v) {
        const A e = values[i][v] - shift;
        sums[0] += e;
        sums[1] += e * e;
      }
    }
  }
}

// The types of a kernel's tensors: known when it was compiled, or any.
template <typename A>
struct AnyTypes {
  using X = Any<A>;
  using P = Any<A>;
  using Y = Any<A>;
  using OfX = AnyTypes;  // for kernels that know x alone
};
template <typename T, typename O = T>
struct FixedTypes {
  using X = Fixed<T>;  // x, in the gradient dx
  using P = Fixed<float>;
  using Y = Fixed<O>;  // y, in the gradient dy
  using OfX = FixedTypes<T>;
};

// The types for which FixedTypes are made: y, or dy and dx, of x's type, or x and dx in float32 and
// y or dy in 16 bits.
inline bool UsualTypes(const ForwardProblem& problem) {
  return (problem.x == problem.y || (problem.x == DType::kFloat && SizeOf(problem.y) == 2)) &&
         problem.param == DType::kFloat && problem.x != DType::kDouble;
}
inline bool UsualTypes(const BackwardProblem& problem) {
  return problem.dx == problem.x && (problem.dy == problem.x || MixedGradient(problem)) &&
         problem.param == DType::kFloat && !problem.in_double();
}
inline DType OtherType(const ForwardProblem& problem) { return problem.y; }
inline DType OtherType(const BackwardProblem& problem) { return problem.dy; }

// Vectors of 4 where every row and the parameters are aligned for them.
inline int VectorFor(const ForwardProblem& problem, const ForwardBuffers& buffers) {
  const RowLayout& rows = problem.geometry.rows;
  const bool fits =
      rows.cols % 4 == 0 && VectorAligned(buffers.x, problem.x, 4) &&
      VectorAligned(buffers.y, problem.y, 4) &&
      ((!rows.by_column() && rows.repeat == 1) || (VectorAligned(buffers.gamma, problem.param, 4) &&
                                                   VectorAligned(buffers.beta, problem.param, 4)));
  return fits ? 4 : 1;
}
inline int VectorFor(const BackwardProblem& problem, const BackwardBuffers& buffers) {
  const RowLayout& rows = problem.geometry.rows;
  const bool fits = rows.cols % 4 == 0 && VectorAligned(buffers.x, problem.x, 4) &&
                    VectorAligned(buffers.dy, problem.dy, 4) &&
                    VectorAligned(buffers.dx, problem.dx, 4) &&
                    VectorAligned(buffers.gamma, problem.param, 4);
  return fits ? 4 : 1;
}

// make(zero, vector), of a number of the type that is computed in and a std::integral_constant of
// the numbers to a vector.
template <typename Make>
auto WithNumbers(bool in_double, int vector, const Make& make) {
  const auto with = [&](auto zero) {
    return vector == 4 ? make(zero, std::integral_constant<int, 4>())
                       : make(zero, std::integral_constant<int, 1>());
  };
  return in_double ? with(0.0) : with(0.0f);
}

__device__ __forceinline__ float InverseRoot(float x) { return 1.0f / sqrtf(x); }
__device__ __forceinline__ double InverseRoot(double x) { return 1.0 / sqrt(x); }

// The same to one unit in the last place, without division: one step of Newton's.
__device__ __forceinline__ float ShortInverseRoot(float x) {
  const float root = rsqrtf(x);
  const float better = root * (1.5f - 0.5f * x * root * root);
  return x > 1e-30f && x < 1e30f ? better : 1.0f / sqrtf(x);
}

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_ROWS_CUH_
