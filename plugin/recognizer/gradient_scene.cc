#include "plugin/recognizer/gradient_scene.h"

#include <algorithm>
#include <unordered_map>

#include "plugin/graph/constants.h"
#include "plugin/recognizer/ops.h"
#include "plugin/recognizer/reach.h"
#include "plugin/recognizer/roundings.h"

namespace nv_norms {
namespace {

constexpr int kMaxDescendants = 120;  // of dy: a gradient has up to 80 nodes, then the next begins
constexpr int kHopsFromX = 6;

class SceneBuilder {
 public:
  SceneBuilder(const GraphView& view, const Shapes& shapes, const ForwardMatch& forward)
      : view_(view), forward_(forward), roundings_(view, shapes, forward.statistics) {
    built_.scene = SceneAround(view, shapes, forward.statistics);
  }

  GradientScene Build(const TriedDy& tried) && {
    scene_.dy = tried.dy;
    scene_.dy_like = tried.like;
    LookBeforeTranspose();
    built_.from_dy =
        Dependents(view_, scene_.before_dy.valid() ? scene_.before_dy : tried.dy, kMaxDescendants);
    scene_.dependents = built_.from_dy;
    scene_.dependents.insert(forward_.core.begin(), forward_.core.end());
    for (const Part& factor : tried.factors) LookBehindTranspose(factor.tensor);
    for (int node : built_.from_dy) {
      for (const TensorId& input : view_.inputs(node)) FollowIfOurs(input, kHopsFromX);
    }
    return std::move(built_);
  }

 private:
  // TensorFlow's layout pass transposes dy once for each of its readers.
  void LookBeforeTranspose() {
    const int node = scene_.dy.node;
    if (view_.op(node) != "Transpose") return;
    const auto order = IntConstant(view_, view_.inputs(node)[1].node);
    if (!order) return;
    std::vector<int64_t> sorted = order->values;
    std::sort(sorted.begin(), sorted.end());
    for (size_t i = 0; i < sorted.size(); ++i) {
      if (sorted[i] != static_cast<int64_t>(i)) return;
    }
    scene_.before_dy = view_.inputs(node)[0];
    scene_.dy_order = order->values;
  }

  // And so a factor, of which the gradient reads what is not transposed, too.
  void LookBehindTranspose(TensorId factor) {
    while (view_.op(factor.node) == "Transpose") {
      scene_.dependents.insert(factor.node);
      factor = view_.inputs(factor.node)[0];
      if (view_.op(factor.node) != "Transpose") built_.sources.push_back(factor);
    }
  }

  // Nodes that lead from x, gamma or the forward to the gradient without passing dy: Sub(x, mean)
  // or Neg(gamma), say.
  bool FollowIfOurs(TensorId tensor, int hops) {
    const int node = tensor.node;
    const auto& sources = built_.sources;
    if (tensor == forward_.x || scene_.dependents.count(node) > 0) return true;
    if (tensor == forward_.gamma) return true;
    if (std::count(sources.begin(), sources.end(), tensor) > 0) return true;
    if (hops == 0 || !IsFollowed(view_, node) || roundings_.Has(node)) return false;
    const auto tried = not_ours_.find(node);
    if (tried != not_ours_.end() && tried->second >= hops) return false;
    bool ours = false;
    for (const TensorId& input : view_.inputs(node)) {
      ours = FollowIfOurs(input, hops - 1) || ours;
    }
    if (ours) {
      scene_.dependents.insert(node);
      not_ours_.clear();  // others may lead here
    } else {
      not_ours_[node] = hops;
    }
    return ours;
  }

  const GraphView& view_;
  const ForwardMatch& forward_;
  Roundings roundings_;
  std::unordered_map<int, int> not_ours_;  // within so many hops
  GradientScene built_;
  Scene& scene_ = built_.scene;
};

}  // namespace

GradientScene SceneOfGradient(const GraphView& view, const Shapes& shapes,
                              const ForwardMatch& forward, const TriedDy& tried) {
  return SceneBuilder(view, shapes, forward).Build(tried);
}

}  // namespace nv_norms
