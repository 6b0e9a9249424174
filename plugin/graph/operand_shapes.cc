#include "plugin/graph/operand_shapes.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "plugin/graph/constants.h"
#include "plugin/graph/shape_ops.h"
#include "plugin/graph/shape_rules.h"

namespace nv_norms {
namespace {

constexpr int kMaxOperandDepth = 12;   // from a shape to the Shape op that it comes from
constexpr size_t kMaxKnownSizes = 16;  // more axes than any tensor has here
constexpr int64_t kMostFactor = int64_t{1} << 31;  // a product of two has 63 bits

// The integers of a scalar or a vector, -1 for those that are not known.
using KnownSizes = std::optional<std::vector<int64_t>>;

class OperandReader {
 public:
  OperandReader(const GraphView& view, Shapes* shapes) : view_(view), shapes_(shapes) {}

  // Each node after its inputs.
  void Run() {
    std::vector<std::pair<int, int>> nodes;
    for (int node = 0; node < view_.num_nodes(); ++node) {
      if (view_.alive(node)) nodes.emplace_back(view_.order(node), node);
    }
    std::sort(nodes.begin(), nodes.end());
    for (const auto& [order, node] : nodes) Learn(node);
  }

 private:
  // The slot of an op's shape operand, and how many sizes it must tell where it may tell fewer: a
  // transposed convolution may be told those of its image alone.
  struct ShapeOperand {
    int slot;
    size_t rank = 0;  // as many as it tells
  };

  // Null if the op has none. Slice is told the sizes, too, or -1 for all that is left.
  const ShapeOperand* OperandOf(int node) const {
    static const auto* const kOperands = new std::unordered_map<std::string, ShapeOperand>{
        {"Reshape", {1}},
        {"Slice", {2}},
        {"AvgPoolGrad", {0}},
        {"AvgPool3DGrad", {0}},
        {"Conv2DBackpropInput", {0, 4}},
        {"Conv3DBackpropInputV2", {0, 5}},
        {"DepthwiseConv2dNativeBackpropInput", {0, 4}},
        {"StridedSliceGrad", {0}}};
    const auto found = kOperands->find(view_.op(node));
    return found == kOperands->end() ? nullptr : &found->second;
  }

  // Those that SizesOfOutput tells the sizes of.
  int OutputsOf(int node) const {
    return static_cast<int>(view_.GetInt(node, "num_split", 1));  // Split and SplitV have it
  }

  void Learn(int node) {
    const TensorInfo& first = shapes_->Get({node, 0});
    // A comparison tells what a choice by it is of.
    if (!IsFloat(first.dtype) && first.dtype != tensorflow::DT_BOOL) return;
    if (IsKnown(first)) return;
    const KnownSizes sizes = SizesOfOutput(node);
    if (!sizes || sizes->size() > kMaxKnownSizes) return;
    for (int port = 0; port < OutputsOf(node); ++port) Learn({node, port}, *sizes);
    if (view_.op(node) == "Reshape") LearnFromCount(node);
  }

  // A Reshape keeps the number of elements: where all other sizes are in both shapes, the one that
  // is left in each is one, or a number.
  void LearnFromCount(int node) {
    const std::vector<TensorId>& inputs = view_.inputs(node);
    const TensorInfo& from = shapes_->Get(inputs[0]);
    const TensorInfo& to = shapes_->Get({node, 0});
    if (!from.rank_known || !to.rank_known) return;
    MarkNonzero(inputs[1].node, to.dims);
    int64_t known[] = {1, 1};
    std::vector<int64_t> rest = to.dims;
    std::vector<int64_t> unknown[2];
    for (int64_t size : from.dims) {
      const auto same = std::find(rest.begin(), rest.end(), size);
      const bool cancels = size > 0 || nonzero_.count(size) > 0;
      if (same != rest.end() && cancels) {
        rest.erase(same);
      } else if (!Multiply(size, &known[0], &unknown[0])) {
        return;
      }
    }
    for (int64_t size : rest) {
      if (!Multiply(size, &known[1], &unknown[1])) return;
    }
    if (unknown[0].size() > 1 || unknown[1].size() > 1) return;
    if (unknown[0].size() == 1 && unknown[1].size() == 1) {
      if (known[0] == known[1]) shapes_->Equate(unknown[0][0], unknown[1][0]);
      return;
    }
    const int with = unknown[0].empty() ? 1 : 0;
    if (unknown[with].empty() || known[1 - with] % known[with] != 0) return;
    shapes_->Equate(unknown[with][0], known[1 - with] / known[with]);
  }

  // False where nothing follows: of a size that has no name, of no elements, and of too many.
  static bool Multiply(int64_t size, int64_t* known, std::vector<int64_t>* unknown) {
    if (size == -1 || size == 0 || size >= kMostFactor || *known >= kMostFactor) return false;
    if (size > 0) {
      *known *= size;
    } else {
      unknown->push_back(size);
    }
    return true;
  }

  // Where a Reshape is to find one size, it fails if another one is 0.
  void MarkNonzero(int shape, const std::vector<int64_t>& sizes) {
    for (size_t i = 0; i < sizes.size(); ++i) {
      const auto entry = IntRow(view_, shape, i, sizes.size());
      if (!entry || *entry != std::vector<int64_t>{-1}) continue;
      for (size_t other = 0; other < sizes.size(); ++other) {
        if (other != i && sizes[other] < -1) nonzero_.insert(sizes[other]);
      }
      return;
    }
  }

  void Learn(TensorId tensor, const std::vector<int64_t>& sizes) {
    TensorInfo info = shapes_->Get(tensor);
    if (info.rank_known && info.dims.size() != sizes.size()) return;
    if (!info.rank_known) info.dims.assign(sizes.size(), -1);
    info.rank_known = true;
    for (size_t i = 0; i < sizes.size(); ++i) {
      int64_t& size = info.dims[i];
      if (size < -1 && sizes[i] < -1) {
        shapes_->Equate(size, sizes[i]);
      } else if (size < 0 && sizes[i] != -1) {
        size = sizes[i];
      }
    }
    shapes_->SetOutput(tensor, info);
  }

  KnownSizes SizesOfOutput(int node) const {
    const ShapeOperand* operand = OperandOf(node);
    if (operand == nullptr) return ShapeFromInputs(view_, *shapes_, node);
    KnownSizes sizes = Entries(view_.inputs(node)[operand->slot], 0);
    if (sizes && operand->rank > 0 && sizes->size() != operand->rank) return std::nullopt;
    if (sizes && view_.op(node) == "Slice") TakeRest(node, &*sizes);
    return sizes;
  }

  // All that is left, where a Slice begins at 0 and is told the size -1.
  void TakeRest(int node, std::vector<int64_t>* sizes) const {
    const std::vector<TensorId>& inputs = view_.inputs(node);
    const TensorInfo& from = shapes_->Get(inputs[0]);
    const auto is = [&](int slot, size_t axis, int64_t value) {
      const auto entry = IntRow(view_, inputs[slot].node, axis, sizes->size());
      return entry && *entry == std::vector<int64_t>{value};
    };
    if (!from.rank_known || from.dims.size() != sizes->size()) return;
    for (size_t i = 0; i < sizes->size(); ++i) {
      if (is(1, i, 0) && is(2, i, -1)) (*sizes)[i] = from.dims[i];
    }
  }

  // What is known of integers that the graph computes; nullopt where not even their number is.
  KnownSizes Entries(TensorId tensor, int depth) const {
    const TensorInfo& info = shapes_->Get(tensor);
    if (!info.rank_known || info.dims.size() > 1) return std::nullopt;
    if (depth < kMaxOperandDepth) {
      if (const KnownSizes sizes = EntriesOfNode(tensor, depth + 1)) return sizes;
    }
    const int64_t count = info.dims.empty() ? 1 : info.dims[0];
    if (count < 0 || count > static_cast<int64_t>(kMaxKnownSizes)) return std::nullopt;
    return std::vector<int64_t>(count, -1);
  }

  KnownSizes EntriesOfNode(TensorId tensor, int depth) const {
    const int node = tensor.node;
    const std::string& op = view_.op(node);
    const std::vector<TensorId>& inputs = view_.inputs(node);
    if (op == "Const") {
      const auto constant = IntConstant(view_, node);
      return constant ? KnownSizes(constant->values) : std::nullopt;
    }
    if (op == "Shape" || op == "ShapeN") {
      const TensorInfo& info = shapes_->Get(inputs[tensor.port]);
      return info.rank_known ? KnownSizes(info.dims) : std::nullopt;
    }
    if (op == "Identity" || op == "Snapshot" || op == "Cast" || op == "ExpandDims") {
      return Entries(inputs[0], depth);
    }
    if (op == "Pack" && view_.GetInt(node, "axis", 0) == 0) return Joined(inputs, depth);
    if (op == "ConcatV2") {  // of vectors: there is one axis
      return Joined({inputs.begin(), inputs.end() - 1}, depth);
    }
    if (op == "GatherV2") return Gathered(inputs, depth);
    if (op == "StridedSlice") return Sliced(node, depth);
    if (op == "DataFormatVecPermute") return InOtherFormat(node, depth);
    if (const Arithmetic compute = ArithmeticOf(op)) return Computed(inputs, compute, depth);
    return std::nullopt;
  }

  using Arithmetic = int64_t (*)(int64_t, int64_t);

  // Null if the op is none that computes sizes from sizes.
  static Arithmetic ArithmeticOf(const std::string& op) {
    if (op == "AddV2") return [](int64_t a, int64_t b) { return a + b; };
    if (op == "Sub") return [](int64_t a, int64_t b) { return a - b; };
    if (op == "Mul") return [](int64_t a, int64_t b) { return a * b; };
    if (op == "FloorDiv") return [](int64_t a, int64_t b) { return b == 0 ? -1 : a / b; };
    return nullptr;
  }

  // Number by number, or one with each: the channels of a group, as channels / groups.
  KnownSizes Computed(const std::vector<TensorId>& inputs, Arithmetic compute, int depth) const {
    const KnownSizes a = Entries(inputs[0], depth);
    const KnownSizes b = Entries(inputs[1], depth);
    if (!a || !b || (a->size() != b->size() && a->size() != 1 && b->size() != 1)) {
      return std::nullopt;
    }
    std::vector<int64_t> sizes(a->size() == 1 ? b->size() : a->size(), -1);
    for (size_t i = 0; i < sizes.size(); ++i) {
      const int64_t left = (*a)[a->size() == 1 ? 0 : i], right = (*b)[b->size() == 1 ? 0 : i];
      const bool known = left >= 0 && right >= 0 && left < kMostFactor && right < kMostFactor;
      if (known) sizes[i] = std::max(compute(left, right), int64_t{-1});
    }
    return sizes;
  }

  // What TensorFlow's layout pass puts before a transposed convolution.
  KnownSizes InOtherFormat(int node, int depth) const {
    const KnownSizes sizes = Entries(view_.inputs(node)[0], depth);
    const auto order = OrderOfFormats(view_, node);
    return sizes && order ? Permuted(*sizes, *order) : std::nullopt;
  }

  KnownSizes Joined(const std::vector<TensorId>& parts, int depth) const {
    std::vector<int64_t> all;
    for (const TensorId& part : parts) {
      const KnownSizes sizes = Entries(part, depth);
      if (!sizes || all.size() + sizes->size() > kMaxKnownSizes) return std::nullopt;
      all.insert(all.end(), sizes->begin(), sizes->end());
    }
    return all;
  }

  KnownSizes Gathered(const std::vector<TensorId>& inputs, int depth) const {
    if (inputs.size() != 3 || shapes_->Get(inputs[0]).dims.size() != 1) return std::nullopt;
    const KnownSizes from = Entries(inputs[0], depth);
    const auto places = IntConstant(view_, inputs[1].node);
    if (!from || !places) return std::nullopt;
    std::vector<int64_t> sizes;
    for (int64_t at : places->values) {
      if (at < 0 || at >= static_cast<int64_t>(from->size())) return std::nullopt;
      sizes.push_back((*from)[at]);
    }
    return sizes;
  }

  // A part of a vector, in steps of one.
  KnownSizes Sliced(int node, int depth) const {
    const std::vector<TensorId>& inputs = view_.inputs(node);
    const KnownSizes from = Entries(inputs[0], depth);
    const auto begin = IntConstant(view_, inputs[1].node);
    const auto end = IntConstant(view_, inputs[2].node);
    const auto step = IntConstant(view_, inputs[3].node);
    if (!from || !begin || !end || !step || begin->values.size() != 1 || end->values.size() != 1 ||
        step->values != std::vector<int64_t>{1}) {
      return std::nullopt;
    }
    const auto slice = SliceOfVector(view_, node, begin->values[0], end->values[0],
                                     static_cast<int64_t>(from->size()));
    if (!slice) return std::nullopt;
    return std::vector<int64_t>(from->begin() + slice->first, from->begin() + slice->last);
  }

  const GraphView& view_;
  Shapes* shapes_;
  std::set<int64_t> nonzero_;  // unknown sizes with which the graph fails where they are 0
};

}  // namespace

void LearnFromShapeOperands(const GraphView& view, Shapes* shapes) {
  OperandReader(view, shapes).Run();
}

}  // namespace nv_norms
