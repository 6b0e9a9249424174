#include <algorithm>
#include <numeric>

#include "kernels/cuda/columns_held.h"
#include "kernels/cuda/launch.cuh"

namespace nv_norms {
namespace cuda {
namespace {

// Of a block, where chunks are small enough. Of a copy's speed on an H200, with 256 and with 128
// threads, n x s x channels (groups), forward, gradient: float32 637 x 49 x 256 (32) 0.94 and 0.94,
// 0.87 and 0.93; 637 x 49 x 256 (256) 0.66 and 0.82, 0.79 and 0.86; 3906 x 8 x 256 (32) 0.91 and
// 0.96, 0.85 and 0.79.
constexpr int kThreads = 128;
constexpr int64_t kSegmentBytes = 64;  // of a position, at least, where a block has not all
constexpr int64_t kMostNumbers = int64_t{1} << 31;
// A thread of the gradient sums up dgamma and dbeta over so many positions, or more: the block's
// sums are few beside what it reads.
constexpr int64_t kPositionsToSum = 128;

// Vectors of up to `most` positions to a thread, of few positions fewer: float32 7812 x 4 x 256
// (32), the gradient, 0.72 with four and 0.68 with eight.
int ItemsFor(int64_t s, int vector, int most) {
  if (vector == 1) return 8;
  return s == 1 ? 1 : s <= 4 ? 4 : s <= 16 ? 8 : most;
}

int FloorPowerOfTwo(int64_t at_most) {
  int power = 1;
  while (2 * power <= at_most) power *= 2;
  return power;
}

// How many of `count` equal parts of the channels, each of `vectors` vectors at `positions`
// positions, a block has: the most for a block of kThreads, or the fewest for a larger one. A
// multiple of it is `count`; 0: there is none.
int64_t PartsOfBlock(int64_t count, int64_t vectors, int64_t positions, int64_t vector_bytes,
                     int most_threads) {
  int64_t out = 0;
  for (int64_t of = 1; of <= count && of * vectors * positions <= most_threads; ++of) {
    if (count % of != 0 || (of != count && of * vectors * vector_bytes < kSegmentBytes)) continue;
    if (out != 0 && of * vectors * positions > kThreads) break;
    out = of;
  }
  return out;
}

}  // namespace

HeldColumnLayout HeldColumnLayout::Of(const Geometry& geometry) {
  HeldColumnLayout out;
  if (geometry.layout == Layout::kColumns) {
    const ColumnLayout& columns = geometry.columns;
    const bool by_channel = columns.s_stride == 0 &&
                            (columns.groups == 1 || columns.group_stride == columns.depth) &&
                            (columns.depth == 1 || columns.depth_stride == 1);
    if (by_channel) {
      return {columns.n, columns.s, columns.groups, columns.depth, columns.n_stride != 0};
    }
  } else if (geometry.layout == Layout::kRows) {
    const RowLayout& rows = geometry.rows;
    if (!rows.by_column() && rows.col_divisor == 1 && rows.row_stride == rows.cols) {
      return {rows.rows / rows.modulus, 1, rows.modulus, rows.cols};
    }
  }
  return out;
}

HeldColumnShape CutHeldColumns(const HeldColumnLayout& layout, int64_t size, int vector,
                               int most_items, int most_threads, int multiprocessors) {
  HeldColumnShape out = {};
  const int64_t channels = layout.channels();
  if (layout.n == 0 || layout.s > int64_t{most_items} * most_threads || channels >= kMostNumbers) {
    return out;
  }
  out.n = layout.n;
  out.n_stride = layout.per_sample ? channels : 0;
  out.s = static_cast<int>(layout.s);
  out.channels = static_cast<int>(channels);
  out.depth = static_cast<int>(layout.depth);
  out.vector = vector;
  out.whole = layout.depth % vector == 0;
  out.items = ItemsFor(layout.s, vector, most_items);
  out.positions = static_cast<int>(CeilDiv(layout.s, out.items));
  // Whole groups of whole vectors.
  const int64_t least = std::lcm(layout.depth, int64_t{vector}) / vector;
  const int64_t count = channels / vector / least;
  const int64_t parts = PartsOfBlock(count, least, out.positions, vector * size, most_threads);
  if (parts == 0) return out;
  out.vectors = static_cast<int>(parts * least);
  out.chunks = static_cast<int>(count / parts);
  out.groups = static_cast<int>(int64_t{out.vectors} * vector / layout.depth);
  out.hops = static_cast<int>(CeilDiv(layout.s, out.positions));
  out.full = out.s - (out.hops - 1) * out.positions;
  const int unit = out.positions * out.vectors;
  out.samples = 1;
  if (out.chunks == 1) {
    out.samples = static_cast<int>(std::clamp<int64_t>(kThreads / unit, 1, layout.n));
  }
  const int64_t units = CeilDiv(layout.n, out.samples);
  if (units * out.chunks >= kMostNumbers) return out;
  out.threads = static_cast<int>(CeilDiv(out.samples * unit, 32) * 32);
  out.parts = static_cast<int>(out.whole ? layout.depth / vector : layout.depth);
  const int groups = out.samples * out.groups;
  const int beside = PowerOfTwo(std::min(32, out.parts));
  out.lanes_apart = FloorPowerOfTwo(
      std::min({out.positions, 32 / beside, std::max(1, out.threads / (groups * beside))}));
  out.lanes = beside * out.lanes_apart;
  // Some blocks to a multiprocessor, at least.
  const int64_t most = std::max<int64_t>(1, units * out.chunks / (int64_t{8} * multiprocessors));
  const int64_t positions = int64_t{out.samples} * layout.s;
  if (layout.per_sample) {
    out.rounds = 1;
  } else {
    out.rounds = static_cast<int>(std::min(CeilDiv(kPositionsToSum, positions), most));
  }
  out.by_vectors = Divisor::Of(out.vectors);
  out.by_positions = Divisor::Of(out.positions);
  out.by_depth = Divisor::Of(out.depth);
  out.by_chunks = Divisor::Of(out.chunks);
  out.by_groups = Divisor::Of(out.groups);
  return out;
}

}  // namespace cuda
}  // namespace nv_norms
