// Layer norm over a middle axis: x is [n, rows, columns], a statistic for each column of a sample,
// gamma and beta for each row.
//
// A unit of work is a strip of a sample: all rows of `lanes` vectors of columns. A block has units
// in turn and waits for no other block. Of its threads `lanes` are along the columns and `row_step`
// along the rows; a thread has the rows row, row + row_step, ... of one vector of columns. It
// copies them asynchronously into slots of shared memory that are its own, and when a slot's output
// is written asks for the next unit's numbers into it. So memory always has something to do, and a
// unit takes two barriers: before and after the warps' sums of its columns are added up.
#ifndef NV_NORMS_KERNELS_CUDA_COLUMNS_AXIS_CUH_
#define NV_NORMS_KERNELS_CUDA_COLUMNS_AXIS_CUH_

#include "kernels/cuda/columns_axis.h"
#include "kernels/cuda/numbers.cuh"

namespace nv_norms {
namespace cuda {

// A thread's place in a strip.
struct AxisPlace {
  int lane;
  int row;
  int count;  // of its rows, one at least

  __device__ __forceinline__ explicit AxisPlace(const AxisShape& shape) {
    lane = threadIdx.x & (shape.lanes - 1);
    row = threadIdx.x / shape.lanes;
    count = (shape.rows - row + shape.row_step - 1) / shape.row_step;
  }
};

// A thread's part of a unit.
struct AxisUnit {
  int64_t first;  // element of x
  int64_t stat;   // of the strip's first column
  int columns;    // of the strip: fewer in the last one of a sample; none beyond the last unit
  int count;      // of the thread's rows: none where it has no columns

  __device__ __forceinline__ AxisUnit(const AxisShape& shape, const AxisPlace& place, int unit) {
    const int vector = shape.columns / shape.lanes;
    const int64_t channels = static_cast<int64_t>(shape.width) * vector;
    const int n = unit / shape.strips;
    const int strip = unit - n * shape.strips;
    const int column = strip * shape.columns + place.lane * vector;
    stat = n * channels + strip * shape.columns;
    first = (static_cast<int64_t>(n) * shape.rows + place.row) * channels + column;
    columns = unit < shape.units
                  ? min(shape.columns, static_cast<int>(channels) - strip * shape.columns)
                  : 0;
    count = unit < shape.units && column < channels ? place.count : 0;
  }
};

// Numbers of neighbouring columns in shared memory.
template <int VEC>
__device__ __forceinline__ void PutColumns(float* to, const float (&values)[VEC]) {
#pragma unroll
  for (int v = 0; v < VEC; v += 4) {
    *reinterpret_cast<float4*>(to + v) =
        make_float4(values[v], values[v + 1], values[v + 2], values[v + 3]);
  }
}

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_COLUMNS_AXIS_CUH_
