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

// What is read twice, and not from a core's cache the second time, is brought there so far ahead.
constexpr int64_t kSoonBytes = 2048;

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
// sample. Whole samples, or strips of whole groups, all rows of them, are worked on alone(), by one
// thread each; where there are too few of them waves of samples stay in the last-level cache. Where
// there are few channels, and a strip has all of them, some rows are taken as one of columns() =
// copies() * channels() columns; what is left at the end of a sample is a shorter row, a slab of
// its own. Cut by shape (and the L2 cache) alone.
class ColumnCut {
 public:
  static constexpr int64_t kWidest = 1024;  // columns of a tile

  // size: bytes that belong to an element; element: those of the tensor that is written.
  ColumnCut(const ColumnLayout& layout, int64_t size, int64_t element)
      : layout_(layout), channels_(layout.channels()) {
    const int64_t sample = layout.s * channels_ * size;
    stays_ = sample <= CoreBytes();
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
    const int64_t most = alone_ ? kOwnTileElements : kTileElements;
    rows_ = std::min<int64_t>(full_rows_, std::min(kTallest, std::max<int64_t>(1, most / width_)));
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
  // A strip that is not a whole sample is worked on in a buffer: where it lies its rows are so far
  // apart that too many fall on the same lines of the cache.
  bool packed() const { return alone_ && strips_ > 1; }
  // The first tile of a strip of sample n.
  Tile StripAt(int64_t n, int64_t strip) const { return At(n, 0, 0, strip); }
  // A whole sample stays in a core's cache.
  bool stays() const { return stays_; }
  // How far from the elements of `tile` those lie that should be read while its output is stored,
  // the index-th that is: half of the next sample, which begins at `next`, where it has room beside
  // this one; else what comes next.
  int64_t Ahead(int64_t index, const Tile& tile, int64_t next, int64_t soon) const {
    if (strips_ > 1) return 0;
    if (!stays_) return soon;
    return 2 * index < slabs() ? next + index * rows_ * columns_ - tile.offset : 0;
  }
  // Counted from x's first.
  int64_t SampleOf(const Tile& tile) const { return tile.offset / (layout_.s * channels_); }
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
  static constexpr int64_t kTileElements = 32768;  // of those that threads share
  // Others are larger, since some rows of each are read twice. 128 x 28 x 28 x 1024 float32, 32
  // groups, 2 threads, milliseconds (on a busy machine): 40.6 with 32768, 36.0 with 65536, 33.1.
  static constexpr int64_t kOwnTileElements = 131072;
  // float32, 32 groups, 2 threads, milliseconds (on a busy machine), shared by all threads and one
  // by one: 8 x 64 x 64 x 64 1.0 and 0.7, gradient 1.6 and 0.8; 8 x 128 x 128 x 128 6.3 and 5.2,
  // gradient 12.3 and 9.6.
  static constexpr int64_t kManyTasks = 8;
  // Bytes of a sample that one thread reads twice, at most. What has left its L2 cache comes back
  // faster than what another thread read, and faster than strips, whose rows lie apart. So, 48 x
  // 128 x 128 x 128 shared and alone: 48 and 38, gradient 87 and 64; 128 x 28 x 28 x 1024,
  // gradient, in strips and whole: 70 and 60.
  static constexpr int64_t kOwnBytes = 16 << 20;
  static constexpr int64_t kShortestRun = 128;  // bytes of a strip's row
  // The same, if it can be so long. So, 32 x 1024 x 3072, axis 1, with 128, 256, 512, 1024: 41, 37,
  // 38, 41, gradient 79, 88, 86, 99 (at least 75, 75, 84, 82).
  static constexpr int64_t kWantedRun = 256;
  // Beside a small L2 cache (AMD EPYC, 512 KB), where such a strip does not stay in it, what counts
  // is how many pages are begun, x's and dy's of 1024 rows, more than its tables hold: longer runs,
  // of strips that stay in the last-level cache. So, 32 x 1024 x 3072 with 256 KB to a strip and
  // 256: 56, gradient 301; with 1 MB and 512: 45, 122; with 2 MB and 1024: 42, 105. 64 x 512 x
  // 3072: 44 and 117, 42 and 107, 35 and 99.
  static constexpr int64_t kLongRun = 1024;
  static constexpr int64_t kLongStripBytes = 2 << 20;
  // Bytes of a strip, if it can be so small: what is done once for a tile is little then.
  static constexpr int64_t kSmallestStrip = 64 << 10;

  // Channels of a strip that may be worked on alone, 0 if there is none.
  int64_t StripOf(int64_t size, int64_t element) {
    const int64_t row = channels_ * element;
    const bool whole = layout_.n >= kManyTasks && channels_ <= kWidest &&
                       layout_.s * channels_ * size <= kOwnBytes;
    if (whole) return channels_;
    const bool long_runs = CoreBytes() < kCoreBytes;
    const int64_t most_bytes = long_runs ? kLongStripBytes : CoreBytes();
    const int64_t most = std::min(kWidest, most_bytes / (layout_.s * size));
    // Whole groups and whole cache lines of the output.
    const int64_t unit = std::lcm(layout_.depth, 64 / element);
    const int64_t strip = most / unit * unit;
    const int64_t strips = strip == 0 ? 0 : (channels_ + strip - 1) / strip;
    if (strip * element < kShortestRun || layout_.n * strips < kManyTasks) return 0;
    const int64_t widest = ((channels_ + strips - 1) / strips + unit - 1) / unit * unit;
    // Where a row does not begin with a line those at both ends of a strip's row are stored in two
    // parts.
    if (row % 64 != 0) return widest;
    const int64_t run = std::max((long_runs ? kLongRun : kWantedRun) / element,
                                 kSmallestStrip / (layout_.s * size));
    return std::min(widest, (run + unit - 1) / unit * unit);
  }

  void Fold() {
    if (layout_.s_stride != 0 || channels_ >= kNarrow) return;
    // Rows of whole cache lines in any type, if they are not too long then.
    const int64_t lines = kLine / std::gcd(channels_, kLine);
    const int64_t unit = lines * channels_ <= kWidest ? lines : 1;
    // Few rows are not: columns of a row or two would have their moments put together one by one.
    // One thread, AMD EPYC (AVX2), ns a number, 4 x 64 instance norm: 5.2 and 3.2, gradient 5.5
    // and 3.5.
    copies_ = std::min(std::max<int64_t>(1, layout_.s / 4),
                       unit * std::max<int64_t>(1, kNarrow / (unit * channels_)));
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
  bool stays_;
};

// Room that begins with a cache line.
template <typename T>
class AlignedRoom {
 public:
  // Keeps what there is if it was as large.
  T* Get(int64_t count) {
    constexpr int64_t line = 64 / sizeof(T);
    if (static_cast<int64_t>(room_.size()) < count + line) room_.resize(count + line);
    const auto past = reinterpret_cast<uintptr_t>(room_.data()) % 64 / sizeof(T);
    return room_.data() + (past == 0 ? 0 : line - static_cast<int64_t>(past));
  }

 private:
  std::vector<T> room_;
};

// Tiles of a tensor. All rows of a strip that is of another type than T are read into a buffer at
// once, so that they are converted once and not for each reading. Those of a packed one are copied
// into a buffer by who reads them first.
template <typename T>
class TileReader {
 public:
  TileReader(const ColumnCut& cut, const Reader<T>& reader) : cut_(cut), reader_(reader) {}
  bool in_place() const { return reader_.in_place(); }

  // What is read next are tiles of the strip of `rows` rows that begins with this one.
  void BeginStrip(const Tile& first, int64_t rows) {
    if (!cut_.packed() && (in_place() || !cut_.stays())) return;
    first_ = first;
    if (in_place()) {
      step_ = first.width;
      strip_ = room_.Get(rows * step_);
    } else if (cut_.strips() == 1) {
      strip_ = reader_.Get(first.offset, rows * (cut_.columns() / cut_.copies()));
      step_ = cut_.columns();
    } else {
      strip_ = reader_.GetTile(first.offset, rows, first.width, cut_.columns(), &step_);
    }
  }

  // Of a strip that has just begun; *packed: where its rows are to be copied, or null.
  const T* GetFirst(const Tile& tile, int64_t* step, T** packed) {
    *packed = nullptr;
    if (!in_place() || strip_ == nullptr) return Get(tile, step);
    *packed = room_.Get(0) + tile.s * step_;
    return reader_.GetTile(tile.offset, tile.rows, tile.width, cut_.columns(), step);
  }

  const T* Get(const Tile& tile, int64_t* step) {
    if (strip_ == nullptr) {
      return reader_.GetTile(tile.offset, tile.rows, tile.width, cut_.columns(), step);
    }
    *step = step_;
    return strip_ + (step_ == cut_.columns() ? tile.offset - first_.offset : tile.s * step_);
  }

 private:
  const ColumnCut& cut_;
  Reader<T> reader_;
  AlignedRoom<T> room_;
  Tile first_;
  const T* strip_ = nullptr;
  int64_t step_ = 0;
};

// The parameters of all channels where they do not vary along s, of each sample if they vary along
// n, else of all rows: they lie side by side in every norm that has columns.
template <typename A>
std::vector<A> AllParams(const ColumnLayout& layout, const Params<A>& params, A absent) {
  const int64_t samples = layout.n_stride != 0 ? layout.n : 1;
  const int64_t count = layout.s_stride != 0 ? layout.s : samples * layout.channels();
  const A* given = params.data();
  return given == nullptr ? std::vector<A>(count, absent) : std::vector<A>(given, given + count);
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

// Parameters [samples, channels], those of each sample copied until there are `columns` of them.
template <typename A>
std::vector<A> Repeated(const std::vector<A>& params, int64_t channels, int64_t columns) {
  const int64_t samples = static_cast<int64_t>(params.size()) / channels;
  std::vector<A> out(samples * columns);
  for (int64_t n = 0; n < samples; ++n) {
    std::copy(&params[n * channels], &params[n * channels] + channels, &out[n * columns]);
    Repeat(&out[n * columns], channels, columns);
  }
  return out;
}

}  // namespace cpu
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CPU_COLUMNS_H_
