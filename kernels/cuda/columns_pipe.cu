#include <algorithm>

#include "kernels/cuda/columns_pipe.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/resident.h"

namespace nv_norms {
namespace cuda {
namespace {

// The figures beside these numbers are parts of a copy's bytes per second on one H200:
// docs/kernels-columns.md.
constexpr int64_t kInt = (int64_t{1} << 31) - 1;
constexpr int kMaxVectors = 32;
constexpr int64_t kSlotBytes = int64_t{kTileVectors} * kVectorBytes;

// Smaller tensors, and those whose units are smaller, are better off with all warps at the same
// work: 4 x 32^3 x 256 in float16, 67 MB, 0.685 and so 0.678; 2 x 128^2 x 512 in 32 groups, units
// of 2 MB, 0.673 and so 0.720.
constexpr int64_t kLeastBytes = 100000000;
constexpr int64_t kLeastUnit = 4000000;
// Of a unit that does not fit on the chip by far a second strip of the same rows finds nothing in
// the L2 cache: 2 x 128^3 x 64 in float32 0.591, with all warps at the same work 0.629.
constexpr int64_t kLargestOfStrips = 150000000;
// Strips of a line; copying in strips of 64 of a row's 256 bytes, without any sums, reaches 0.52 of
// a plain copy's speed, of 128 bytes 0.82. Where a unit does not fit and y takes half as many
// bytes, or a row is of four lines and more, two lines: 8 x 64^3 x 128, float32, 0.692 and 0.669 in
// strips of one, beside a y of 16 bits 0.632 and 0.561.
constexpr int kLine = 8;
constexpr int kTwoLines = 16;
// Blocks of a group have at most so many columns each to exchange where all are one group, else
// half of them are. 8 x 32^3 x 256, float16: 0.666 in two groups, 0.602 in one.
constexpr int kColumnsOfAll = 32;
// Slots for tiles that are read twice, each of the two times, by how many times the slots a unit's
// tiles are; and how many of the rest hold tiles that stay. 4 x 64^3 x 64 (1.2 times): 0.757 with
// 3, 0.729 with 4; 2 x 128^3 x 32 (9 times): 0.589 with 3, 0.606 with 4, 0.614 with 8.
constexpr int kFewSlots = 3;
constexpr int kSomeSlots = 4;
constexpr int kManySlots = 8;
constexpr int kStaying = 18;
// More tiles on their way keep what blocks tell each other from coming through: 8 x 64^3 x 32 in
// float16 0.685 with 6, 0.657 with 20.
constexpr int kFlight = 8;
constexpr int kFlightStreamed = 4;

}  // namespace

bool CutPipe(const ColumnLayout& layout, const Device& device, int x_bytes, int y_bytes,
             int64_t (*scratch)(int), PipeShape* shape) {
  const int64_t row_bytes = layout.channels() * x_bytes;
  const int64_t width = row_bytes / kVectorBytes;
  if (device.capability < 90 || layout.s_stride != 0 || row_bytes % kVectorBytes != 0 ||
      layout.s > kInt || layout.n * width > kInt || layout.n * layout.s * row_bytes < kLeastBytes) {
    return false;
  }
  const auto suits = [&](int64_t vectors) {
    return vectors <= kMaxVectors && (vectors & (vectors - 1)) == 0 && width % vectors == 0 &&
           vectors * kVectorBytes / x_bytes % layout.depth == 0;
  };
  const int most = std::min(device.multiprocessors, kMaxPipeBlocks);
  PipeShape out = {};
  // False where no slots are left for the tiles.
  const auto cut = [&](int64_t vectors, int blocks) {
    out.vectors = static_cast<int>(vectors);
    out.columns = static_cast<int>(vectors * kVectorBytes / x_bytes);
    out.tile_rows = kTileVectors / out.vectors;
    out.blocks = static_cast<int>(std::min<int64_t>(blocks, CeilDiv(layout.s, out.tile_rows)));
    out.tiles = static_cast<int>(CeilDiv(layout.s, int64_t{out.blocks} * out.tile_rows));
    out.slots = static_cast<int>(std::min<int64_t>(
        kMaxPipeSlots, (device.shared_bytes - scratch(out.columns)) / kSlotBytes));
    return out.slots > 2 * kManySlots + kFlight;
  };
  const int64_t line = std::min<int64_t>(width, kLine);
  const int64_t unit_bytes = layout.s * line * kVectorBytes;
  if (unit_bytes < kLeastUnit || (width > line && unit_bytes > kLargestOfStrips) || !suits(line) ||
      !cut(line, most)) {
    return false;
  }
  if (out.tiles > out.slots) {
    const bool wide = (y_bytes < x_bytes || width >= 2 * kTwoLines) && suits(kTwoLines);
    if (wide && !cut(kTwoLines, most)) return false;
    out.stream_slots = out.tiles > 4 * out.slots   ? kManySlots
                       : out.tiles > 2 * out.slots ? kSomeSlots
                                                   : kFewSlots;
    out.streamed = out.tiles - std::min(kStaying, out.slots - 2 * out.stream_slots);
    out.flight = kFlightStreamed;
  } else {
    // Beside a y of 16 bits these are better off with all warps at the same work: 8 x 32^3 x 256
    // 0.616 and so 0.651.
    if (y_bytes < x_bytes) return false;
    if (out.columns > kColumnsOfAll && !cut(line, most / 2)) return false;
    if (out.tiles > out.slots) return false;
    out.flight = kFlight;
  }
  out.rows = static_cast<int>(layout.s);
  out.width = static_cast<int>(width);
  out.strips = out.width / out.vectors;
  out.units = static_cast<int>(layout.n) * out.strips;
  out.groups = std::min(out.units, most / out.blocks);
  if (out.units < 2 * out.groups) return false;  // nothing to do beside a unit
  const int64_t rest = layout.s - int64_t{out.tiles - 1} * out.blocks * out.tile_rows;
  out.last_share = static_cast<int>(rest / out.blocks);
  out.last_extra = static_cast<int>(rest % out.blocks);
  // A block may be as many units ahead of another as its slots hold, and one that has begun.
  out.rounds = out.slots / (out.tiles - out.streamed) + 3;
  out.inverse_rows = 1.0 / out.rows;
  out.inverse_lengths[0] = 1.0 / out.LengthOf(0);
  out.inverse_lengths[1] = 1.0 / out.LengthOf(out.blocks - 1);
  out.depth = static_cast<int>(layout.depth);
  out.norm_groups = static_cast<int>(layout.groups);
  out.n_stride = layout.n_stride;
  out.group_stride = layout.group_stride;
  out.depth_stride = layout.depth_stride;
  *shape = out;
  return true;
}

}  // namespace cuda
}  // namespace nv_norms
