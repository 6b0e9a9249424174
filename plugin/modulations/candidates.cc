#include "plugin/modulations/candidates.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "plugin/graph/fused_ops.h"
#include "plugin/recognizer/ops.h"
#include "plugin/recognizer/reach.h"

namespace nv_norms {
namespace {

bool IsSumOrProduct(const std::string& op) { return op == "AddV2" || op == "Add" || op == "Mul"; }

class Finder {
 public:
  Finder(const GraphView& view, const Shapes& shapes, const std::function<bool(int)>& keep)
      : view_(view), shapes_(shapes), keep_(keep) {}

  std::optional<ModulatedNorm> At(int norm) {
    if (!view_.alive(norm) || !IsFusedForward(view_.op(norm)) || !MayGo(norm) ||
        HasActivation(view_, norm) || view_.GetBool(norm, "per_sample", false)) {
      return std::nullopt;
    }
    const int64_t parameters =
        view_.GetInt(norm, "num_scale", 0) + view_.GetInt(norm, "num_offset", 0);
    if (parameters == 0 || static_cast<int64_t>(view_.inputs(norm).size()) != 1 + parameters) {
      return std::nullopt;
    }
    const auto of_sample = SampleParametersOf(view_, shapes_, norm);
    if (!of_sample) return std::nullopt;
    found_ = ModulatedNorm();
    found_.norm = norm;
    found_.parameters = *of_sample;
    if (!FollowY() || found_.result() < 0 || !FindGradients() || !FindScaleSums() || !MayMove()) {
      return std::nullopt;
    }
    return std::move(found_);
  }

 private:
  bool MayGo(int node) const { return !keep_(node) && !HasOwnGradient(view_, node); }

  bool IsBeside(int node) const {
    return view_.def(node).device() == view_.def(found_.norm).device();
  }

  TensorId x() const { return view_.inputs(found_.norm)[0]; }
  TensorId y() const { return {found_.norm, 0}; }

  // The other input of a sum or product of two.
  TensorId Other(const Consumer& c) const { return view_.inputs(c.node)[1 - c.slot]; }

  // Whether a sum or product with a scale or offset of each sample has y's shape.
  bool IsModulation(const Consumer& c) const {
    return IsSumOrProduct(view_.op(c.node)) && IsBeside(c.node) && !HasOwnGradient(view_, c.node) &&
           found_.parameters.Fit(shapes_.Get(Other(c))) &&
           found_.parameters.FitY(shapes_.Get({c.node, 0}));
  }

  // Whether y is read by what modulates it and by its gradients' products with dy.
  bool FollowY() {
    for (const Consumer& c : view_.consumers(y())) {
      if (!view_.live(c.node)) continue;
      const std::string& op = view_.op(c.node);
      if (ReadsShape(op)) {
        found_.shapes.push_back(c.node);
      } else if (IsModulation(c)) {
        if (found_.result() >= 0) return false;
        (op == "Mul" ? found_.product : found_.sum) = c.node;
        (op == "Mul" ? found_.scale : found_.offset) = Other(c);
      } else if (op == "Mul" && MayGo(c.node) && view_.control_consumers(c.node).empty()) {
        dy_of_products_.emplace_back(c.node, Other(c));
      } else {
        return false;
      }
    }
    if (found_.product >= 0) FollowProduct();
    return true;
  }

  // An offset behind the scale, if nothing else reads what that gave.
  void FollowProduct() {
    const Consumer* sum = nullptr;
    std::vector<int> shapes;
    for (const Consumer& c : view_.consumers(found_.product)) {
      if (!view_.live(c.node)) continue;
      const std::string& op = view_.op(c.node);
      if (op == "Shape" && view_.GetType(c.node, "out_type") == tensorflow::DT_INT32) {
        shapes.push_back(c.node);
      } else if (sum == nullptr && op != "Mul" && IsModulation(c)) {
        sum = &c;
      } else {
        return;
      }
    }
    if (sum == nullptr || !MayGo(found_.product)) return;
    found_.sum = sum->node;
    found_.offset = Other(*sum);
    found_.product_shapes = std::move(shapes);
  }

  // Whether all who read the norm's statistics are its gradients, each of a dy * scale; adds them.
  bool FindGradients() {
    std::set<int> seen;
    for (const Consumer& c : view_.consumers(found_.norm)) {
      if (c.port == 0 || !view_.live(c.node) || !seen.insert(c.node).second) continue;
      if (keep_(c.node) || !IsGradientOf(view_, c.node, found_.norm)) return false;
      const TensorId of_y = view_.inputs(c.node)[0];
      ModulatedGradient gradient;
      gradient.gradient = c.node;
      const auto of_product = BeforeScale(of_y, &gradient.way);
      if (!of_product) return false;
      gradient.dy = BeforeOffset(*of_product, &gradient.way);
      if (!found_.parameters.FitY(shapes_.Get(gradient.dy))) return false;
      const TensorId key = BehindIdentities(*of_product);
      if (!gradient_of_product_.insert({key, found_.gradients.size()}).second) return false;
      AddOffsetSums(&gradient);
      found_.gradients.push_back(gradient);
    }
    return true;
  }

  // The gradient of y * scale, given that of y.
  std::optional<TensorId> BeforeScale(TensorId of_y, std::vector<int>* way) const {
    if (!found_.scale.valid()) return of_y;
    const SampleSums sums(view_, shapes_, found_.parameters);
    const TensorId product = sums.BeforeUndoing(of_y, found_.scale, {x(), y()}, way);
    way->push_back(product.node);
    if (view_.op(product.node) != "Mul" || HasOwnGradient(view_, product.node)) return std::nullopt;
    const auto& factors = view_.inputs(product.node);
    for (const int i : {0, 1}) {
      if (factors[i] == found_.scale) return factors[1 - i];
    }
    return std::nullopt;
  }

  TensorId BehindIdentities(TensorId tensor) const {
    while (view_.op(tensor.node) == "Identity") tensor = view_.inputs(tensor.node)[0];
    return tensor;
  }

  std::set<TensorId> LikesOfOffset() const {
    if (found_.product < 0) return {x(), y()};
    return {TensorId{found_.product, 0}};
  }

  TensorId BeforeOffset(TensorId of_product, std::vector<int>* way) const {
    if (!found_.offset.valid()) return of_product;
    return SampleSums(view_, shapes_, found_.parameters)
        .BeforeUndoing(of_product, found_.offset, LikesOfOffset(), way);
  }

  void AddOffsetSums(ModulatedGradient* gradient) const {
    if (found_.offset.valid()) AddOffsetSums(BehindIdentities(gradient->dy), gradient);
  }

  void AddOffsetSums(TensorId dy, ModulatedGradient* gradient) const {
    const SampleSums sums(view_, shapes_, found_.parameters);
    for (const Consumer& c : view_.consumers(dy)) {
      if (!view_.live(c.node) || c.slot != 0) continue;
      if (view_.op(c.node) == "Identity") AddOffsetSums(TensorId{c.node, 0}, gradient);
      for (SampleSum& sum : sums.Behind(c.node, found_.offset, LikesOfOffset())) {
        gradient->offset_sums.push_back(std::move(sum));
      }
    }
  }

  // Whether what y is multiplied with beside the scale is the dy of one of the gradients, and
  // nothing but the scale's gradient comes of it; adds that.
  bool FindScaleSums() {
    const SampleSums sums(view_, shapes_, found_.parameters);
    for (const auto& [product, dy] : dy_of_products_) {
      const auto at = gradient_of_product_.find(BehindIdentities(dy));
      if (!found_.scale.valid() || at == gradient_of_product_.end()) return false;
      for (const Consumer& c : view_.consumers(product)) {
        if (!view_.live(c.node)) continue;
        if (c.slot != 0) return false;
        const auto behind = sums.Behind(c.node, found_.scale, {x(), y()});
        if (behind.empty()) return false;
        auto& all = found_.gradients[at->second].scale_sums;
        all.insert(all.end(), behind.begin(), behind.end());
      }
      found_.dy_products.push_back(product);
    }
    return true;
  }

  // Whether the norm may run where the modulation does. In a branch or a loop, what a node waits
  // for may keep it from running.
  bool MayMove() const {
    const auto& waits = view_.control_inputs(found_.norm);
    for (const int node : {found_.product, found_.sum}) {
      if (node < 0) continue;
      for (const int control : view_.control_inputs(node)) {
        if (std::find(waits.begin(), waits.end(), control) == waits.end()) return false;
      }
    }
    for (const TensorId& parameter : {found_.scale, found_.offset}) {
      if (parameter.valid() && view_.DependsOn(parameter.node, {found_.norm})) return false;
    }
    // A reference is read where its reader runs; the scale's gradient is to read beta.
    for (const TensorId& input : view_.inputs(found_.norm)) {
      if (RunsAfterAssignment(view_, found_.result(), input)) return false;
      if (!found_.gradients.empty() && IsReference(view_, input)) return false;
    }
    return true;
  }

  const GraphView& view_;
  const Shapes& shapes_;
  const std::function<bool(int)>& keep_;
  ModulatedNorm found_;
  std::vector<std::pair<int, TensorId>> dy_of_products_;  // products of y, and the other factor
  std::map<TensorId, size_t> gradient_of_product_;        // gradients of y * scale, to found_'s
};

}  // namespace

std::optional<ModulatedNorm> FindModulation(const GraphView& view, const Shapes& shapes, int norm,
                                            const std::function<bool(int)>& keep) {
  return Finder(view, shapes, keep).At(norm);
}

}  // namespace nv_norms
