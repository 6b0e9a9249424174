#ifndef NV_NORMS_PLUGIN_LAYOUT_ASSIGNMENT_H_
#define NV_NORMS_PLUGIN_LAYOUT_ASSIGNMENT_H_

#include <cstdint>
#include <vector>

#include "plugin/layout/region.h"

namespace nv_norms {

// What a region's Transposes cost if each value is brought into the other format once at most.
struct Cost {
  int transposes = 0;
  int64_t bytes = 0;  // of the tensors that are transposed
};

// A format for each member of a region.
struct Assignment {
  std::vector<Format> formats;
  Cost before, after;
  bool better() const;  // fewer bytes and no more Transposes, or fewer of them and no more bytes
};

// The formats with which the fewest bytes are transposed; or, should that take more Transposes than
// now, those with the fewest Transposes.
Assignment Assign(const Region& region);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_LAYOUT_ASSIGNMENT_H_
