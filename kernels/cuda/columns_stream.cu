#include <algorithm>

#include "kernels/cuda/columns_stream.h"
#include "kernels/cuda/launch.cuh"

namespace nv_norms {
namespace cuda {
namespace {

constexpr int64_t kInt = (int64_t{1} << 31) - 1;

// The figures beside these numbers are milliseconds of gradients on one H200, whose L2 cache has
// 50 MB: docs/kernels-columns.md. The chip: what all shared memory holds, 30.7 MB there.

// Smaller units (x and dy of a line's columns of a sample), in chips, are better off where they
// stay on the chip: 4 x 48^3 x 64, float32, 28 MB, 0.159 and there 0.143, bfloat16 0.169 and 0.158;
// 8 x 64^3 x 32, bfloat16, 34 MB, 0.176 and there 0.186.
constexpr double kLeastUnit = 1.0;
// Strips of two lines, where a row has as many: 2 x 128^3 x 64, float32, 1.32 and in strips of one
// line 1.40 (on the chip 1.35); 8 x 64^3 x 128 1.27, 1.31 (1.29), in bfloat16 0.670, 0.682 (0.709).
constexpr int kLine = 8;
constexpr int kTwoLines = 16;
// 1 tile to an item 0.681, 2: 0.669, 4: 0.675, 8: 0.673, 16: 0.688 (2 x 128^3 x 32, float32);
// 8 x 64^3 x 64, bfloat16, 0.349, 0.337, 0.338, 0.340, 0.381.
constexpr int kItemTiles = 4;
// Of a unit, how much is read before the output of the one before begins, in chips but at most a
// part of the unit: the time for blocks to tell each other their sums, while others are behind.
// 2 x 96^3 x 32, bfloat16: 0.26 chips 0.159, 0.5 0.156, 0.8 0.154, 1.6 0.148.
constexpr double kDelay = 1.9;
constexpr double kMostDelay = 0.6;
// In chips, what the L2 cache is to keep until the output. 8 x 64^3 x 128, bfloat16: nothing 0.801,
// 0.5 0.753, 1 0.693, 1.5 0.685.
constexpr double kKept = 1.15;

// The forward pass keeps a part of x on the chip otherwise, and overlaps units where there are more
// than two: 2 x 96^3 x 32, bfloat16, 0.100 there and 0.091 so, float32 to bfloat16 0.156 and 0.143;
// 4 x 128^3 x 32, float32, 0.795 and 0.804; 8 x 64^3 x 64, bfloat16, units of 34 MB, 0.188 and
// 0.232; 1 x 96^3 x 32 0.051 and 0.054. More of a unit is read before the output of the other
// begins than that cut's: 2 x 96^3 x 32, bfloat16, 0.3 chips 0.0965, 0.6 0.0937, 1.4 0.0911.
constexpr int kForwardUnits = 2;
constexpr double kLeastForwardUnit = 1.6;
constexpr double kForwardDelay = 1.4;
constexpr int kForwardItemTiles = 2;

// read: bytes of an item's vector of x and what is beside it; other: bytes of the other tensor.
bool Cut(const ColumnLayout& layout, const Device& device, int x_bytes, int read, int other,
         int tile_vectors, int item_tiles, double delay, double kept, StreamShape* shape) {
  const int64_t row_bytes = layout.channels() * x_bytes;
  const int64_t width = row_bytes / kVectorBytes;
  if (device.capability < 90 || layout.s_stride != 0 || row_bytes % kVectorBytes != 0 ||
      layout.s > kInt || layout.n * width > kInt) {
    return false;
  }
  const double chip = static_cast<double>(device.multiprocessors) * device.shared_bytes;
  if (static_cast<double>(read) * layout.s * std::min<int64_t>(width, kLine) < kLeastUnit * chip) {
    return false;
  }
  // Lines of x and of the other tensor, or whole rows.
  const auto suits = [&](int64_t vectors) {
    return (vectors & (vectors - 1)) == 0 && width % vectors == 0 &&
           vectors * kVectorBytes / x_bytes % layout.depth == 0 && vectors * other >= kVectorBytes;
  };
  int64_t vectors = std::min<int64_t>(width, kTwoLines);
  if (!suits(vectors) && other == kVectorBytes) vectors = kLine;
  if (vectors > width || !suits(vectors)) return false;
  StreamShape out = {};
  out.rows = static_cast<int>(layout.s);
  out.width = static_cast<int>(width);
  out.vectors = static_cast<int>(vectors);
  out.columns = static_cast<int>(vectors * kVectorBytes / x_bytes);
  out.strips = static_cast<int>(width / vectors);
  out.units = static_cast<int>(layout.n) * out.strips;
  out.tile_rows = tile_vectors / out.vectors;
  out.item_rows = item_tiles * out.tile_rows;
  out.items = static_cast<int>(CeilDiv(layout.s, out.item_rows));
  out.blocks = device.multiprocessors;
  if (out.items < out.blocks) return false;
  out.shift = (out.blocks - out.items % out.blocks) % out.blocks;
  const double turn = static_cast<double>(read) * out.vectors * out.item_rows * out.blocks;
  const double unit = static_cast<double>(read) * out.vectors * out.rows;
  out.delay = static_cast<int>(std::min(delay * chip, kMostDelay * unit) / turn);
  out.keep = static_cast<int>(kept * chip / turn);
  out.channels = static_cast<int>(layout.channels());
  out.depth = static_cast<int>(layout.depth);
  out.norm_groups = static_cast<int>(layout.groups);
  out.n_stride = layout.n_stride;
  out.group_stride = layout.group_stride;
  out.depth_stride = layout.depth_stride;
  *shape = out;
  return true;
}

}  // namespace

bool CutStream(const ColumnLayout& layout, const Device& device, int x_bytes, int beside,
               int64_t (*scratch)(int), StreamShape* shape) {
  StreamShape out;
  if (!Cut(layout, device, x_bytes, ItemBytes(beside), beside, kStreamVectors, kItemTiles, kDelay,
           kKept, &out)) {
    return false;
  }
  const int64_t shared =
      int64_t{kStreamSlots} * kStreamVectors * ItemBytes(beside) + scratch(out.columns);
  if (shared > device.shared_bytes) return false;
  *shape = out;
  return true;
}

bool CutForwardStream(const ColumnLayout& layout, const Device& device, int x_bytes, int y_bytes,
                      int tile_vectors, int64_t (*shared)(int), StreamShape* shape) {
  StreamShape out;
  if (!Cut(layout, device, x_bytes, kVectorBytes, kVectorBytes / x_bytes * y_bytes, tile_vectors,
           kForwardItemTiles, kForwardDelay, kKept, &out) ||
      out.units != kForwardUnits || shared(out.columns) > device.shared_bytes) {
    return false;
  }
  const double chip = static_cast<double>(device.multiprocessors) * device.shared_bytes;
  const double unit = static_cast<double>(kVectorBytes) * out.vectors * out.rows;
  if (unit < kLeastForwardUnit * chip) return false;
  // Where a row of float32 is two lines: 2 x 128^3 x 64 0.813 on the chip and 0.823 so.
  if (out.vectors > kLine && y_bytes == 4) return false;
  *shape = out;
  return true;
}

}  // namespace cuda
}  // namespace nv_norms
