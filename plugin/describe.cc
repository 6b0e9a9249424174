#include "plugin/describe.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "plugin/recognizer/likely_kind.h"
#include "tensorflow/core/framework/types.h"

namespace nv_norms {
namespace {

using Labelled = std::pair<const char*, TensorId>;

// " label=name" for each tensor that is there; their names also go into `names`.
std::string Listed(const GraphView& view, const std::vector<Labelled>& tensors,
                   std::vector<std::string>* names) {
  std::string text;
  for (const auto& [label, tensor] : tensors) {
    if (!tensor.valid()) continue;
    names->push_back(view.name(tensor));
    absl::StrAppend(&text, " ", label, "=", view.name(tensor));
  }
  return text;
}

}  // namespace

Described Describer::Forward(const ForwardMatch& match) const {
  Described norm{Common(match)};
  norm.tensors = Listed(view_, {{"x", match.x}, {"gamma", match.gamma}, {"beta", match.beta}},
                        &norm.record.inputs);
  norm.record.outputs = {view_.name(match.y)};
  return norm;
}

Described Describer::Backward(const ForwardMatch& match, const BackwardMatch& gradient) const {
  Described norm{Common(match)};
  norm.record.direction = "backward";
  norm.record.stops_gradient = gradient.stops_gradient;
  norm.record.leaves_dx = LeavesDx(view_, match, gradient);
  norm.tensors =
      Listed(view_, {{"dy", gradient.dy}, {"x", match.x}, {"gamma", gradient.gamma}},
             &norm.record.inputs) +
      Listed(view_, {{"dx", gradient.dx}, {"dgamma", gradient.dgamma}, {"dbeta", gradient.dbeta}},
             &norm.record.outputs);
  return norm;
}

Record Describer::LeftBackward(const ForwardMatch& match) const {
  Record record = Common(match);
  record.direction = "backward";
  Listed(view_, {{"x", match.x}, {"gamma", match.gamma}}, &record.inputs);
  record.outputs = {view_.name(match.statistics.anchor.node)};
  return record;
}

Record Describer::Left(int anchor, const std::vector<Statistics>& meanings, Reason reason) const {
  Record record;
  record.kind = LikelyKind(view_, shapes_, meanings);
  record.reason = reason;
  record.outputs = {view_.name(anchor)};
  if (!meanings.empty()) {
    record.inputs = {view_.name(meanings[0].x)};
    record.epsilon = meanings[0].epsilon;
    record.dtype = tensorflow::DataTypeString(shapes_.Get(meanings[0].x).dtype);
  }
  record.device = view_.def(anchor).device();
  record.graph = graph_name_;
  return record;
}

Record Describer::Common(const ForwardMatch& match) const {
  Record record;
  record.kind = KindName(match.problem.kind);
  record.axes = match.problem.axes;
  record.epsilon = match.statistics.epsilon;
  record.dtype = tensorflow::DataTypeString(shapes_.Get(match.x).dtype);
  record.device = view_.def(match.y.node).device();
  record.graph = graph_name_;
  record.goes_on = match.goes_on();
  return record;
}

std::string DescribeAttributes(const ForwardMatch& match) {
  const int64_t groups = match.problem.groups;
  return absl::StrCat(" epsilon=", match.statistics.epsilon, " axes=[",
                      absl::StrJoin(match.problem.axes, ","), "]",
                      groups > 0 ? absl::StrCat(" groups=", groups) : "");
}

}  // namespace nv_norms
