#include "plugin/recognizer/roundings.h"

#include "plugin/graph/constants.h"
#include "plugin/recognizer/reach.h"

namespace nv_norms {
namespace {

constexpr int kMaxNormalized = 400;  // as many as lead from x

}  // namespace

Roundings::Roundings(const GraphView& view, const Shapes& shapes, const Statistics& statistics)
    : view_(view), dtype_(shapes.Get(statistics.x).dtype), anchor_(statistics.anchor) {}

bool Roundings::Has(int node) {
  if (!IsRoundingOf(view_, node, dtype_)) return false;
  if (!normalized_) normalized_ = Dependents(view_, anchor_, kMaxNormalized);
  return normalized_->count(node) == 0;
}

}  // namespace nv_norms
