#ifndef NV_NORMS_PLUGIN_RECORDS_OF_H_
#define NV_NORMS_PLUGIN_RECORDS_OF_H_

#include <functional>
#include <vector>

#include "plugin/graph/view.h"
#include "plugin/report.h"

namespace nv_norms {

// The records of a fused norm and of its fused gradients: calls `forward` with each of the norm's,
// and `backward` with each of a gradient's and that gradient.
void ForRecordsOf(const GraphView& view, int norm, const std::vector<int>& gradients,
                  std::vector<Record>* records, const std::function<void(Record*)>& forward,
                  const std::function<void(Record*, int)>& backward);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_RECORDS_OF_H_
