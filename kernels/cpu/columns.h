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
  int64_t n = 0;      // counted from the wave's first sample
  int64_t slab = 0;   // of rows
  int64_t strip = 0;  // of columns
  int64_t rows = 0;
  int64_t column = 0;  // its first
  int64_t width = 0;
  int64_t offset = 0;  // of its first element in x
  int64_t s = 0;       // of its first row, where rows are not folded
};

// x is [n, s, channels]. A tile is some rows (a slab of them) by some columns (a strip) of a
// sample. Where a strip of whole groups, all rows of it, stays in a core's cache it is worked on
// alone(); else waves of samples stay in the last-level cache. Where there are few channels, and a
// strip has all of them, some rows are taken as one of columns() = copies() * channels() columns;
// what is left at the end of a sample is a shorter row, a slab of its own. Cut by shape (and the L2
// cache) alone.
class ColumnCut {
 public:
  static constexpr int64_t kWidest = 1024;  // columns of a tile

  // size: bytes that belong to an element; element: those of the tensor that is written.
  ColumnCut(const ColumnLayout& layout, int64_t size, int64_t element)
      : layout_(layout), channels_(layout.channels()) {
    const int64_t sample = layout.s * channels_ * size;
    const int64_t strip = StripOf(size, element);
    const int64_t strips = strip == 0 ? 0 : (channels_ + strip - 1) / strip;
    alone_ = strips > 0 && layout.n * strips >= kManyTasks;
    if (alone_ && strips > 1) {
      width_ = strip;
    } else {
      Fold();
    }
    columns_ = copies_ * channels_;
    full_rows_ = layout.s / copies_;
    rest_ = layout.s % copies_ * channels_;
    if (width_ == 0) {
      const int64_t parts = (columns_ + kWidest - 1) / kWidest;
      width_ = std::min(columns_, ((columns_ + parts - 1) / parts + 15) / 16 * 16);
    }
    strips_ = (columns_ + width_ - 1) / width_;
    rows_ = std::min<int64_t>(full_rows_,
                              std::min(kTallest, std::max<int64_t>(1, kTileElements / width_)));
    full_slabs_ = (full_rows_ + rows_ - 1) / rows_;
    wave_ = alone_ ? 1 : std::min(layout.n, std::max<int64_t>(1, kSharedBytes / sample));
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
  // Each strip of each sample is worked on by itself.
  bool alone() const { return alone_; }
  int64_t strips() const { return strips_; }
  // A strip is worked on in a buffer: it would not stay in the cache where it lies.
  bool packed() const { return alone_ && packed_; }
  // The first tile of a strip of sample n.
  Tile StripAt(int64_t n, int64_t strip) const { return At(n, 0, 0, strip); }
  // How far ahead of a slab of a strip to read while its output is stored: into half of the next
  // strip, if that has room in the cache beside this one.
  int64_t Ahead(int64_t slab, int64_t next) const {
    return room_ahead_ && 2 * slab < slabs() ? next : 0;
  }
  // Its groups, if it is worked on alone: [first, last).
  int64_t FirstGroup(const Tile& tile) const { return tile.column / layout_.depth; }
  int64_t LastGroup(const Tile& tile) const {
    return std::min(tile.column + tile.width, channels_) / layout_.depth;
  }

  int64_t tiles_of_sample() const { return full_slabs_ * strips_ + (rest_ > 0 ? 1 : 0); }
  int64_t elements_of_tile() const { return rows_ * width_; }
  int64_t width() const { return width_; }
  // first_sample: of the wave.
  Tile At(int64_t first_sample, int64_t index) const {
    const int64_t within = index % tiles_of_sample();
    return At(first_sample, index / tiles_of_sample(), within / strips_, within % strips_);
  }
  Tile At(int64_t first_sample, int64_t n, int64_t slab, int64_t strip) const {
    const bool rest = slab == full_slabs_;
    Tile tile;
    tile.n = n;
    tile.slab = slab;
    tile.strip = strip;
    tile.rows = SlabRows(slab);
    tile.column = strip * width_;
    tile.width = rest ? rest_ : std::min(width_, columns_ - tile.column);
    tile.s = rest ? full_rows_ : slab * rows_;
    tile.offset = (first_sample + n) * layout_.s * channels_ + tile.s * columns_ + tile.column;
    return tile;
  }

 private:
  static constexpr int64_t kNarrow = 256;   // columns to fill some cache lines with
  static constexpr int64_t kLine = 32;      // elements of a cache line, the smallest type's
  static constexpr int64_t kTallest = 512;  // their sums are kept in float, four rows at a time
  static constexpr int64_t kTileElements = 32768;
  static constexpr int64_t kManyTasks = 16;     // not tuned
  static constexpr int64_t kShortestRun = 128;  // bytes of a strip's row; not tuned
  // The L2 cache keeps only as many lines as it has ways of those that lie this far apart.
  static constexpr int64_t kCacheWay = 128 << 10;

  // Channels of a strip that may be worked on alone, 0 if there is none.
  int64_t StripOf(int64_t size, int64_t element) {
    const int64_t core = CoreBytes();
    const int64_t most = std::min(kWidest, core / (layout_.s * size));
    if (most >= channels_) {
      room_ahead_ = true;
      return channels_;
    }
    // A row takes the place of this many bytes: the lines between two rows' are not used.
    const int64_t row = std::gcd(channels_ * element, kCacheWay) * size / element;
    packed_ = layout_.s * row > 2 * core;
    room_ahead_ = layout_.s * row <= core;
    // Whole groups and whole cache lines of the output.
    const int64_t unit = std::lcm(layout_.depth, 64 / element);
    const int64_t strip = most / unit * unit;
    if (strip * element < kShortestRun) return 0;
    const int64_t strips = (channels_ + strip - 1) / strip;
    return ((channels_ + strips - 1) / strips + unit - 1) / unit * unit;
  }

  void Fold() {
    if (layout_.s_stride != 0 || channels_ >= kNarrow) return;
    // Rows of whole cache lines in any type, if they are not too long then.
    const int64_t lines = kLine / std::gcd(channels_, kLine);
    const int64_t unit = lines * channels_ <= kWidest ? lines : 1;
    copies_ = std::min(layout_.s, unit * std::max<int64_t>(1, kNarrow / (unit * channels_)));
  }

  ColumnLayout layout_;
  int64_t channels_;
  int64_t copies_ = 1;
  int64_t columns_;
  int64_t full_rows_;
  int64_t rest_;
  int64_t width_ = 0;
  int64_t strips_;
  int64_t rows_;
  int64_t full_slabs_;
  int64_t wave_;
  bool alone_;
  bool packed_ = false;
  bool room_ahead_ = false;
};

// Tiles of a tensor. All rows of a strip are read into a buffer at once, where it is packed or of
// another type than T, so that they are converted once and not for each reading.
template <typename T>
class TileReader {
 public:
  TileReader(const ColumnCut& cut, const Reader<T>& reader) : cut_(cut), reader_(reader) {}
  bool in_place() const { return reader_.in_place(); }

  // What is read next are tiles of the strip of `rows` rows that begins with this one.
  void BeginStrip(const Tile& first, int64_t rows) {
    if (in_place() && !cut_.packed()) return;
    first_ = first;
    if (cut_.strips() == 1) {
      strip_ = reader_.Get(first.offset, rows * (cut_.columns() / cut_.copies()));
      step_ = cut_.columns();
    } else {
      strip_ = reader_.GetTile(first.offset, rows, first.width, cut_.columns(), true, &step_);
    }
  }

  const T* Get(const Tile& tile, int64_t* step) {
    if (strip_ == nullptr) {
      return reader_.GetTile(tile.offset, tile.rows, tile.width, cut_.columns(), false, step);
    }
    *step = step_;
    return strip_ + (step_ == cut_.columns() ? tile.offset - first_.offset : tile.s * step_);
  }

 private:
  const ColumnCut& cut_;
  Reader<T> reader_;
  Tile first_;
  const T* strip_ = nullptr;
  int64_t step_ = 0;
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

// Calls visit(n, begin, end) for the groups [begin, end) of sample n that are in [begin, end) of
// all.
template <typename Visit>
void ForSamples(int64_t groups, int64_t begin, int64_t end, const Visit& visit) {
  while (begin < end) {
    const int64_t n = begin / groups;
    const int64_t stop = std::min(end, (n + 1) * groups);
    visit(n, begin - n * groups, stop - n * groups);
    begin = stop;
  }
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
