#include <algorithm>
#include <numeric>

#include "kernels/cuda/columns_strips.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/occupancy.h"

namespace nv_norms {
namespace cuda {
namespace {

// The figures that are given beside these numbers are from one H200: benchmarks/results,
// docs/kernels-columns.md.
constexpr int kMaxVectors = 256;
// Sums of a group that every block may read. Times as fast as in two hops: 8448 of 1 x 64^3 x 64,
// forward, 1.07 to 1.13, of 1 x 48^3 x 64, the gradient of float32 beside a dy of bfloat16, 1.08
// to 1.11; 12672 of 1 x 65536 x 96 0.90.
constexpr int kOneHop = 8448;
// Vectors of a strip: below a line of 128 bytes it takes twice the time; two lines are 3 to 10 %
// better than one, except where a unit is then a single block's.
constexpr int kLine = 8;
constexpr int kTwoLines = 16;
// But strips of half a line where a group of blocks would exchange sums of so many columns, over
// all its blocks, that the exchange takes as long as what they read. Forward, gradient, times as
// fast with half lines: bfloat16 1 x 65536 x 64 (132 blocks of 64 columns) 1.27 and 1.33, 1 x
// 32768 x 128 (66) 1.10 and 1.10, 1 x 16384 x 192 (44) 1.08 and 1.06, 2 x 16384 x 128 (33) 1.05 and
// 1.05, 5 x 16384 x 64 (26) 1.00 and 0.99; float32 1 x 65536 x 32 (132 blocks of 32) 1.08 and 1.05,
// 1 x 36864 x 64 (66) 1.01 and 0.95.
constexpr int64_t kManyColumns = 2000;
constexpr int64_t kManyColumnsOfFloats = 4000;
// Of more bytes than these, lines matter more: 1 x 65536 x 128 1.04 forward, 0.96 to 1.01 in the
// gradient, which reads twice as much; 2 x 48^3 x 64 0.98 and 0.92.
constexpr int64_t kHalfLinesTo = 20000000;
// Where all blocks have one unit: the gradient of 1 x 48^3 x 64 1.28.
constexpr int64_t kHalfLinesOfOneTo = 30000000;
// And strips of a half or a quarter of a line where each unit is then a block's own, which waits
// for no other, and most multiprocessors have one. bfloat16 33 x 784 x 128 (132 units of half
// lines) 1.24 and 1.15, 20 x 784 x 128 (80) 1.12 and 1.06, 12 x 1024 x 128 (96 of quarters) 1.17
// and 1.09; float32 8 x 1536 x 256 (128) 1.17 and 1.09; but 320 channels in 32 groups, half lines
// of 80 bytes, 0.96 and 0.89, and quarters from float32 to bfloat16, 16 x 3136 x 64, 0.79.
// In bytes of a vector's column, of dy beside it, too, where all multiprocessors have a unit; of
// more, bfloat16 8 x 4096 x 256 (128 of quarters) 0.96 and 0.81, 5 x 3136 x 256 (80) 0.97.
constexpr int64_t kBytesOfOwn = 52800;
// Float32, forward, layer norm over the middle of 2 x 64 x 262144: 0.26 of the copy's speed in
// strips of 16 vectors, a tile each; 0.62, 0.67 and 0.56 in strips of 2, 4 and 8 tiles. Sums of
// more columns take longer than what barriers they save: 2048 x 49 x 512, 0.20 in strips of 8
// vectors, 0.69 of 64, 0.56 of 128.
constexpr int64_t kWideTiles = 4;
constexpr int64_t kWide = 64;
// Of more bytes than these, units are taken so many at a time. Forward, 4 x 64^3 x 64: 0.645 of the
// copy's speed in float32, 0.624 in float16, 0.619 from float32 to float16; all at once 0.613,
// 0.599, 0.561.
constexpr int64_t kAtOnce = 68000000;
// Units of more bytes are not taken two lines wide. 8 x 32^3 x 256, so many at a time: float32
// 0.706 two lines wide and 0.69 one, float16 0.698 and 0.689; all at once 0.662 and 0.677.
constexpr int64_t kSmallUnit = 8000000;
// Larger units, of which the chip holds little anyway, are better all at once: 2 x 128^3 x 64
// forward 0.82 ms in float32 and 0.70 from float32 to float16, a unit at a time 0.91 and 0.85. The
// gradient of 8 x 64^3 x 128, float32, 0.591, two units at a time 0.555; of 8 x 32^3 x 256 0.611
// and in turn 0.641 in float32, 0.625 and 0.646 in float16. Beside a dy of 16 bits units in turn
// lose: 2 x 128^2 x 512 in 32 groups 0.488, all at once 0.585.
constexpr int64_t kLargestInTurn = 40000000;
constexpr int64_t kLargestGradientInTurn = 30000000;
// Strips of two lines only of more bytes than these. Two lines wide and one: 2 x 24^3 x 128,
// float16, 0.442 and 0.510 forward, 0.411 and 0.517 in the gradient; 8 x 64 x 64 x 320, float32,
// 0.679 and 0.637 forward, beside a dy of 16 bits 0.573 and 0.485.
constexpr int64_t kTwoLinesFrom = 30000000;
constexpr int64_t kGradientTwoLinesFrom = 68000000;
// Tiles that are asked for into the L2 cache during an exchange: 4 x 64^3 x 64 0.645, without
// 0.640; in float16 0.624 and 0.610. 8 tiles are no better.
constexpr int kAhead = 4;
constexpr int64_t kInt = (int64_t{1} << 31) - 1;

// The narrowest strip that divides a row, is made of whole groups and has at least so many vectors;
// a whole row if there is none.
int64_t NarrowestStrip(int64_t width, int64_t quantum, int64_t least) {
  for (int64_t v = quantum; v <= std::min<int64_t>(width, kMaxVectors); v += quantum) {
    if (width % v == 0 && v >= least) return v;
  }
  return width <= kMaxVectors ? width : 0;
}

// Whether groups of blocks with so many vectors of columns in all would exchange too much.
bool ManyColumns(int64_t vectors, int64_t units, int number_bytes, int64_t bytes) {
  const int64_t columns = vectors * kVectorBytes / number_bytes;
  return columns >= (number_bytes == 2 ? kManyColumns : kManyColumnsOfFloats) &&
         bytes <= (units == 1 ? kHalfLinesOfOneTo : kHalfLinesTo);
}

// The widest strip below a line whose units are blocks' own, and as many as most multiprocessors;
// 0: there is none.
int64_t StripOfBlock(const Device& device, int64_t width, int64_t quantum, int64_t n,
                     int number_bytes, int64_t vector_bytes) {
  const int64_t least = number_bytes == 2 ? kLine / 4 : kLine / 2;
  for (int64_t wanted = kLine / 2; wanted >= least; wanted /= 2) {
    const int64_t vectors = NarrowestStrip(width, quantum, wanted);
    if (vectors == 0 || vectors >= kLine || vectors % 2 != 0) continue;
    const int64_t units = n * (width / vectors);
    if (units <= device.multiprocessors && 5 * units >= 3 * device.multiprocessors &&
        vector_bytes * device.multiprocessors <= kBytesOfOwn * units) {
      return vectors;
    }
  }
  return 0;
}

}  // namespace

StripShape ShapeOf(const ColumnLayout& layout, int number_bytes, const StripTile& tile) {
  StripShape out = {};
  const int per_vector = kVectorBytes / number_bytes;
  out.fold = tile.fold;
  out.rows = static_cast<int>(layout.s / tile.fold);
  out.width = static_cast<int>(layout.channels() * tile.fold / per_vector);
  out.vectors = tile.vectors;
  out.strips = out.width / tile.vectors;
  out.units = static_cast<int>(layout.n * out.strips);
  out.columns = tile.vectors * per_vector;
  out.row_step = kResidentThreads / tile.vectors;
  out.blocks = tile.blocks;
  out.share = out.rows / tile.blocks;
  out.extra = out.rows % tile.blocks;
  out.inverse_rows = 1.0 / out.rows;
  out.inverse_share = 1.0 / out.share;
  out.inverse_longer = 1.0 / (out.share + 1);
  out.groups = tile.groups;
  out.slots = tile.slots;
  out.kept = tile.kept;
  out.ahead = tile.blocks > 1 && out.units > tile.groups ? kAhead : 0;
  out.merge_lanes = tile.vectors < 32 && (tile.vectors & (tile.vectors - 1)) == 0;
  out.entries = out.merge_lanes ? kResidentThreads / 32 : out.row_step;
  out.readers = std::max(1, std::min(8, kResidentThreads / out.columns));
  out.streaming = tile.streaming;
  out.two_hops = tile.blocks * out.columns > kOneHop;
  out.small_output = layout.n * layout.s * layout.channels() * number_bytes <= kSmallOutput;
  out.row_items = tile.row_items;
  out.channels = static_cast<int>(layout.channels());
  out.depth = static_cast<int>(layout.depth);
  out.norm_groups = static_cast<int>(layout.groups);
  out.n_stride = layout.n_stride;
  out.s_stride = layout.s_stride;
  out.group_stride = layout.group_stride;
  out.depth_stride = layout.depth_stride;
  return out;
}

bool CutStrips(const ColumnLayout& layout, const Device& device, int number_bytes, int beside,
               int numbers, int stat_bytes, bool row_sums,
               const std::function<const void*(bool)>& kernel, StripTile* tile) {
  *tile = StripTile();
  const int64_t row_bytes = layout.channels() * number_bytes;
  const int64_t fold = kVectorBytes / std::gcd<int64_t>(row_bytes, kVectorBytes);
  const int64_t rows = layout.s / fold;
  const int64_t width = row_bytes * fold / kVectorBytes;
  const int64_t group_bytes = layout.depth * number_bytes;
  const int64_t quantum =
      fold > 1 ? width : std::lcm<int64_t>(group_bytes, kVectorBytes) / kVectorBytes;
  // A thread's next row is at most kResidentThreads / kLine rows further on: less than 2^31 bytes.
  constexpr int64_t kMostWidth = kInt / (kResidentThreads / kLine * kVectorBytes);
  if (device.capability < 80 || layout.s % fold != 0 || (fold > 1 && layout.s_stride != 0) ||
      quantum > kMaxVectors || width > kMostWidth || rows > kInt || layout.n * width > kInt) {
    return false;
  }
  const int64_t line = NarrowestStrip(width, quantum, kLine);
  if (line == 0) return false;
  StripTile out;
  out.fold = static_cast<int>(fold);
  const auto cut = [&](int64_t vectors, int64_t units_at_once) {
    const int64_t tile_rows = TileItems(beside) * (kResidentThreads / vectors);
    const int64_t wanted = std::max<int64_t>(1, device.multiprocessors / units_at_once);
    out.vectors = static_cast<int>(vectors);
    out.blocks = static_cast<int>(std::min(wanted, CeilDiv(rows, tile_rows)));
  };
  const auto units_of = [&](int64_t vectors) { return layout.n * (width / vectors); };
  // All units at once: the blocks exchange their sums a single time.
  cut(line, units_of(line));
  const int64_t unit_bytes = rows * line * ItemBytes(beside);
  const int64_t bytes = unit_bytes * units_of(line);
  if (out.blocks > 1 && layout.s_stride == 0) {
    const int64_t narrow = ManyColumns(out.blocks * line, units_of(line), number_bytes, bytes)
                               ? NarrowestStrip(width, quantum, kLine / 2)
                               : StripOfBlock(device, width, quantum, layout.n, number_bytes,
                                              rows * ItemBytes(beside));
    if (narrow > 0) cut(narrow, units_of(narrow));
  }
  const int64_t lines = NarrowestStrip(width, quantum, kTwoLines);
  if (out.blocks > 1 && lines > 0 &&
      bytes > (beside == kVectorBytes ? kGradientTwoLinesFrom : kTwoLinesFrom)) {
    cut(lines, units_of(lines));
  }
  // Or, of much more than the chip holds, so few at a time that it keeps most of them.
  const bool in_turn = beside == 0 ? unit_bytes <= kLargestInTurn
                                   : beside == kVectorBytes && unit_bytes <= kLargestGradientInTurn;
  if (bytes > kAtOnce && in_turn) {
    const bool wide = beside == 0 && lines > 0 && unit_bytes <= kSmallUnit;
    const int64_t vectors = wide ? lines : line;
    const int64_t at_once = kAtOnce / (rows * vectors * ItemBytes(beside));
    if (at_once <= device.multiprocessors / 4) cut(vectors, std::max<int64_t>(1, at_once));
  }
  // Of few rows a block takes wide strips, so that its barriers are for several tiles.
  if (out.blocks == 1) {
    const int64_t wanted =
        std::min<int64_t>(kWide, kWideTiles * TileItems(beside) * kResidentThreads / rows);
    const int64_t wide = NarrowestStrip(width, quantum, wanted);
    if (wide > out.vectors && units_of(wide) >= 2 * device.multiprocessors) {
      cut(wide, units_of(wide));
    }
  }
  const int64_t tile_rows = TileItems(beside) * (kResidentThreads / out.vectors);
  const int64_t tiles = CeilDiv(CeilDiv(rows, out.blocks), tile_rows);
  const int64_t scratch = ScratchBytes(ShapeOf(layout, number_bytes, out), numbers, stat_bytes);
  int64_t others = scratch;
  if (row_sums) {
    const int64_t items = tiles * TileItems(beside);
    if (items > device.shared_bytes / 2 / RowSumBytes(1)) return false;
    out.row_items = static_cast<int>(items);
    others += RowSumBytes(out.row_items);
  }
  const int64_t room =
      std::min<int64_t>(kMaxSlots, (device.shared_bytes - others) / TileBytes(beside));
  if (room < kWindow + 1) return false;
  out.streaming = tiles > room;
  // A block that has no other to wait for takes what it needs and leaves room for one more.
  out.slots = static_cast<int>(out.blocks == 1 ? std::min(room, tiles) : room);
  out.kept = out.slots - kWindow;
  out.shared = out.slots * TileBytes(beside) + others;
  const int resident = ResidentBlocks(kernel(out.streaming), kResidentThreads, out.shared);
  out.groups = static_cast<int>(std::min<int64_t>(
      units_of(out.vectors), int64_t{resident} * device.multiprocessors / out.blocks));
  if (out.groups < 1) return false;
  *tile = out;
  return true;
}

}  // namespace cuda
}  // namespace nv_norms
