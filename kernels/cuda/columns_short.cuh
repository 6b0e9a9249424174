// Layer norm over a short middle axis: x is [n, rows, columns], a statistic for each column of a
// sample, gamma and beta for each row. A thread has all rows of its columns in registers: it reads
// once, waits for no other thread, and neighbouring threads read neighbouring columns.
#ifndef NV_NORMS_KERNELS_CUDA_COLUMNS_SHORT_CUH_
#define NV_NORMS_KERNELS_CUDA_COLUMNS_SHORT_CUH_

#include "kernels/cuda/divisor.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/resident.h"

namespace nv_norms {
namespace cuda {

constexpr int kShortRows = 32;  // at most
constexpr int kShortThreads = 128;

// Some neighbouring columns, where their number and alignment allow it, are a unit.
struct ShortShape {
  int rows;
  unsigned units;
  Divisor width;  // units of a row
  bool keep;      // the output, in the L2 cache: the next kernel may find it there

  static ShortShape Of(const Geometry& geometry, int vector, DType out) {
    const ColumnLayout& layout = geometry.columns;
    ShortShape shape;
    shape.rows = static_cast<int>(layout.s);
    shape.units = static_cast<unsigned>(layout.n * layout.channels() / vector);
    shape.width = Divisor::Of(layout.channels() / vector);
    shape.keep = geometry.elements * SizeOf(out) <= kSmallOutput;
    return shape;
  }
};

inline bool IsShortAxis(const Geometry& geometry) {
  const ColumnLayout& layout = geometry.columns;
  return layout.s_stride != 0 && layout.s <= kShortRows &&
         geometry.elements / layout.s < int64_t{1} << 30;
}

// Columns of a unit, where vectors suit: of more rows fewer, as all of them are in registers.
constexpr int ShortVector(int64_t rows) { return rows <= 16 ? 4 : 2; }

// Whether vectors leave a block to every multiprocessor at least.
inline bool VectorsSuitShortAxis(const ColumnLayout& layout, const Device& device) {
  const int vector = ShortVector(layout.s);
  return layout.channels() % vector == 0 &&
         layout.n * layout.channels() >= int64_t{vector} * kShortThreads * device.multiprocessors;
}

// make(vector, rows, units of a thread), integral constants: few rows of a single column each would
// leave a thread with few bytes under way.
template <typename Make>
auto WithShortAxis(bool vectors, int64_t rows, const Make& make) {
  const auto with = [&](auto most) {
    constexpr int kRows = decltype(most)::value;
    using One = std::integral_constant<int, 1>;
    using Vector = std::integral_constant<int, ShortVector(kRows)>;
    using Units = std::integral_constant<int, kRows == 4 ? 4 : 1>;
    return vectors ? make(Vector(), most, One()) : make(One(), most, Units());
  };
  if (rows <= 4) return with(std::integral_constant<int, 4>());
  if (rows <= 8) return with(std::integral_constant<int, 8>());
  if (rows <= 16) return with(std::integral_constant<int, 16>());
  return with(std::integral_constant<int, kShortRows>());
}

// Where a unit's numbers are.
struct ShortPlace {
  int64_t stat;   // of its first column
  int64_t first;  // element of x

  __device__ __forceinline__ ShortPlace(const ShortShape& shape, unsigned unit, int vector) {
    const int64_t n = shape.width.Quotient(unit);
    stat = static_cast<int64_t>(unit) * vector;
    first = stat + n * (shape.rows - 1) * shape.width.value * vector;
  }
};

// The rows of a unit, as they are in memory.
template <typename T, int VEC, int ROWS>
__device__ __forceinline__ void LoadShort(const ShortShape& shape, const void* from, int64_t first,
                                          Bits<float, VEC> (&to)[ROWS]) {
  const T* at = static_cast<const T*>(from) + first;
  const int64_t step = static_cast<int64_t>(shape.width.value) * VEC;
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    if (r < shape.rows) LoadBits(at + r * step, &to[r]);
  }
}

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_COLUMNS_SHORT_CUH_
