#include <algorithm>
#include <tuple>

#include "kernels/cuda/known.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/occupancy.h"
#include "kernels/cuda/segments.h"

namespace nv_norms {
namespace cuda {
namespace {

constexpr int64_t kReserved = 1024;   // of a block's shared memory, by the system
constexpr int64_t kStatic = 1024;     // and for its sums
constexpr int64_t kLeastLength = 16;  // vectors of a segment; not tuned yet
// A tile holds one segment's vectors: below this part of it, on average, other kernels take over.
constexpr double kLeastFill = 0.3;  // not tuned yet
constexpr int64_t kInt = (int64_t{1} << 31) - 1;

// How many tiles of the rows to come a team asks for into the L2 cache while it exchanges sums. Of
// a copy's speed, with 0, 2 and 4 tiles:
//   forward   float32 4 x 64 x 64^3    0.758  0.827  0.834    float16 0.808  0.866  0.861
//             float32 2 x 32 x 128^3   0.690  0.698  0.745            0.720  0.785  0.809
//             float32 to float16       0.673  0.718  0.788
//             float16, rows of 50 KB   0.704  0.693  0.677
//   gradient  float32 4 x 64 x 64^3    0.750  0.811  0.808    float16 0.819  0.854  0.864
//             float32 2 x 32 x 128^3   0.669  0.705  0.718            0.610  0.694  0.694
//   beside a dy in 16 bits the same    0.652  0.688  0.712 (8 tiles: 0.763)
//                 of 4 x 64 x 64^3     0.773  0.758  0.724    2 x 32 x 96^3   0.678  0.657  0.616
//             8 segments, 100 KB       0.739  0.718  0.689
constexpr int64_t kShortRow = 64 << 10;  // bytes of x
constexpr int64_t kLongRow = 1500000;
constexpr int64_t kLongGradientRow = 3000000;
constexpr int64_t kLongMixedRow = 6000000;

int TilesAhead(int64_t row_bytes, int64_t segments, int beside) {
  if (row_bytes < kShortRow) return 0;
  if (beside == 0) return row_bytes >= kLongRow ? 4 : 2;
  if (segments > 1) return 0;
  if (beside < kVectorBytes) return row_bytes >= kLongMixedRow ? 8 : 0;
  return row_bytes >= kLongGradientRow ? 4 : 2;
}

// As CutSegments.
SegmentCut Search(const SegmentLayout& layout, const Device& device, int number_bytes, int beside,
                  const std::function<const void*(bool, bool)>& kernel) {
  const int64_t length = layout.length * number_bytes / kVectorBytes;
  if (device.capability < 80 || layout.length * number_bytes % kVectorBytes != 0 ||
      length < kLeastLength || length * layout.segments > kInt || layout.rows > kInt) {
    return SegmentCut();
  }
  // Two blocks to a multiprocessor, of which one works while the other waits, if there is room.
  const int64_t tile_bytes = TileBytes(beside);
  const int64_t items = TileItems(beside);
  SegmentCut out;
  int64_t room = (device.shared_bytes + kReserved) / 2 - kReserved - kStatic;
  if (room < (kWindow + 1) * tile_bytes) room = device.shared_bytes - kStatic;
  out.slots = static_cast<int>(std::min<int64_t>(kMaxSlots, room / tile_bytes));
  if (out.slots <= kWindow) return SegmentCut();
  out.shared = out.slots * tile_bytes;
  // Half of the slots are for the rows to come.
  out.warps = layout.segments * CeilDiv(length, 32 * items) <= (out.slots + 1) / 2;
  const auto resident = [&](bool streaming) {
    const void* function = kernel(out.warps, streaming);
    return int64_t{ResidentBlocks(function, kResidentThreads, out.shared)} * device.multiprocessors;
  };
  const int64_t most = resident(false);
  if (most == 0) return SegmentCut();
  if (out.warps) {
    out.blocks = 1;
    out.teams = static_cast<int>(std::min(layout.rows, most * (kResidentThreads / 32)));
    return out;
  }
  const int64_t tile_vectors = items * kResidentThreads;
  const int64_t segment_tiles = CeilDiv(length, tile_vectors);
  if (layout.segments > 1 && length < kLeastFill * segment_tiles * tile_vectors) {
    return SegmentCut();
  }
  const auto tiles_of = [&](int64_t blocks) {
    const int64_t parts = std::max<int64_t>(1, blocks / layout.segments);
    const int64_t own = std::max<int64_t>(1, layout.segments / blocks);
    return own * CeilDiv(CeilDiv(length, parts), tile_vectors);
  };
  // The smallest team that has room for a row, or one of up to twice as many blocks if that leaves
  // fewer of them idle; a team of all blocks for rows that are too long. Of the gradient's slots
  // some are kept for the row to come: 16 problems of instance and group norm reached 0.706, 0.710,
  // 0.704 and 0.697 of a copy's speed (geometric mean) with at most 4, 5, 6 and 7 tiles of a row in
  // the 7 slots, in the forward pass 0.679, 0.682, 0.684 and 0.686.
  const int64_t most_blocks = std::min<int64_t>({most, kMaxTeam, layout.segments * segment_tiles});
  const int64_t most_tiles = beside == 0 ? out.slots : 3 * out.slots / 4;
  int64_t least = 0;
  double best = 0;
  for (int64_t blocks = 1; blocks <= most_blocks; ++blocks) {
    if (blocks % layout.segments != 0 && layout.segments % blocks != 0) continue;
    if (least == 0) out.blocks = static_cast<int>(blocks);
    if (tiles_of(blocks) > most_tiles) continue;
    if (least == 0) least = blocks;
    if (blocks > 2 * least && blocks > most / layout.rows) break;
    const int64_t teams = std::min(layout.rows, most / blocks);
    double busy = static_cast<double>(layout.rows) /
                  static_cast<double>(CeilDiv(layout.rows, teams) * teams) *
                  static_cast<double>(teams * blocks) / static_cast<double>(most);
    // Forward, full tiles leave more slots to the rows to come.
    if (beside == 0) {
      busy *= static_cast<double>(length * layout.segments) /
              static_cast<double>(tiles_of(blocks) * blocks * tile_vectors);
    }
    if (busy < 1.02 * best) continue;
    best = busy;
    out.blocks = static_cast<int>(blocks);
  }
  // Where a team of all blocks has a row, the next waits for its exchange. Two teams take turns, if
  // no block must then read more than a tile of the gradient's again: rows of 2097152 numbers in
  // float32 0.66 of a copy's speed in place of 0.57, beside a dy in 16 bits 0.66 for 0.60.
  const int64_t half = most / 2 / layout.segments * layout.segments;
  if (beside > 0 && most / out.blocks == 1 && layout.rows > 1 && half > 0 &&
      tiles_of(half) <= out.slots + 1) {
    out.blocks = static_cast<int>(half);
  }
  // Where the segments of few rows cannot be shared out (1103 to a row), most of the GPU would be
  // idle: float32 3 x 2206 x 712 in 2 groups took 2158 us, a copy 12.
  const int64_t tiles = layout.rows * layout.segments * segment_tiles;
  if (beside > 0 && layout.rows * out.blocks < std::min(most / 4, tiles / 16)) return SegmentCut();
  out.streaming = tiles_of(out.blocks) > out.slots;
  const int64_t fit = out.streaming ? resident(true) : most;
  out.teams = static_cast<int>(std::min(layout.rows, fit / out.blocks));
  return out.teams > 0 ? out : SegmentCut();
}

}  // namespace

SegmentShape ShapeOf(const SegmentLayout& layout, int number_bytes, int beside,
                     const SegmentCut& cut) {
  SegmentShape out = {};
  out.layout = layout;
  out.rows = static_cast<int>(layout.rows);
  out.segments = static_cast<int>(layout.segments);
  out.length = static_cast<int>(layout.length * number_bytes / kVectorBytes);
  out.warps = cut.warps;
  out.blocks = cut.blocks;
  out.parts = std::max(1, cut.blocks / out.segments);
  out.own = std::max(1, out.segments / cut.blocks);
  out.share = out.length / out.parts;
  out.extra = out.length % out.parts;
  out.teams = cut.teams;
  out.slots = cut.slots;
  out.kept = cut.slots - kWindow;
  out.ahead = TilesAhead(layout.segments * layout.length * number_bytes, layout.segments, beside);
  out.streaming = cut.streaming;
  out.small_output = layout.rows * layout.segments * layout.length * number_bytes <= kSmallOutput;
  return out;
}

void CutSegments(const SegmentLayout& layout, const Device& device, int number_bytes, int beside,
                 const std::function<const void*(bool, bool)>& kernel, SegmentCut* cut) {
  using Key = std::tuple<int64_t, int64_t, int64_t, int, int, const void*, int, int, int>;
  static auto& known = *new Known<Key, SegmentCut>;
  const Key key(layout.rows, layout.segments, layout.length, number_bytes, beside,
                kernel(false, false), device.multiprocessors, device.capability,
                device.shared_bytes);
  if (known.Find(key, cut)) return;
  *cut = Search(layout, device, number_bytes, beside, kernel);
  if (cut->blocks != 0) known.Keep(key, *cut);
}

}  // namespace cuda
}  // namespace nv_norms
