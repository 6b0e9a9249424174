#include <algorithm>

#include "kernels/cuda/columns_axis.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/occupancy.h"
#include "kernels/cuda/resident.h"

namespace nv_norms {
namespace cuda {
namespace {

// The figures beside these numbers are parts of a copy's speed on one H200:
// docs/kernels-columns.md.
constexpr int64_t kMostUnits = int64_t{1} << 30;

// Vectors of a strip, by the rows of the axis: of more rows a block has too much of a
// multiprocessor. Forward, 8 and 16 of them: float32 16 x 256 x 8192 0.88 and 0.95, 8 x 512 x 4096
// 0.86 and 0.80; float16 32 x 128 x 4096 0.77 and 0.88. 32: float32 64 x 96 x 3136 0.92 for 0.93,
// float16 0.76 for 0.87.
constexpr int64_t kTwoLinesUpTo = 384;
// The gradient: float32 64 x 96 x 3136, 8, 16 and 32 vectors, 0.85, 0.86 and 0.78; 16 x 256 x 8192,
// 8 and 16, 0.89 and 0.84, float16 0.80 and 0.72.
constexpr int64_t kGradientTwoLinesUpTo = 128;
// Rows of a thread: threads with few of them have little to do between barriers, those with many
// are few. Forward, 8 and 16: float32 16 x 256 x 8192 0.90 and 0.95, float16 64 x 96 x 3136 0.75
// and 0.84. The gradient, 4, 8 and 12: float32 16 x 256 x 8192 0.74, 0.89 and 0.87, float16 8 x
// 512 x 4096 -, 0.65 and 0.65. Powers of two of threads along the axis are the best of several
// nearby: bfloat16 64 x 96 x 3136 0.88 with 8, 0.80 with 6.
constexpr int kRowsOfThread = 16;
constexpr int kGradientRowsOfThread = 8;

struct Threads {
  int64_t lanes;
  int64_t row_step;
};

// `few`: there is no more than a unit to a multiprocessor; then threads have half as many rows, and
// in the gradient strips are a line. float32 8 x 64 x 1024, forward 0.66 -> 0.71, the gradient 0.63
// -> 0.69.
Threads ForwardThreads(int64_t rows, const AxisNeeds& needs, bool few) {
  Threads out;
  out.lanes = rows <= kTwoLinesUpTo ? 16 : 8;
  out.row_step = PowerOfTwo(CeilDiv(rows, few ? kRowsOfThread / 2 : kRowsOfThread));
  while (out.lanes * out.row_step > needs.threads) out.row_step /= 2;
  return out;
}

Threads GradientThreads(int64_t rows, const AxisNeeds& needs, bool few) {
  Threads out;
  out.lanes = !few && rows <= kGradientTwoLinesUpTo ? 16 : 8;
  const int64_t least = CeilDiv(rows, few ? kGradientRowsOfThread / 2 : kGradientRowsOfThread);
  // A multiple of some power of two. As many as there are columns to a vector, at least: then
  // there are as many threads as columns.
  const int64_t step = std::min<int64_t>(4 * needs.vector, PowerOfTwo(least));
  out.row_step = std::max<int64_t>(CeilDiv(least, step) * step, needs.vector);
  out.row_step = std::min(out.row_step, needs.threads / out.lanes);
  return out;
}

int64_t SharedBytes(const AxisShape& shape, const AxisNeeds& needs) {
  const int64_t slots = CeilDiv(shape.items, needs.batch) * needs.batch * shape.threads();
  const int64_t sums = int64_t{shape.warps} * (int64_t{needs.sum_floats} * shape.pitch + 1);
  const int64_t floats = CeilDiv(shape.rows, 4) * 4 * needs.row_floats + sums +
                         int64_t{needs.column_floats} * shape.columns;
  return slots * needs.slot_bytes + Align16(4 * floats);
}

}  // namespace

int AxisVector(const ColumnLayout& layout, DType x) {
  for (int vector = static_cast<int>(16 / SizeOf(x)); vector >= 4; vector /= 2) {
    if (layout.channels() % vector == 0) return vector;
  }
  return 0;
}

AxisShape AxisShapeOf(const Geometry& geometry, const AxisNeeds& needs, const AxisCut& cut) {
  const ColumnLayout& layout = geometry.columns;
  AxisShape out = {};
  out.rows = static_cast<int>(layout.s);
  out.width = static_cast<int>(layout.channels() / needs.vector);
  out.strips = static_cast<int>(CeilDiv(out.width, cut.lanes));
  out.units = static_cast<int>(layout.n * out.strips);
  out.lanes = cut.lanes;
  out.row_step = cut.row_step;
  out.items = static_cast<int>(CeilDiv(out.rows, cut.row_step));
  out.columns = cut.lanes * needs.vector;
  out.warps = out.threads() / 32;
  out.readers = 1;
  while (out.readers < std::min(8, out.warps) && 2 * out.readers * out.columns <= out.threads()) {
    out.readers *= 2;
  }
  // Readers of neighbouring columns look at different banks.
  out.pitch = out.columns + (out.readers == 1 ? 0 : 32 / out.readers);
  const int64_t bytes_of_column = needs.slot_bytes / needs.vector;
  out.keep = geometry.elements * bytes_of_column <= kSmallOutput;
  return out;
}

AxisCut CutAxis(const Geometry& geometry, const Device& device, const AxisNeeds& needs,
                const void* kernel) {
  const ColumnLayout& layout = geometry.columns;
  if (layout.s_stride == 0 || device.capability < 80 || needs.vector == 0 ||
      geometry.elements / layout.s > kMostUnits) {
    return AxisCut();
  }
  const int64_t rows = layout.s;
  const int64_t width = layout.channels() / needs.vector;
  const bool few = layout.n * CeilDiv(width, 16) <= device.multiprocessors;
  Threads threads =
      needs.gradient ? GradientThreads(rows, needs, few) : ForwardThreads(rows, needs, few);
  while (threads.lanes > 8 && width <= threads.lanes / 2) threads.lanes /= 2;
  threads.row_step = std::max(threads.row_step, 32 / threads.lanes);  // whole warps
  if (CeilDiv(rows, threads.row_step) > needs.items) return AxisCut();
  AxisCut out;
  out.lanes = static_cast<int>(threads.lanes);
  out.row_step = static_cast<int>(threads.row_step);
  const AxisShape shape = AxisShapeOf(geometry, needs, out);
  out.shared = SharedBytes(shape, needs);
  if (out.shared > device.shared_bytes) return AxisCut();
  const int resident = ResidentBlocks(kernel, shape.threads(), out.shared);
  if (resident < 1) return AxisCut();
  out.blocks =
      static_cast<int>(std::min<int64_t>(shape.units, int64_t{resident} * device.multiprocessors));
  return out;
}

}  // namespace cuda
}  // namespace nv_norms
