#include "plugin/layout/region.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

#include "tensorflow/core/framework/types.h"

namespace nv_norms {
namespace {

// Unknown sizes, mostly of batches, count as this many.
constexpr int64_t kNominalSize = 16;
// No tensor is weighed as more, so that sums of weights have room: a file may say any sizes.
constexpr double kMostBytes = 1e12;
// No region is looked at beyond this many members.
constexpr size_t kMaxMembers = 20000;

class RegionFinder {
 public:
  RegionFinder(const GraphView& view, const Shapes& shapes, const std::function<bool(int)>& keep,
               int seed)
      : view_(view), shapes_(shapes), keep_(keep) {
    region_.rank = static_cast<int>(shapes.Get(view.inputs(seed)[0]).dims.size());
    region_.device = view.def(seed).device();
  }

  Region Find(int seed, Format now) {
    AddMember(seed, 0, now, {0, false}, /*reads=*/true);
    for (size_t at = 0; at < region_.members.size() && !region_.contradictory; ++at) {
      if (region_.members.size() > kMaxMembers) region_.contradictory = true;
      // AddValue() may move the members.
      const Member member = region_.members[at];
      for (const Carrier& input : member.rule.inputs) {
        TensorId tensor = view_.inputs(member.node)[input.index];
        Format format = member.now;
        while (Converts(tensor.node, input.vector, format)) {
          tensor = view_.inputs(tensor.node)[0];
          format = Other(format);
        }
        AddValue(tensor, input.vector, format);
      }
      for (const Carrier& output : member.rule.outputs) {
        AddValue({member.node, output.index}, output.vector, member.now);
      }
    }
    return std::move(region_);
  }

 private:
  // Whether the node is a conversion to `to` that may go.
  bool Converts(int node, bool is_vector, Format to) const {
    if (!IsConversion(view_, node, is_vector, to, region_.rank) || keep_(node)) return false;
    const TensorInfo& info = shapes_.Get(view_.inputs(node)[0]);
    return view_.def(node).device() == region_.device && info.rank_known &&
           (is_vector ? info.dims == std::vector<int64_t>{region_.rank}
                      : static_cast<int>(info.dims.size()) == region_.rank);
  }

  // The member that reads or gives a value with this input or output, or -1 if the node can only
  // run as it does.
  int AddMember(int node, int part, Format now, Carrier carrier, bool reads) {
    const auto carries = [&](const Rule& rule) {
      const std::vector<Carrier>& carriers = reads ? rule.inputs : rule.outputs;
      return std::any_of(carriers.begin(), carriers.end(), [&](const Carrier& c) {
        return c.index == carrier.index && c.vector == carrier.vector;
      });
    };
    auto found = member_of_.find({node, part});
    if (found != member_of_.end()) {
      const Member& member = region_.members[found->second];
      if (!carries(member.rule)) return -1;
      if (member.now != now) region_.contradictory = true;
      return found->second;
    }
    Rule rule;
    if (keep_(node) || view_.def(node).device() != region_.device ||
        FindRule(view_, shapes_, node, part, now, region_.rank, &rule) != Reason::kNone ||
        !carries(rule)) {
      return -1;
    }
    const int member = static_cast<int>(region_.members.size());
    region_.members.push_back({node, part, now, std::move(rule)});
    member_of_[{node, part}] = member;
    return member;
  }

  void AddValue(TensorId tensor, bool is_vector, Format now) {
    auto found = value_of_.find(tensor);
    if (found != value_of_.end()) {
      if (region_.values[found->second].now != now) region_.contradictory = true;
      return;
    }
    value_of_[tensor] = static_cast<int>(region_.values.size());
    LayoutValue value{tensor, is_vector, -1, now, {}, {}, 0, 0, false};
    value.member = AddMember(tensor.node, PartOf(view_, tensor.node, tensor.port), now,
                             {tensor.port, is_vector}, /*reads=*/false);
    Measure(&value);
    AddReaders(tensor, now, &value, /*direct=*/true);
    region_.values.push_back(std::move(value));
  }

  void AddReaders(TensorId tensor, Format now, LayoutValue* value, bool direct) {
    std::vector<int> conversions;
    for (const Consumer& c : view_.consumers(tensor)) {
      if (c.slot == 0 && Converts(c.node, value->is_vector, Other(now))) {
        conversions.push_back(c.node);
        continue;
      }
      const int member = AddMember(c.node, PartOf(view_, c.node, c.slot), now,
                                   {c.slot, value->is_vector}, /*reads=*/true);
      value->readers.push_back({c.node, c.slot, member, now});
    }
    value->conversions.insert(value->conversions.end(), conversions.begin(), conversions.end());
    if (direct) value->direct = conversions.size();
    for (int node : conversions) AddReaders({node, 0}, Other(now), value, /*direct=*/false);
  }

  void Measure(LayoutValue* value) const {
    const TensorInfo& info = shapes_.Get(value->tensor);
    value->is_free = value->is_vector || (std::count_if(info.dims.begin(), info.dims.end(),
                                                        [](int64_t d) { return d < 0; }) <= 1 &&
                                          KeepsElementOrder(info.dims, Other(value->now)));
    double bytes = tensorflow::DataTypeSize(info.dtype);
    for (int64_t size : info.dims) bytes *= static_cast<double>(size < 0 ? kNominalSize : size);
    value->bytes = static_cast<int64_t>(std::min(bytes, kMostBytes));
  }

  const GraphView& view_;
  const Shapes& shapes_;
  const std::function<bool(int)>& keep_;
  Region region_;
  std::map<std::pair<int, int>, int> member_of_;
  std::unordered_map<TensorId, int, TensorIdHash> value_of_;
};

}  // namespace

Region FindRegion(const GraphView& view, const Shapes& shapes, const std::function<bool(int)>& keep,
                  int seed, Format now) {
  return RegionFinder(view, shapes, keep, seed).Find(seed, now);
}

}  // namespace nv_norms
