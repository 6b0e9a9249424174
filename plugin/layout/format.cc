#include "plugin/layout/format.h"

#include <algorithm>

#include "plugin/graph/constants.h"
#include "plugin/recognizer/ops.h"

namespace nv_norms {

std::string FormatName(Format format, int rank) {
  const std::string space = rank == 5 ? "DHW" : rank == 4 ? "HW" : "W";
  return format == Format::kLast ? "N" + space + "C" : "NC" + space;
}

std::vector<int> PermutationTo(Format to, int rank) {
  std::vector<int> permutation = {0};
  if (to == Format::kFirst) permutation.push_back(rank - 1);
  for (int i = 1; i < rank - 1; ++i) permutation.push_back(to == Format::kFirst ? i : i + 1);
  if (to == Format::kLast) permutation.push_back(1);
  return permutation;
}

int AxisIn(Format to, int rank, int axis) {
  const std::vector<int> permutation = PermutationTo(to, rank);
  return static_cast<int>(std::find(permutation.begin(), permutation.end(), axis) -
                          permutation.begin());
}

std::vector<int64_t> Permuted(const std::vector<int64_t>& of_axes, Format to) {
  std::vector<int64_t> result;
  for (int from : PermutationTo(to, static_cast<int>(of_axes.size()))) {
    result.push_back(of_axes[from]);
  }
  return result;
}

bool KeepsElementOrder(const std::vector<int64_t>& shape, Format to) {
  const size_t channel = to == Format::kFirst ? shape.size() - 1 : 1;
  if (shape[channel] == 1) return true;
  for (size_t i = 1; i < shape.size(); ++i) {
    if (i != channel && shape[i] != 1) return false;
  }
  return true;
}

bool WaitsForOthers(const GraphView& view, int node) {
  constexpr size_t kMaxNodes = 64;
  if (!view.control_inputs(node).empty()) return true;
  if (view.inputs(node).size() < 2) return false;
  const int from = view.inputs(node)[0].node;
  std::vector<int> behind = {view.inputs(node)[1].node};
  for (size_t i = 0; i < behind.size(); ++i) {
    if (i == kMaxNodes) return true;
    const int at = behind[i];
    const auto go_on = [&](int before, bool is_fed) {
      if (before == from) return i == 0;
      // What is in a loop waits for its condition.
      if (view.DependsOn(from, {before}) || IsSwitchOrMerge(view.op(before))) return true;
      if (!IsPure(view.op(before)) && !is_fed) return false;
      if (std::count(behind.begin(), behind.end(), before) == 0) behind.push_back(before);
      return true;
    };
    for (int control : view.control_inputs(at)) {
      if (!go_on(control, /*is_fed=*/false)) return true;
    }
    for (const TensorId& input : view.inputs(at)) {
      if (!go_on(input.node, view.IsArgument(input.node))) return true;
    }
  }
  return false;
}

namespace {

bool ChangesFormat(const GraphView& view, int node, bool of_vector, Format to, int rank) {
  if (of_vector) {
    return view.op(node) == "DataFormatVecPermute" &&
           view.GetString(node, "dst_format", "") == FormatName(to, rank) &&
           view.GetString(node, "src_format", "") == FormatName(Other(to), rank);
  }
  if (view.op(node) != "Transpose" || view.inputs(node).size() != 2) return false;
  const auto permutation = IntConstant(view, view.inputs(node)[1].node);
  if (!permutation || static_cast<int>(permutation->values.size()) != rank) return false;
  const std::vector<int> wanted = PermutationTo(to, rank);
  return std::equal(wanted.begin(), wanted.end(), permutation->values.begin());
}

}  // namespace

bool IsConversion(const GraphView& view, int node, bool of_vector, Format to, int rank) {
  // What it waits for is asked of few nodes, as the answer follows paths.
  return ChangesFormat(view, node, of_vector, to, rank) && !WaitsForOthers(view, node);
}

}  // namespace nv_norms
