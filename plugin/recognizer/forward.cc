#include "plugin/recognizer/forward.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "plugin/recognizer/moments.h"
#include "plugin/recognizer/ops.h"
#include "plugin/recognizer/output_check.h"
#include "plugin/recognizer/outputs.h"
#include "plugin/recognizer/reach.h"
#include "plugin/recognizer/roundings.h"

namespace nv_norms {
namespace {

constexpr int kMaxDependents = 400;

bool Contains(const std::vector<int>& nodes, int node) {
  return std::find(nodes.begin(), nodes.end(), node) != nodes.end();
}

class ForwardSearch {
 public:
  ForwardSearch(const GraphView& view, const Shapes& shapes, const Statistics& statistics,
                const std::function<bool(int)>& keep, bool open_samples, std::set<int>* settled)
      : view_(view),
        shapes_(shapes),
        statistics_(statistics),
        keep_(keep),
        open_samples_(open_samples),
        settled_(settled) {
    scene_ = SceneAround(view, shapes, statistics);
    scene_.dependents = Dependents(view, statistics.x, kMaxDependents);
    Roundings roundings(view, shapes, statistics);
    for (auto it = scene_.dependents.begin(); it != scene_.dependents.end();) {
      it = roundings.Has(*it) ? scene_.dependents.erase(it) : std::next(it);
    }
  }

  std::vector<ForwardMatch> Run(Reason* reason) {
    for (int attempt = 0; attempt < Interpreter::kMaxRestarts; ++attempt) {
      Interpreter interpreter(scene_, &axes_, /*draw=*/0);
      *reason = Reason::kNoOutput;
      auto matches = Matches(&interpreter, reason);
      if (interpreter.restart()) continue;
      if (!matches.empty()) *reason = Reason::kNone;
      return matches;
    }
    *reason = Reason::kNoOutput;
    return {};
  }

 private:
  using Candidate = std::pair<Output, ForwardMatch>;

  std::vector<ForwardMatch> Matches(Interpreter* interpreter, Reason* reason) {
    auto x = Normalize(view_, statistics_, interpreter);
    if (!x) return {};
    if (OverTheBatch(*x)) {
      *reason = Reason::kBatchStatistics;
      return {};
    }
    const Neighbourhood near{view_,  shapes_,     statistics_,   keep_,        scene_,
                             &axes_, interpreter, *std::move(x), open_samples_};
    Outputs outputs(near);
    *reason = outputs.Find();
    if (interpreter->restart()) return {};
    const OutputCheck check(near, &outputs, settled_);
    std::vector<Candidate> usable;
    for (const Output& output : outputs.all()) {
      // A teacher's output is stopped behind the norm, whose own gradient would go on to x.
      if (view_.op(output.y.node) == "StopGradient") continue;
      if (IsSettled(output.y.node) || !check.IsCandidate(output.y)) continue;
      ForwardMatch match;
      const bool fits = check.Fits(output, &match, reason);
      if (interpreter->restart()) return {};
      if (fits && !ReadsTooLate(match) && check.HoldsInEveryDraw(output)) {
        usable.push_back({output, match});
      }
    }
    LeaveToGradient(&usable);
    return Outermost(usable);
  }

  // The fused op reads x and the parameters where y is, not where the graph read them.
  bool ReadsTooLate(const ForwardMatch& match) const {
    const auto late = [&](TensorId tensor) {
      return tensor.valid() && RunsAfterAssignment(view_, match.y.node, tensor);
    };
    for (const Part& part : match.parts) {
      if (late(part.tensor)) return true;
    }
    return late(match.x) || late(match.gamma) || late(match.beta) || late(match.scale);
  }

  // Whether the node is settled already, or only a view of one that is.
  bool IsSettled(int node) const {
    while (settled_->count(node) == 0) {
      if (ClassOf(view_.op(node)) != OpClass::kView) return false;
      node = view_.inputs(node)[0].node;
    }
    return true;
  }

  // Where dy is 1 everywhere, xhat is summed to dgamma; that is the gradient's affair.
  void LeaveToGradient(std::vector<Candidate>* usable) const {
    const auto is_affine = [](const Candidate& each) {
      return each.first.gamma.valid() || each.first.beta.valid();
    };
    if (std::none_of(usable->begin(), usable->end(), is_affine)) return;
    const auto of_gradient = [&](const Candidate& each) {
      return !is_affine(each) && OnlySummed(each.first.y);
    };
    usable->erase(std::remove_if(usable->begin(), usable->end(), of_gradient), usable->end());
  }

  // Whether nobody reads a tensor but sums over it.
  bool OnlySummed(TensorId tensor) const {
    const auto& consumers = view_.consumers(tensor.node);
    return !keep_(tensor.node) && !consumers.empty() &&
           std::all_of(consumers.begin(), consumers.end(),
                       [&](const Consumer& c) { return SumsUp(view_.op(c.node)); });
  }

  // An output inside another's way from x is only a step of it.
  std::vector<ForwardMatch> Outermost(const std::vector<Candidate>& usable) {
    std::vector<ForwardMatch> matches;
    std::set<int> taken;
    for (size_t i = 0; i < usable.size(); ++i) {
      const int node = usable[i].second.y.node;
      bool inner = false;
      for (size_t j = 0; j < usable.size(); ++j) {
        if (i == j) continue;
        const ForwardMatch& other = usable[j].second;
        const int base = BaseOf(node, other.core);
        inner = inner || (base != other.y.node && Contains(other.core, base));
      }
      if (inner || settled_->count(node) > 0) {
        settled_->insert(node);
      } else if (taken.insert(node).second) {
        matches.push_back(usable[i].second);
        for (int step : matches.back().core) {
          if (step != node) settled_->insert(step);
        }
      }
    }
    return matches;
  }

  // The node itself, or, for a view of an inner value that someone else reads, what it views.
  int BaseOf(int node, const std::vector<int>& core) const {
    int base = node;
    while (ClassOf(view_.op(base)) == OpClass::kView && view_.inputs(base)[0] != statistics_.x &&
           !Contains(core, base)) {
      base = view_.inputs(base)[0].node;
    }
    return base;
  }

  const GraphView& view_;
  const Shapes& shapes_;
  const Statistics& statistics_;
  const std::function<bool(int)>& keep_;
  const bool open_samples_;
  std::set<int>* settled_;
  Scene scene_;
  Axes axes_;
};

}  // namespace

std::vector<ForwardMatch> FindForward(const GraphView& view, const Shapes& shapes,
                                      const Statistics& statistics,
                                      const std::function<bool(int)>& keep, bool open_samples,
                                      std::set<int>* settled, Reason* reason) {
  return ForwardSearch(view, shapes, statistics, keep, open_samples, settled).Run(reason);
}

}  // namespace nv_norms
