#ifndef NV_NORMS_PLUGIN_LAYOUT_REGION_H_
#define NV_NORMS_PLUGIN_LAYOUT_REGION_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "plugin/graph/shapes.h"
#include "plugin/graph/view.h"
#include "plugin/layout/format.h"
#include "plugin/layout/rules.h"

namespace nv_norms {

// A node (or one part of it) that can run in either format.
struct Member {
  int node;
  int part;
  Format now;
  Rule rule;
};

// Input `slot` of `node` reads a value: in the format of the member, or, where `member` is
// negative, in the format `now` for ever.
struct Reader {
  int node;
  int slot;
  int member;
  Format now;
};

// A tensor together with all that the graph's conversions (Transposes) make of it.
struct LayoutValue {
  TensorId tensor;  // as its producer gives it
  bool is_vector;   // one entry for each axis
  int member;       // the producer; negative: it gives the format `now` for ever
  Format now;
  std::vector<Reader> readers;
  std::vector<int> conversions;  // nodes, those that read `tensor` itself first
  size_t direct = 0;             // how many those are
  int64_t bytes = 0;
  bool is_free = false;  // a conversion moves nothing: it is a Reshape, or touches a few integers
};

// What hangs together by values of one rank on one device.
struct Region {
  int rank = 0;
  std::string device;
  std::vector<Member> members;
  std::vector<LayoutValue> values;
  bool contradictory = false;  // something would have to be in both formats at once
};

// The format of a member in `formats`; where `member` is negative, `otherwise`.
inline Format FormatOf(const std::vector<Format>& formats, int member, Format otherwise) {
  return member < 0 ? otherwise : formats[member];
}

// The region around the norm `seed`, which runs in the format `now`.
Region FindRegion(const GraphView& view, const Shapes& shapes, const std::function<bool(int)>& keep,
                  int seed, Format now);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_LAYOUT_REGION_H_
