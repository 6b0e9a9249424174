// How a column problem is cut into tiles, and its parameters channel by channel.
#ifndef NV_NORMS_KERNELS_CPU_COLUMNS_H_
#define NV_NORMS_KERNELS_CPU_COLUMNS_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/cpu/convert.h"
#include "kernels/geometry.h"

namespace nv_norms {
namespace cpu {

struct Tile {
  int64_t n = 0;
  int64_t slab = 0;
  int64_t s_begin = 0;
  int64_t s_end = 0;
  int64_t channel_begin = 0;
  int64_t channel_end = 0;
  int64_t rows() const { return s_end - s_begin; }
  int64_t width() const { return channel_end - channel_begin; }
};

// Cut by shape alone. At most 256 rows: their sums are kept in float.
class ColumnTiles {
 public:
  explicit ColumnTiles(const ColumnLayout& layout)
      : layout_(layout),
        width_(std::min<int64_t>(layout.channels(), 1024)),
        rows_(std::min<int64_t>(layout.s, std::min<int64_t>(256, 32768 / width_))),
        slabs_((layout.s + rows_ - 1) / rows_),
        strips_((layout.channels() + width_ - 1) / width_) {}

  int64_t count() const { return layout_.n * slabs_ * strips_; }
  int64_t elements() const { return rows_ * width_; }
  int64_t slabs() const { return slabs_; }
  Tile At(int64_t index) const {
    Tile tile;
    tile.n = index / (slabs_ * strips_);
    tile.slab = index / strips_ % slabs_;
    tile.s_begin = tile.slab * rows_;
    tile.s_end = std::min(layout_.s, tile.s_begin + rows_);
    tile.channel_begin = index % strips_ * width_;
    tile.channel_end = std::min(layout_.channels(), tile.channel_begin + width_);
    return tile;
  }
  // Of the tile's row s, counted from the tile's first.
  int64_t Offset(const Tile& tile, int64_t s) const {
    return (tile.n * layout_.s + tile.s_begin + s) * layout_.channels() + tile.channel_begin;
  }

 private:
  ColumnLayout layout_;
  int64_t width_;
  int64_t rows_;
  int64_t slabs_;
  int64_t strips_;
};

// The parameters of a run of channels at one s.
template <typename A>
class ChannelParams {
 public:
  ChannelParams(const ColumnLayout& layout, const Params<A>& params, A absent)
      : layout_(layout), params_(params), absent_(absent) {}

  // Valid until the next call.
  const A* At(int64_t s, int64_t channel, int64_t width) {
    if (layout_.s_stride == 0 && channel == channel_ && width == width_) return values_.data();
    channel_ = channel;
    width_ = width;
    values_.resize(width);
    const int64_t base = s * layout_.s_stride;
    if (params_.data() == nullptr) {
      std::fill(values_.begin(), values_.end(), absent_);
    } else if (layout_.group_stride == 0 && layout_.depth_stride == 0) {
      std::fill(values_.begin(), values_.end(), params_.data()[base]);
    } else {
      for (int64_t c = 0; c < width; ++c) {
        values_[c] = params_.data()[base + (channel + c) / layout_.depth * layout_.group_stride +
                                    (channel + c) % layout_.depth * layout_.depth_stride];
      }
    }
    return values_.data();
  }

 private:
  const ColumnLayout& layout_;
  const Params<A>& params_;
  A absent_;
  int64_t channel_ = -1;
  int64_t width_ = 0;
  std::vector<A> values_;
};

}  // namespace cpu
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CPU_COLUMNS_H_
