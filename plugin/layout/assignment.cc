// The formats of a region are a minimum cut. Each member is a node of the network: on the source's
// side it runs channels last, on the sink's side channels first; what never changes is the source
// or the sink itself. A value costs its weight once, however many readers want the other format:
//
//     producer --weight--> any --infinite--> each reader     (channels last, some reader first)
//     each reader --infinite--> any' --weight--> producer    (channels first, some reader last)
//
// A cut of this network costs just what the Transposes weigh, so the minimum is exact.
#include "plugin/layout/assignment.h"

#include <algorithm>

#include "plugin/layout/minimum_cut.h"

namespace nv_norms {
namespace {

// In units that leave room for sums of products.
int64_t Weight(int64_t bytes) { return bytes / 256 + 2; }

Cost CostOf(const Region& region, const std::vector<Format>& formats) {
  Cost cost;
  for (const LayoutValue& value : region.values) {
    const Format produced = FormatOf(formats, value.member, value.now);
    const bool converted =
        std::any_of(value.readers.begin(), value.readers.end(), [&](const Reader& reader) {
          return FormatOf(formats, reader.member, reader.now) != produced;
        });
    if (!converted || value.is_free) continue;
    ++cost.transposes;
    cost.bytes += value.bytes;
  }
  return cost;
}

// A Transpose weighs so much beside what it moves. That something changes weighs less than
// anything.
std::vector<Format> Cheapest(const Region& region, int64_t per_transpose) {
  const int64_t unit = static_cast<int64_t>(region.members.size()) + 1;
  MinimumCut cut;
  std::vector<int> nodes;
  const auto side = [](Format format) {
    return format == Format::kLast ? MinimumCut::kSource : MinimumCut::kSink;
  };
  for (const Member& member : region.members) {
    nodes.push_back(cut.AddNode());
    if (member.now == Format::kLast) {
      cut.AddEdge(MinimumCut::kSource, nodes.back(), 1);
    } else {
      cut.AddEdge(nodes.back(), MinimumCut::kSink, 1);
    }
  }
  for (const LayoutValue& value : region.values) {
    const int64_t weight = unit * (value.is_free ? 1 : per_transpose + Weight(value.bytes));
    const int producer = value.member < 0 ? side(value.now) : nodes[value.member];
    const int some_first = cut.AddNode();
    const int some_last = cut.AddNode();
    cut.AddEdge(producer, some_first, weight);
    cut.AddEdge(some_last, producer, weight);
    for (const Reader& reader : value.readers) {
      const int node = reader.member < 0 ? side(reader.now) : nodes[reader.member];
      cut.AddEdge(some_first, node, MinimumCut::kInfinite);
      cut.AddEdge(node, some_last, MinimumCut::kInfinite);
    }
  }
  const std::vector<bool> last = cut.Solve();
  std::vector<Format> formats;
  for (int node : nodes) formats.push_back(last[node] ? Format::kLast : Format::kFirst);
  return formats;
}

}  // namespace

bool Assignment::better() const {
  return after.transposes <= before.transposes && after.bytes <= before.bytes &&
         (after.transposes < before.transposes || after.bytes < before.bytes);
}

Assignment Assign(const Region& region) {
  std::vector<Format> now;
  for (const Member& member : region.members) now.push_back(member.now);
  Assignment assignment;
  assignment.before = CostOf(region, now);
  for (const int64_t per_transpose : {int64_t{0}, Weight(assignment.before.bytes)}) {
    assignment.formats = Cheapest(region, per_transpose);
    assignment.after = CostOf(region, assignment.formats);
    if (assignment.better()) break;
  }
  return assignment;
}

}  // namespace nv_norms
