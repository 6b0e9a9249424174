// How a column problem is cut, and its parameters channel by channel.
#ifndef NV_NORMS_KERNELS_CPU_COLUMNS_H_
#define NV_NORMS_KERNELS_CPU_COLUMNS_H_

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "kernels/cpu/cache.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/kernels.h"
#include "kernels/geometry.h"

namespace nv_norms {
namespace cpu {

// Some rows by some columns of one sample.
struct Tile {
  int64_t n = 0;     // counted from the wave's first sample
  int64_t slab = 0;  // of rows
  int64_t rows = 0;
  int64_t column = 0;  // its first
  int64_t width = 0;
  int64_t offset = 0;  // of its first element in x
  int64_t s = 0;       // of its first row, where rows are not folded
};

// x is [n, s, channels]. Where there are few channels, some rows are taken as one of columns() =
// copies() * channels() columns; what is left at the end of a sample is a shorter row, a slab of
// its own. A tile is part of a slab. Cut by shape alone.
class ColumnCut {
 public:
  static constexpr int64_t kWidest = 1024;  // columns of a tile

  // size: bytes that belong to an element.
  ColumnCut(const ColumnLayout& layout, int64_t size)
      : layout_(layout), channels_(layout.channels()) {
    if (layout.s_stride == 0 && channels_ < kNarrow) {
      // Rows of whole cache lines in any type, if they are not too long then.
      const int64_t lines = kLine / std::gcd(channels_, kLine);
      const int64_t unit = lines * channels_ <= kWidest ? lines : 1;
      copies_ = std::min(layout.s, unit * std::max<int64_t>(1, kNarrow / (unit * channels_)));
    }
    columns_ = copies_ * channels_;
    full_rows_ = layout.s / copies_;
    rest_ = layout.s % copies_ * channels_;
    const int64_t strips = (columns_ + kWidest - 1) / kWidest;
    width_ = std::min(columns_, ((columns_ + strips - 1) / strips + 15) / 16 * 16);
    strips_ = (columns_ + width_ - 1) / width_;
    rows_ = std::min<int64_t>(full_rows_,
                              std::min(kTallest, std::max<int64_t>(1, kTileElements / width_)));
    full_slabs_ = (full_rows_ + rows_ - 1) / rows_;
    const int64_t sample = layout.s * channels_ * size;
    wave_ = std::min(layout.n, std::max<int64_t>(1, kSharedBytes / sample));
    alone_ = sample <= kCoreBytes && layout.n >= kManySamples;
  }

  int64_t copies() const { return copies_; }
  int64_t columns() const { return columns_; }
  int64_t slabs() const { return full_slabs_ + (rest_ > 0 ? 1 : 0); }
  // Rows of a slab; 1 where only the first rest() columns have one.
  int64_t SlabRows(int64_t slab) const {
    return slab == full_slabs_ ? 1 : std::min(rows_, full_rows_ - slab * rows_);
  }
  // Columns of a slab.
  int64_t SlabColumns(int64_t slab) const { return slab == full_slabs_ ? rest_ : columns_; }

  // Samples that are worked on at a time, so that they stay in the last-level cache.
  int64_t wave() const { return wave_; }
  // A sample stays in a core's cache, and there are enough of them for the threads.
  bool alone() const { return alone_; }

  int64_t tiles_of_sample() const { return full_slabs_ * strips_ + (rest_ > 0 ? 1 : 0); }
  int64_t elements_of_tile() const { return rows_ * width_; }
  int64_t width() const { return width_; }
  Tile At(int64_t first_sample, int64_t index) const {
    Tile tile;
    tile.n = index / tiles_of_sample();
    const int64_t within = index % tiles_of_sample();
    tile.slab = within / strips_;
    const bool rest = tile.slab == full_slabs_;
    tile.rows = SlabRows(tile.slab);
    tile.column = rest ? 0 : within % strips_ * width_;
    tile.width = rest ? rest_ : std::min(width_, columns_ - tile.column);
    tile.s = (rest ? full_rows_ : tile.slab * rows_);
    tile.offset = (first_sample + tile.n) * layout_.s * channels_ + tile.s * columns_ + tile.column;
    return tile;
  }

 private:
  static constexpr int64_t kNarrow = 256;   // columns to fill some cache lines with
  static constexpr int64_t kLine = 32;      // elements of a cache line, the smallest type's
  static constexpr int64_t kTallest = 512;  // their sums are kept in float, four rows at a time
  static constexpr int64_t kTileElements = 32768;
  static constexpr int64_t kManySamples = 64;

  ColumnLayout layout_;
  int64_t channels_;
  int64_t copies_ = 1;
  int64_t columns_;
  int64_t full_rows_;
  int64_t rest_;
  int64_t width_;
  int64_t strips_;
  int64_t rows_;
  int64_t full_slabs_;
  int64_t wave_;
  bool alone_;
};

// The parameters of all channels where they do not vary along s, else of all rows.
template <typename A>
std::vector<A> ParamsInOrder(const ColumnLayout& layout, const Params<A>& params, A absent) {
  const int64_t count = layout.s_stride != 0 ? layout.s : layout.channels();
  std::vector<A> out(count, absent);
  if (params.data() == nullptr) return out;
  for (int64_t i = 0; i < count; ++i) {
    out[i] = params.data()[layout.s_stride != 0 ? i * layout.s_stride
                                                : i / layout.depth * layout.group_stride +
                                                      i % layout.depth * layout.depth_stride];
  }
  return out;
}

// Copies values[0, channels) behind themselves until there are `columns`.
template <typename A>
void Repeat(A* values, int64_t channels, int64_t columns) {
  for (int64_t at = channels; at < columns; at += channels) {
    std::copy(values, values + channels, values + at);
  }
}

}  // namespace cpu
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CPU_COLUMNS_H_
