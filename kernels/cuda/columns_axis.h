// How the kernels for layer norms over a middle axis cut a problem: see columns_axis.cuh.
#ifndef NV_NORMS_KERNELS_CUDA_COLUMNS_AXIS_H_
#define NV_NORMS_KERNELS_CUDA_COLUMNS_AXIS_H_

#include <cstdint>

#include "kernels/cuda/norms.h"

namespace nv_norms {
namespace cuda {

struct AxisShape {
  int rows;      // of the axis
  int width;     // vectors of a row
  int strips;    // to a sample; the last one of each may be narrower
  int units;     // strips of all samples
  int lanes;     // threads along a row of a strip: 8 or 16
  int row_step;  // threads along the axis
  int items;     // rows of a thread, at most
  int columns;   // of a strip
  int warps;     // of a block
  int readers;   // threads that add up a column: a power of two
  int pitch;     // floats from a warp's sums of the columns to the next one's, in shared memory
  bool keep;     // the output, in the L2 cache: the next kernel may find it there

  NV_NORMS_HOST_DEVICE int threads() const { return lanes * row_step; }
};

// What a kernel needs of a block.
struct AxisNeeds {
  int vector;         // columns of a thread; 0: there is no kernel
  int slot_bytes;     // of a thread's numbers of a row
  int batch;          // slots of a thread come so many at once
  int threads;        // at most
  int items;          // rows of a thread, at most
  int row_floats;     // of shared memory for every row,
  int sum_floats;     // for every warp's sums of a column,
  int column_floats;  // and for every column
  bool gradient;
};

// Columns of a thread: of 16 bytes of x, or of 8 where rows are no whole vectors of 16; or 0.
int AxisVector(const ColumnLayout& layout, DType x);

AxisShape AxisShapeOf(const Geometry& geometry, const AxisNeeds& needs, const AxisCut& cut);

// How `kernel` cuts the axis, if it suits.
AxisCut CutAxis(const Geometry& geometry, const Device& device, const AxisNeeds& needs,
                const void* kernel);

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_COLUMNS_AXIS_H_
