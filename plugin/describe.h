// What the report and the log say of a norm, in the names that the graph has before it is changed.
#ifndef NV_NORMS_PLUGIN_DESCRIBE_H_
#define NV_NORMS_PLUGIN_DESCRIBE_H_

#include <string>
#include <vector>

#include "plugin/graph/shapes.h"
#include "plugin/graph/view.h"
#include "plugin/recognizer/backward.h"
#include "plugin/recognizer/forward.h"
#include "plugin/recognizer/statistics.h"
#include "plugin/report.h"

namespace nv_norms {

struct Described {
  Record record;
  std::string tensors;  // " x=conv/Conv3D:0 gamma=norm/Reshape:0"
};

class Describer {
 public:
  Describer(const GraphView& view, const Shapes& shapes, const std::string& graph_name)
      : view_(view), shapes_(shapes), graph_name_(graph_name) {}

  Described Forward(const ForwardMatch& match) const;
  Described Backward(const ForwardMatch& match, const BackwardMatch& gradient) const;
  // A gradient of the match that stays as it is.
  Record LeftBackward(const ForwardMatch& match) const;
  // A root that stays; `meanings` may be empty.
  Record Left(int anchor, const std::vector<Statistics>& meanings, Reason reason) const;

 private:
  Record Common(const ForwardMatch& match) const;

  const GraphView& view_;
  const Shapes& shapes_;
  const std::string& graph_name_;
};

// " epsilon=0.001 axes=[1,2] groups=32"
std::string DescribeAttributes(const ForwardMatch& match);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_DESCRIBE_H_
