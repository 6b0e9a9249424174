// The pass. The file's name makes TF_CPP_VMODULE=remapper=N show what it does, as it does for
// TensorFlow's own remapper: 1 a line for each graph, 2 for each fusion, 3 for each refusal.
#include "plugin/remapper.h"

#include <algorithm>
#include <initializer_list>
#include <set>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "plugin/activations/candidates.h"
#include "plugin/activations/take_in.h"
#include "plugin/casts/take_in.h"
#include "plugin/describe.h"
#include "plugin/edit.h"
#include "plugin/edit_steps.h"
#include "plugin/fused_before.h"
#include "plugin/graph/accumulation.h"
#include "plugin/graph/devices.h"
#include "plugin/graph/fused_ops.h"
#include "plugin/graph/gradient_shapes.h"
#include "plugin/graph/operand_shapes.h"
#include "plugin/graph/shapes.h"
#include "plugin/graph/view.h"
#include "plugin/layout/layout.h"
#include "plugin/modulations/take_in.h"
#include "plugin/recognizer/backward.h"
#include "plugin/recognizer/dy_candidates.h"
#include "plugin/recognizer/forward.h"
#include "plugin/recognizer/lone_gradient.h"
#include "plugin/recognizer/ops.h"
#include "plugin/recognizer/statistics.h"
#include "plugin/work.h"
#include "tensorflow/core/platform/logging.h"

namespace nv_norms {
namespace {

// Norms that share their moments may stand in one sum, or one may hide another from the search;
// each round fuses one of them at least.
constexpr int kMaxRounds = 8;

class Remapper {
 public:
  Remapper(GraphView* view, Shapes* shapes, const RemapperOptions& options,
           std::vector<Record>* records)
      : view_(view),
        shapes_(shapes),
        options_(options),
        records_(records),
        fused_before_(*view),
        describer_(*view, *shapes, options.graph_name) {
    keep_ = [this](int node) { return options_.preserve.count(view_->name(node)) > 0; };
    keep_with_operands_ = [this](int node) { return keep_(node) || operands_.count(node) > 0; };
  }

  bool Run(const std::vector<int>& anchors) {
    view_->MarkLive([this](int node) { return keep_(node) || !IsPure(view_->op(node)); });
    bool changed = false;
    for (int anchor : anchors) {
      std::set<int> settled;
      Outcome before = Outcome::kFusedAPart;
      for (int round = 0; round < kMaxRounds && view_->alive(anchor); ++round) {
        before = FuseAt(anchor, /*first=*/round == 0, before, &settled);
        changed = changed || before != Outcome::kNothing;
        if (before == Outcome::kNothing) break;
      }
    }
    DropInnerRefusals();
    return changed;
  }

 private:
  enum class Outcome { kNothing, kFused, kFusedAPart };

  // `before`: what came of the round before. Where no part was left, there may be another norm with
  // a gamma or beta of its own; what has none is xhat, which a gradient that stays may read.
  Outcome FuseAt(int anchor, bool first, Outcome before, std::set<int>* settled) {
    Reason reason = Reason::kNotANormalization;
    const auto meanings = FindStatistics(*view_, *shapes_, anchor, &reason);
    if (first && fused_before_.Normalizes(meanings)) return Outcome::kNothing;
    for (const Statistics& statistics : meanings) {
      Reason why_not = Reason::kNone;
      const auto matches = FindMatches(statistics, settled, &why_not);
      Outcome outcome = Outcome::kNothing;
      // One match may name another's gamma as its own, as both read one variable.
      for (const ForwardMatch& match : matches) Keep({match.gamma, match.beta, match.scale});
      for (const ForwardMatch& match : matches) {
        const bool affine = match.gamma.valid() || match.beta.valid();
        if (before == Outcome::kFused && !affine) continue;
        const Reason refusal = CheckForward(*view_, *shapes_, match);
        if (refusal == Reason::kNone) {
          Fuse(match);
          const bool part = match.goes_on() || outcome == Outcome::kFusedAPart;
          outcome = part ? Outcome::kFusedAPart : Outcome::kFused;
        } else if (why_not == Reason::kNone || why_not == Reason::kNoOutput) {
          why_not = refusal;
        }
      }
      ReleaseOperands();
      if (outcome != Outcome::kNothing) return outcome;
      // The most telling reason wins.
      if (reason == Reason::kNoOutput || reason == Reason::kNone) reason = why_not;
    }
    if (first && !meanings.empty() && FuseLone(meanings[0])) return Outcome::kFused;
    const bool left_over = (reason == Reason::kNoOutput || reason == Reason::kNotExpressible) &&
                           fused_before_.HasRoot(meanings);
    if (first && !left_over) Refuse(anchor, meanings, reason);
    return Outcome::kNothing;
  }

  // A scale of each sample in batches of unknown size goes into the op if its gradients can, too.
  std::vector<ForwardMatch> FindMatches(const Statistics& statistics, std::set<int>* settled,
                                        Reason* reason) {
    const std::set<int> before = *settled;
    const auto find = [&](bool open_samples) {
      return FindForward(*view_, *shapes_, statistics, keep_, open_samples, settled, reason);
    };
    const auto matches = find(/*open_samples=*/true);
    const auto has_gradients = [&](const ForwardMatch& match) {
      const auto found = FindBackward(*view_, *shapes_, match, keep_);
      const bool complete = std::all_of(found.begin(), found.end(), [&](const BackwardMatch& each) {
        return IsComplete(match, each);
      });
      // Of a parameter that is not trained there is no gradient.
      return !found.empty() && (complete || !NeedsAnchor(*view_, match, found, keep_));
    };
    const bool kept = std::all_of(matches.begin(), matches.end(), [&](const ForwardMatch& match) {
      return !match.open_samples || !HasGradient(*view_, match.statistics.anchor) ||
             has_gradients(match);
    });
    if (kept) return matches;
    *settled = before;
    return find(/*open_samples=*/false);
  }

  // What a match reads must be there when it is its turn, whoever else is fused before.
  void Keep(std::initializer_list<TensorId> operands) {
    for (TensorId tensor : operands) {
      if (tensor.valid()) operands_.insert(tensor.node);
    }
  }

  void ReleaseOperands() {
    const std::vector<int> operands(operands_.begin(), operands_.end());
    operands_.clear();
    RemoveUnread(view_, operands, keep_);
  }

  void Fuse(const ForwardMatch& match) {
    // All are found before anything is changed.
    const bool here = HasGradient(*view_, match.statistics.anchor);
    const bool elsewhere = !here && HasGradientElsewhere(*view_, match.statistics.anchor);
    Reason refusal = elsewhere ? Reason::kGradientElsewhere : Reason::kNoGradient;
    auto found = FindBackward(*view_, *shapes_, match, keep_);
    if (here && found.empty()) found = FindTransposed(match);
    const auto gradients = Sound(match, found, &refusal);
    const std::string anchor = view_->name(match.statistics.anchor.node);
    Described norm = describer_.Forward(match);
    Record left = describer_.LeftBackward(match);
    const auto described = Describe(match, gradients);
    for (const BackwardMatch& gradient : gradients) Keep({gradient.dy, gradient.gamma});
    const int fused = ApplyForward(view_, shapes_, match, keep_with_operands_);
    VLOG(2) << "Fuse " << anchor << " ... " << norm.record.outputs[0] << " into " << OpName(match)
            << " " << view_->name(fused) << ":" << norm.tensors << DescribeAttributes(match)
            << (match.goes_on() ? " and what goes on beside it" : "");
    records_->push_back(std::move(norm.record));
    Apply(match, gradients, described, anchor, fused);
    if (gradients.empty()) {  // a dy that was made for one
      for (const BackwardMatch& each : found) RemoveUnread(view_, {each.dy.node}, keep_);
    }
    if (gradients.empty() && (here || elsewhere || !found.empty())) {
      LeaveGradient(std::move(left), anchor, refusal);
    }
  }

  // A gradient whose dy is in another order of axes than x: a Transpose of dy is put into the graph
  // for it, and goes where it does not help.
  std::vector<BackwardMatch> FindTransposed(const ForwardMatch& match) {
    for (const TransposedDy& each : TransposedDys(*view_, *shapes_, match)) {
      const TensorId dy = AddTranspose(view_, shapes_, each.dy, each.order, each.dy.node);
      const BackwardMatch found = FindBackwardFrom(*view_, *shapes_, match, dy, keep_);
      if (found.dx.valid()) return {found};
      RemoveUnread(view_, {dy.node}, keep_);
    }
    return {};
  }

  // A gradient whose forward nobody asks for.
  bool FuseLone(const Statistics& statistics) {
    const LoneGradient lone = FindLoneGradient(*view_, *shapes_, statistics, keep_);
    if (lone.gradients.empty() || CheckForward(*view_, *shapes_, lone.forward) != Reason::kNone) {
      return false;
    }
    Reason refusal = Reason::kNone;
    const auto gradients = Sound(lone.forward, lone.gradients, &refusal);
    if (gradients.empty()) return false;
    const auto described = Describe(lone.forward, gradients);
    const std::string anchor = view_->name(statistics.anchor.node);
    for (const BackwardMatch& gradient : gradients) Keep({gradient.dy, gradient.gamma});
    const int fused = AddLoneForward(view_, shapes_, lone.forward);
    Apply(lone.forward, gradients, described, anchor, fused);
    ReleaseOperands();
    return true;
  }

  std::vector<BackwardMatch> Sound(const ForwardMatch& match,
                                   const std::vector<BackwardMatch>& gradients, Reason* refusal) {
    std::vector<BackwardMatch> sound;
    for (const BackwardMatch& gradient : gradients) {
      const Reason reason = CheckBackward(*view_, *shapes_, match, gradient, keep_with_operands_);
      if (reason == Reason::kNone) sound.push_back(gradient);
      if (reason != Reason::kNone) *refusal = reason;
    }
    return sound;
  }

  std::vector<Described> Describe(const ForwardMatch& match,
                                  const std::vector<BackwardMatch>& gradients) const {
    std::vector<Described> described;
    for (const auto& each : gradients) described.push_back(describer_.Backward(match, each));
    return described;
  }

  void Apply(const ForwardMatch& match, std::vector<BackwardMatch> gradients,
             const std::vector<Described>& described, const std::string& anchor, int fused) {
    for (size_t i = 0; i < gradients.size(); ++i) {
      // One before it may have tied what it reads to what it gives.
      const Reason reason =
          CheckBackward(*view_, *shapes_, match, gradients[i], keep_with_operands_);
      if (reason != Reason::kNone) {
        LeaveGradient(described[i].record, anchor, reason);
        continue;
      }
      const TensorId dx =
          ApplyBackward(view_, shapes_, match, gradients[i], fused, keep_with_operands_);
      for (size_t j = i + 1; j < gradients.size(); ++j) {
        PutBeside(gradients[i], dx, &gradients[j]);
      }
      VLOG(2) << "Fuse the gradient of " << anchor << " into " << OpName(match)
              << "Grad:" << described[i].tensors << DescribeAttributes(match);
      records_->push_back(described[i].record);
    }
    if (!gradients.empty()) RemoveUnread(view_, match.core, keep_with_operands_);
  }

  void LeaveGradient(Record record, const std::string& anchor, Reason reason) {
    record.reason = reason;
    VLOG(3) << "Leave the gradient of " << anchor << " as it is: " << ReasonSentence(reason) << " ("
            << ReasonName(reason) << ")";
    records_->push_back(std::move(record));
  }

  bool IsRootOfAll(int anchor, const std::vector<Statistics>& meanings) const {
    const TensorInfo& root = shapes_->Get({anchor, 0});
    const bool is_one_number = root.rank_known && std::all_of(root.dims.begin(), root.dims.end(),
                                                              [](int64_t d) { return d == 1; });
    const auto is_plain = [](const Statistics& s) {
      return s.moment == Moment::kMeanSquare && s.epsilon == 0;
    };
    return is_one_number && std::all_of(meanings.begin(), meanings.end(), is_plain);
  }

  void Refuse(int anchor, const std::vector<Statistics>& meanings, Reason reason) {
    // A sum of squares under the root is the scale of a unit norm, say; the root of a whole
    // tensor's mean square, what optimizers clip updates by.
    const bool scaled = !meanings.empty() && meanings[0].slope != 1;
    const bool of_all = reason == Reason::kNoOutput && IsRootOfAll(anchor, meanings);
    if (reason == Reason::kNotANormalization || reason == Reason::kBatchStatistics || scaled ||
        of_all) {
      VLOG(3) << "Leave " << view_->name(anchor) << " (" << view_->op(anchor)
              << ") as it is: " << ReasonSentence(reason);
      return;
    }
    VLOG(3) << "Leave the normalization at " << view_->name(anchor)
            << " as it is: " << ReasonSentence(reason) << " (" << ReasonName(reason) << ")";
    refused_.emplace_back(anchor, records_->size());
    records_->push_back(describer_.Left(anchor, meanings, reason));
  }

  // A root that is gone was an inner step of a norm that was fused: sqrt(std^2 + epsilon).
  void DropInnerRefusals() {
    for (auto it = refused_.rbegin(); it != refused_.rend(); ++it) {
      if (!view_->alive(it->first)) records_->erase(records_->begin() + it->second);
    }
  }

  GraphView* view_;
  Shapes* shapes_;
  const RemapperOptions& options_;
  std::vector<Record>* records_;
  const FusedBefore fused_before_;
  const Describer describer_;
  std::set<int> operands_;                       // of matches that are being fused
  std::vector<std::pair<int, size_t>> refused_;  // anchors, and where their records are
  std::function<bool(int)> keep_, keep_with_operands_;
};

bool NothingToDo(const tensorflow::GraphDef& graph, const std::string& graph_name) {
  VLOG(1) << "Graph " << graph_name << ": " << graph.node_size()
          << " nodes, nothing that looks like a normalization";
  return false;
}

}  // namespace

bool MayHoldNormalizations(const tensorflow::GraphDef& graph, const std::string& name) {
  bool root = false, fused = false, beside = false;
  for (const auto& node : graph.node()) {
    root = root || MayBeAnchor(node.op());
    fused = fused || IsFusedNorm(node.op());
    beside =
        beside || node.op() == "Transpose" || node.op() == "Cast" || MayBeActivation(node.op());
  }
  return root || (fused && beside) || NothingToDo(graph, name);
}

absl::StatusOr<bool> Remap(const tensorflow::GraphDef& graph, TF_GrapplerItem* item,
                           const RemapperOptions& options, tensorflow::GraphDef* remapped,
                           std::vector<Record>* records) {
  // The view changes nothing before it is asked to.
  GraphView view(const_cast<tensorflow::GraphDef*>(&graph));
  if (!view.ok()) return absl::InvalidArgumentError(view.error());
  // A session holds what it is fed against a placeholder's shape; what is fed in the place of a
  // computed tensor, against what Python knows of that.
  bool feeds_fit = true;
  for (const std::string& feed : options.feeds) {
    const int node = view.Find(feed);
    if (node < 0) continue;
    feeds_fit = feeds_fit && view.def(node).op() == "Placeholder";
    view.MarkFed(node);
  }
  const bool only_local = HasLocalNodes(graph);
  const std::function<bool(int)> nodes = [&](int node) {
    const std::string& device = view.def(node).device();
    return OnDevice(device, options.device_type) && (!only_local || IsLocal(device));
  };
  const std::function<bool(int)> keep = [&](int node) {
    return options.preserve.count(view.name(node)) > 0;
  };
  const Work work = WorkIn(&view, options, nodes, keep);
  if (work.none() && !options.check) return NothingToDo(graph, options.graph_name);
  Shapes shapes(item, &view);
  const absl::Time start = absl::Now();
  if (work.wants_shapes() || options.check) {
    const absl::Status inferred = shapes.Infer(feeds_fit);
    if (!inferred.ok()) return inferred;
  }
  const absl::Time shapes_known = absl::Now();
  if (work.none()) return NothingToDo(graph, options.graph_name);
  *remapped = graph;
  view.MoveTo(remapped);
  RestoreSums(&view);
  LearnFromGradients(view, &shapes);
  LearnFromShapeOperands(view, &shapes);
  bool changed = Remapper(&view, &shapes, options, records).Run(work.anchors);
  if (options.layouts) {
    changed = ImproveLayout(&view, &shapes, nodes, keep, options.graph_name, records) || changed;
  }
  // Only now: layouts change with a Cast's tensor in the narrow type, if that is the cheaper one.
  changed = TakeInCasts(&view, &shapes, nodes, keep, options.compiled) || changed;
  bool behind = work.wants_shapes() &&
                TakeInModulations(&view, &shapes, nodes, keep, options.compiled, records);
  behind =
      TakeInActivations(&view, &shapes, GpuNodes(view, nodes), keep, options.compiled, records) ||
      behind;
  // Of what these gave.
  if (behind) TakeInCasts(&view, &shapes, nodes, keep, options.compiled);
  changed = changed || behind;
  if (changed) view.Compact();
  const auto fused = std::count_if(records->begin(), records->end(),
                                   [](const Record& r) { return r.reason == Reason::kNone; });
  VLOG(1) << "Graph " << options.graph_name << ": " << graph.node_size() << " nodes before, "
          << remapped->node_size() << " after, " << fused
          << (fused == 1 ? " normalization" : " normalizations") << " fused, "
          << records->size() - fused << " left as they are; shapes "
          << absl::ToInt64Microseconds(shapes_known - start) << " us, the rest "
          << absl::ToInt64Microseconds(absl::Now() - shapes_known) << " us";
  return changed;
}

}  // namespace nv_norms
