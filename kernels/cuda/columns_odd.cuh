// Layer norm over a middle axis whose rows are no whole vectors: x is [n, rows, columns], a
// statistic for each column of a sample, gamma and beta for each row. A block has `lanes`
// neighbouring columns, of one sample or of two, and `parts` threads to each; a thread has the rows
// part, part + parts, ... in registers. Between the reading and the writing the block's threads
// exchange their sums: a thread puts those of its column, and adds up one entry of another's.
#ifndef NV_NORMS_KERNELS_CUDA_COLUMNS_ODD_CUH_
#define NV_NORMS_KERNELS_CUDA_COLUMNS_ODD_CUH_

#include "kernels/cuda/divisor.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/resident.h"

namespace nv_norms {
namespace cuda {

constexpr int kOddThreads = 512;  // of a block, at most
constexpr int kOddParts = 32;     // to a column: lanes of a warp add them up
constexpr int kOddItems = 24;  // rows of a thread: in the gradient their sums are in registers, too

struct OddShape {
  int rows;
  int lanes;  // a power of two, as are the parts
  int parts;
  unsigned columns;  // of all samples
  Divisor width;     // columns of a sample
  bool keep;         // the output, in the L2 cache: the next kernel may find it there

  NV_NORMS_HOST_DEVICE int threads() const { return lanes * parts; }
  // Threads of a warp read 64 bytes at least.
  static OddShape Of(const Geometry& geometry, int rows_of_thread, DType out) {
    const ColumnLayout& layout = geometry.columns;
    OddShape shape;
    shape.rows = static_cast<int>(layout.s);
    shape.parts = PowerOfTwo(CeilDiv(layout.s, rows_of_thread));
    shape.lanes = std::min(32, kOddThreads / shape.parts);
    shape.columns = static_cast<unsigned>(layout.n * layout.channels());
    shape.width = Divisor::Of(layout.channels());
    shape.keep = geometry.elements * SizeOf(out) <= kSmallOutput;
    return shape;
  }
};

inline bool IsOddAxis(const Geometry& geometry) {
  const ColumnLayout& layout = geometry.columns;
  return layout.s_stride != 0 && layout.s <= int64_t{kOddParts} * kOddItems &&
         geometry.elements / layout.s < int64_t{1} << 30;
}

// make(rows of a thread), an integral constant: as many as leave 32 parts at most.
template <typename Make>
auto WithOddAxis(int64_t rows, const Make& make) {
  if (rows <= 16 * kOddParts) return make(std::integral_constant<int, 16>());
  return make(std::integral_constant<int, kOddItems>());
}

// A thread's place.
struct OddPlace {
  int lane;
  int part;
  int count;  // of its rows, one at least
  // Its entry of the sums that the threads have put: a column's are in lanes beside each other.
  int entry_lane;
  int entry_part;

  __device__ __forceinline__ explicit OddPlace(const OddShape& shape) {
    lane = threadIdx.x & (shape.lanes - 1);
    part = threadIdx.x / shape.lanes;
    count = (shape.rows - part + shape.parts - 1) / shape.parts;
    entry_part = threadIdx.x & (shape.parts - 1);
    entry_lane = threadIdx.x / shape.parts;
  }
};

// Where the sums of a part's column are: threads of a warp look at different banks when they add
// up.
__device__ __forceinline__ int OddEntry(const OddShape& shape, int part, int lane) {
  return part * (shape.lanes + 32 / shape.parts) + lane;
}
constexpr int kOddEntries = kOddThreads + 32;

// The thread's rows of a column, as they are in memory.
template <typename T, int ROWS>
__device__ __forceinline__ void LoadOdd(const void* from, int64_t first, int64_t step, int count,
                                        T (&to)[ROWS]) {
  const T* at = static_cast<const T*>(from) + first;
#pragma unroll
  for (int j = 0; j < ROWS; ++j) {
    if (j >= count) break;
    to[j] = *at;
    at += step;
  }
}

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_COLUMNS_ODD_CUH_
