// Index arithmetic over any of a geometry's axes, for the kernels that take every geometry.
#ifndef NV_NORMS_KERNELS_CPU_ODOMETER_H_
#define NV_NORMS_KERNELS_CPU_ODOMETER_H_

#include <cstdint>

#include "kernels/geometry.h"

namespace nv_norms {
namespace cpu {

// Where an element lies in x, in gamma, and in mean.
struct Place {
  int64_t offset = 0;
  int64_t param = 0;
  int64_t stat = 0;
};

// Walks over those axes of a geometry that pick(axis) selects, the last one fastest.
class Odometer {
 public:
  template <typename Pick>
  Odometer(const Geometry& geometry, const Pick& pick) {
    for (int i = 0; i < geometry.rank; ++i) {
      if (!pick(geometry.axes[i])) continue;
      axes_[rank_++] = geometry.axes[i];
      size_ *= geometry.axes[i].size;
    }
  }

  int64_t size() const { return size_; }

  // To the index-th place, counted from `base`.
  void Seek(const Place& base, int64_t index) {
    place_ = base;
    for (int i = rank_ - 1; i >= 0; --i) {
      at_[i] = index % axes_[i].size;
      index /= axes_[i].size;
      Move(axes_[i], at_[i]);
    }
  }
  const Place& place() const { return place_; }
  void Next() {
    for (int i = rank_ - 1; i >= 0; --i) {
      Move(axes_[i], 1);
      if (++at_[i] < axes_[i].size) return;
      Move(axes_[i], -axes_[i].size);
      at_[i] = 0;
    }
  }

 private:
  void Move(const Axis& axis, int64_t steps) {
    place_.offset += steps * axis.stride;
    place_.param += steps * axis.param_stride;
    place_.stat += steps * axis.stat_stride;
  }

  int rank_ = 0;
  int64_t size_ = 1;
  Axis axes_[kMaxRank];
  int64_t at_[kMaxRank] = {};
  Place place_;
};

}  // namespace cpu
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CPU_ODOMETER_H_
