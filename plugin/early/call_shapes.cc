#include "plugin/early/call_shapes.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "plugin/graph/constants.h"
#include "plugin/graph/devices.h"
#include "tensorflow/core/common_runtime/shape_refiner.h"
#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/graph/algorithm.h"
#include "tensorflow/core/graph/node_builder.h"

namespace nv_norms {
namespace {

using tensorflow::Edge;
using tensorflow::Node;

// Whether Grappler leaves the call as it is, on a device that has an EnsureShape.
bool StaysCall(const tensorflow::FunctionLibraryDefinition& library, const Node& node) {
  const std::string& device = node.assigned_device_name();
  if (!node.IsPartitionedCall() || !(OnDevice(device, "CPU") || OnDevice(device, "GPU"))) {
    return false;
  }
  const tensorflow::AttrValue* const called = node.attrs().Find("f");
  if (called == nullptr) return false;
  const tensorflow::FunctionDef* const function = library.Find(called->func().name());
  if (function == nullptr) return false;
  const auto is_set = [&](const char* name) {
    const auto found = function->attr().find(name);
    return found != function->attr().end() && found->second.b();
  };
  return is_set("_XlaMustCompile") || is_set("_noinline");
}

// Has the ops that read an output of a call read it behind an EnsureShape, other calls excepted:
// what a forward hands to its gradient is for nobody else.
bool Tell(const tensorflow::PartialTensorShape& shape, Node* call, int output,
          tensorflow::Graph* graph) {
  std::vector<std::pair<Node*, int>> readers;
  for (const Edge* edge : call->out_edges()) {
    Node* const reader = edge->dst();
    if (edge->src_output() == output && reader->IsOp() && !reader->IsRetval() &&
        !reader->IsPartitionedCall()) {
      readers.emplace_back(reader, edge->dst_input());
    }
  }
  if (readers.empty()) return false;
  Node* told = nullptr;
  const std::string name = graph->NewName(absl::StrCat(call->name(), "/nv_norms_shape"));
  const absl::Status made = tensorflow::NodeBuilder(name, "EnsureShape")
                                .Input(call, output)
                                .Attr("shape", shape)
                                .Device(call->requested_device())
                                .Finalize(graph, &told);
  if (!made.ok()) return false;
  told->set_assigned_device_name(call->assigned_device_name());
  for (const auto& [reader, input] : readers) {
    if (!graph->UpdateEdge(told, 0, reader, input).ok()) return false;
  }
  return true;
}

}  // namespace

int TellShapesOfCalls(const tensorflow::FunctionLibraryDefinition& library,
                      tensorflow::Graph* graph) {
  std::vector<Node*> calls;
  for (Node* node : graph->op_nodes()) {
    if (StaysCall(library, *node)) calls.push_back(node);
  }
  if (calls.empty()) return 0;
  tensorflow::ShapeRefiner refiner(graph->versions(), graph->op_registry());
  refiner.set_require_shape_inference_fns(false);
  refiner.set_function_library_for_shape_inference(&library);
  std::vector<Node*> order;
  GetReversePostOrder(*graph, &order, tensorflow::NodeComparatorID());
  for (const Node* node : order) {
    // Of what it does not understand nothing is known, nor of what reads that.
    if (node->IsOp()) refiner.AddNode(node).IgnoreError();
  }
  int told = 0;
  for (Node* call : calls) {
    tensorflow::shape_inference::InferenceContext* const known = refiner.GetContext(call);
    if (known == nullptr) continue;
    for (int output = 0; output < call->num_outputs(); ++output) {
      const auto shape = known->output(output);
      if (!IsFloat(call->output_type(output)) || !known->RankKnown(shape)) continue;
      std::vector<int64_t> sizes;
      for (int i = 0; i < known->Rank(shape); ++i) {
        sizes.push_back(std::max<int64_t>(-1, known->Value(known->Dim(shape, i))));
      }
      if (Tell(tensorflow::PartialTensorShape(sizes), call, output, graph)) ++told;
    }
  }
  return told;
}

}  // namespace nv_norms
