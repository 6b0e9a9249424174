#include "plugin/records_of.h"

#include <algorithm>
#include <string>

namespace nv_norms {
namespace {

// Whether a fused op is the one that a record names by an output, or beside it: then it has that
// name and its op's.
bool IsOfOutput(const GraphView& view, int fused, const std::string& output) {
  const std::string name = output.substr(0, output.rfind(':'));
  return view.name(fused) == name || view.name(fused).rfind(name + "/" + view.op(fused), 0) == 0;
}

}  // namespace

void ForRecordsOf(const GraphView& view, int norm, const std::vector<int>& gradients,
                  std::vector<Record>* records, const std::function<void(Record*)>& forward,
                  const std::function<void(Record*, int)>& backward) {
  for (Record& record : *records) {
    const std::vector<std::string>& outputs = record.outputs;
    if (record.reason != Reason::kNone || outputs.empty()) continue;
    if (record.direction == "forward") {
      if (IsOfOutput(view, norm, outputs[0])) forward(&record);
    } else if (record.direction == "backward") {
      for (int gradient : gradients) {
        const auto is_of = [&](const auto& output) { return IsOfOutput(view, gradient, output); };
        if (std::any_of(outputs.begin(), outputs.end(), is_of)) backward(&record, gradient);
      }
    }
  }
}

}  // namespace nv_norms
