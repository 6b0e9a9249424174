#include "plugin/recognizer/bags.h"

#include "plugin/recognizer/ops.h"

namespace nv_norms {
namespace {

constexpr size_t kMaxItems = 24;

void Flatten(const GraphView& view, int node, bool inverted, const MayOpen& open, bool product,
             std::vector<BagItem>* items) {
  const std::string& op = view.op(node);
  const auto& inputs = view.inputs(node);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool second_inverted = (op == "Sub" || op == "RealDiv") && i == 1;
    const bool flip = inverted != (second_inverted || op == "Neg");
    const std::string& inner = view.op(inputs[i].node);
    const bool same = product ? IsProduct(inner) : IsSum(inner) || inner == "Neg";
    if (same && items->size() < kMaxItems && open(inputs[i])) {
      Flatten(view, inputs[i].node, flip, open, product, items);
    } else {
      items->push_back({inputs[i], flip});
    }
  }
}

}  // namespace

std::vector<BagItem> Terms(const GraphView& view, int node, const MayOpen& open) {
  std::vector<BagItem> items;
  Flatten(view, node, false, open, /*product=*/false, &items);
  return items;
}

std::vector<BagItem> Factors(const GraphView& view, int node, const MayOpen& open) {
  std::vector<BagItem> items;
  Flatten(view, node, false, open, /*product=*/true, &items);
  return items;
}

}  // namespace nv_norms
