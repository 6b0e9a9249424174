#include "plugin/recognizer/axes_order.h"

#include <algorithm>

namespace nv_norms {

std::vector<int64_t> OrderOfAxes(const Dims& from, const Dims& to) {
  std::vector<int64_t> order;
  if (from.size() != to.size()) return order;
  for (const Dim& dim : to) {
    size_t at = 0;  // of dimensions of size 1 the first that is left
    while (at < from.size() &&
           (from[at] != dim || std::count(order.begin(), order.end(), at) > 0)) {
      ++at;
    }
    if (at == from.size()) return {};
    order.push_back(static_cast<int64_t>(at));
  }
  return order;
}

Dims InOrder(const Dims& dims, const std::vector<int64_t>& order) {
  if (order.empty()) return dims;
  Dims ordered;
  for (int64_t at : order) ordered.push_back(dims[at]);
  return ordered;
}

}  // namespace nv_norms
