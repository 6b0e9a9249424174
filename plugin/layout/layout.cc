#include "plugin/layout/layout.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "plugin/graph/fused_ops.h"
#include "plugin/layout/apply.h"
#include "plugin/layout/assignment.h"
#include "plugin/layout/parameters.h"
#include "plugin/layout/region.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/logging.h"

namespace nv_norms {
namespace {

constexpr int kMinRank = 3;
constexpr int kMaxRank = 5;

// Whether the node brings a tensor of any rank into the format `to`.
bool Converts(const GraphView& view, int node, Format to) {
  for (int rank = kMinRank; rank <= kMaxRank; ++rank) {
    if (IsConversion(view, node, /*of_vector=*/false, to, rank)) return true;
  }
  return false;
}

// Whether the norm, in the format `now`, has a Transpose from the other one or to it beside it.
bool StandsBesideTranspose(const GraphView& view, int norm, Format now) {
  const auto readers = view.consumers({norm, 0});
  return Converts(view, view.inputs(norm)[0].node, now) ||
         std::any_of(readers.begin(), readers.end(),
                     [&](const Consumer& c) { return Converts(view, c.node, Other(now)); });
}

class Pass {
 public:
  Pass(GraphView* view, Shapes* shapes, const std::function<bool(int)>& nodes,
       const std::function<bool(int)>& keep, const std::string& graph_name,
       std::vector<Record>* records)
      : view_(view),
        shapes_(shapes),
        nodes_(nodes),
        keep_(keep),
        graph_name_(graph_name),
        records_(records) {}

  bool Run() {
    std::vector<int> norms;
    for (int node = 0; node < view_->num_nodes(); ++node) {
      if (view_->alive(node) && IsFusedNorm(view_->op(node)) && nodes_(node)) norms.push_back(node);
    }
    bool changed = false;
    for (int norm : norms) {
      changed = BypassParameterTransposes(view_, *shapes_, norm, keep_) || changed;
    }
    for (int norm : norms) {
      if (seen_.count(norm) == 0) changed = ImproveAround(norm) || changed;
    }
    return changed;
  }

 private:
  bool ImproveAround(int norm) {
    Region region;
    const Reason reason = Around(norm, &region);
    if (reason != Reason::kNone) {
      Refuse(norm, reason);
      return false;
    }
    const Assignment assignment = Assign(region);
    if (!assignment.better()) {
      if (assignment.before.transposes > 0) {
        VLOG(3) << "Leave the layout around " << view_->name(norm) << " as it is: none of the "
                << region.members.size() << " ops that it hangs together with by "
                << assignment.before.transposes << " Transposes gains by another";
      }
      return false;
    }
    Record record = RecordOf(norm);
    record.transposes_before = assignment.before.transposes;
    record.transposes_after = assignment.after.transposes;
    for (size_t i = 0; i < region.members.size(); ++i) {
      const Member& member = region.members[i];
      if (assignment.formats[i] != member.now && IsFusedNorm(view_->op(member.node))) {
        record.outputs.push_back(view_->name(TensorId{member.node, 0}));
      }
    }
    std::vector<std::pair<int, std::string>> transposes;
    for (const LayoutValue& value : region.values) {
      for (int node : value.conversions) {
        if (!value.is_vector) transposes.emplace_back(node, view_->name(TensorId{node, 0}));
      }
    }
    ApplyFormats(view_, shapes_, region, assignment.formats, keep_);
    for (const auto& [node, name] : transposes) {
      if (!view_->alive(node)) record.inputs.push_back(name);
    }
    VLOG(2) << "Change the layout of " << record.outputs.size() << " normalizations around "
            << view_->name(norm) << " and what is between them: " << record.transposes_after
            << " Transposes of " << assignment.after.bytes << " bytes instead of "
            << record.transposes_before << " of " << assignment.before.bytes;
    records_->push_back(std::move(record));
    return true;
  }

  // The region around a norm; or, if there is none, why the Transposes beside it must stay. What
  // format a layer norm runs in shows only by the Transposes around it.
  Reason Around(int norm, Region* region) {
    const TensorInfo& x = shapes_->Get(view_->inputs(norm)[0]);
    const int rank = static_cast<int>(x.dims.size());
    if (x.rank_known && (rank < kMinRank || rank > kMaxRank)) return Reason::kNone;
    Reason reason = Reason::kNone;
    for (Format now : {Format::kLast, Format::kFirst}) {
      Reason why_not = keep_(norm) ? Reason::kPreserved : Reason::kUnknownRank;
      if (x.rank_known && !keep_(norm)) {
        Rule rule;
        why_not = FindRule(*view_, *shapes_, norm, 0, now, rank, &rule);
      }
      if (why_not == Reason::kNone) {
        Region candidate = FindRegion(*view_, *shapes_, keep_, norm, now);
        for (const Member& member : candidate.members) seen_.insert(member.node);
        if (candidate.contradictory) {
          why_not = Reason::kMixedLayouts;
        } else if (Conversions(candidate) > Conversions(*region)) {
          *region = std::move(candidate);
        }
      }
      if (why_not != Reason::kNone && StandsBesideTranspose(*view_, norm, now)) reason = why_not;
    }
    return region->members.empty() ? reason : Reason::kNone;
  }

  static size_t Conversions(const Region& region) {
    size_t count = 0;
    for (const LayoutValue& value : region.values) count += value.conversions.size();
    return count;
  }

  Record RecordOf(int norm) const {
    Record record;
    record.kind = "layout";
    record.direction = "";
    record.dtype = tensorflow::DataTypeString(shapes_->Get(view_->inputs(norm)[0]).dtype);
    record.device = view_->def(norm).device();
    record.graph = graph_name_;
    return record;
  }

  void Refuse(int norm, Reason reason) {
    Record record = RecordOf(norm);
    record.reason = reason;
    record.inputs = {view_->name(view_->inputs(norm)[0])};
    record.outputs = {view_->name(TensorId{norm, 0})};
    VLOG(3) << "Leave the Transposes beside " << view_->name(norm)
            << " as they are: " << ReasonSentence(reason) << " (" << ReasonName(reason) << ")";
    records_->push_back(std::move(record));
  }

  GraphView* view_;
  Shapes* shapes_;
  const std::function<bool(int)>& nodes_;
  const std::function<bool(int)>& keep_;
  const std::string& graph_name_;
  std::vector<Record>* records_;
  std::unordered_set<int> seen_;
};

}  // namespace

bool HasLayoutTransposes(const GraphView& view) {
  for (int node = 0; node < view.num_nodes(); ++node) {
    if (!view.alive(node) || view.op(node) != "Transpose") continue;
    if (Converts(view, node, Format::kLast) || Converts(view, node, Format::kFirst)) return true;
  }
  return false;
}

bool ImproveLayout(GraphView* view, Shapes* shapes, const std::function<bool(int)>& nodes,
                   const std::function<bool(int)>& keep, const std::string& graph_name,
                   std::vector<Record>* records) {
  if (!HasLayoutTransposes(*view)) return false;
  return Pass(view, shapes, nodes, keep, graph_name, records).Run();
}

}  // namespace nv_norms
