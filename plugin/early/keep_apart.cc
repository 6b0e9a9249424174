// TensorFlow's own remapper runs before any plugin. With oneDNN it makes ops out of normalizations
// that lose what they were: the epsilon, the axes of the variance, the shape that x was given; and
// out of graphs that are none. Nobody can tell afterwards. So this pass, which TensorFlow runs
// before Grappler, puts a Snapshot into each chain of ops that it would take. A Snapshot hands its
// buffer on; the recognizer looks through it, and where the chain is a normalization it goes with
// it. Where it is none, it stays, and so do TensorFlow's ops, which are right. What is changed is
// the graph that is about to run, never one that somebody could save. The pass also tells Grappler
// shapes that it would not know: see call_shapes.h.
//
// TF_CPP_VMODULE=keep_apart=2 shows a line for each.
#include <string>
#include <vector>

#include "plugin/early/body.h"
#include "plugin/early/call_shapes.h"
#include "plugin/early/chains.h"
#include "plugin/graph/devices.h"
#include "plugin/optimizer.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/platform/logging.h"
#include "tensorflow/core/protobuf/rewriter_config.pb.h"
#include "tensorflow/core/public/session_options.h"
#include "tensorflow/core/util/util.h"

namespace nv_norms {
namespace {

using tensorflow::RewriterConfig;

// Whether our plugin will run.
bool OursComes(const tensorflow::GraphOptimizationPassOptions& options) {
  if (!IsEnabled() || options.session_options == nullptr) return false;
  const auto& rewriter = options.session_options->config.graph_options().rewrite_options();
  return !rewriter.disable_meta_optimizer() &&
         rewriter.use_plugin_optimizers() != RewriterConfig::OFF;
}

// Whether TensorFlow's remapper will run before it.
bool RemapperComesFirst(const tensorflow::GraphOptimizationPassOptions& options) {
  const auto& rewriter = options.session_options->config.graph_options().rewrite_options();
  return tensorflow::IsMKLEnabled() && rewriter.remapping() != RewriterConfig::OFF;
}

bool IsOurs(const std::string& device) {
  for (const char* type : {"CPU", "GPU"}) {
    if (OnDevice(device, type) && IsRegisteredFor(type)) return true;
  }
  return false;
}

int KeepApart(const std::string& name, bool pruned, Body* body) {
  int kept = 0;
  for (const Link& link : LinksToPart(*body, pruned)) {
    if (!IsOurs(body->device(link.reader)) || !body->PutSnapshot(link)) continue;
    ++kept;
    VLOG(2) << "Keep TensorFlow's remapper from a normalization at a " << body->op(link.reader)
            << " of " << name;
  }
  return kept;
}

// Grappler inlines functions before its remapper runs.
void KeepApartIn(tensorflow::FunctionLibraryDefinition* library) {
  std::vector<std::string> names;
  for (const std::string& name : library->ListFunctionNames()) {
    const tensorflow::FunctionDef* function = library->Find(name);
    if (function == nullptr) continue;
    const auto compiled = function->attr().find("_XlaMustCompile");
    if (compiled != function->attr().end() && compiled->second.b()) continue;
    ChainOps ops;
    for (const auto& node : function->node_def()) {
      // It differentiates C++ gradient by C++ gradient, and a Snapshot has none.
      if (node.op() == "SymbolicGradient") return;
      ops.See(node.op());
    }
    if (ops.MayBeChain()) names.push_back(name);
  }
  for (const std::string& name : names) {
    tensorflow::FunctionDef function = *library->Find(name);
    FunctionBody body(&function);
    if (KeepApart(name, /*pruned=*/false, &body) == 0) continue;
    const tensorflow::StackTracesMap* const traces = library->GetStackTraces(name);
    const absl::Status replaced = library->ReplaceFunction(
        name, function, traces == nullptr ? tensorflow::StackTracesMap{} : *traces);
    if (!replaced.ok()) VLOG(1) << "Function " << name << " is left as it is: " << replaced;
  }
}

class KeepApartPass : public tensorflow::GraphOptimizationPass {
 public:
  absl::Status Run(const tensorflow::GraphOptimizationPassOptions& options) override {
    if (options.graph == nullptr || *options.graph == nullptr || !OursComes(options)) {
      return absl::OkStatus();
    }
    tensorflow::Graph* graph = options.graph->get();
    ChainOps ops;
    bool differentiates = false;
    for (const tensorflow::Node* node : graph->op_nodes()) {
      ops.See(node->type_string());
      differentiates = differentiates || node->type_string() == "SymbolicGradient";
    }
    if (ops.MayBeNorm() && options.is_function_graph && options.flib_def != nullptr) {
      const int told = TellShapesOfCalls(*options.flib_def, graph);
      if (told > 0) VLOG(2) << "Tell Grappler the shapes of " << told << " results of calls";
    }
    if (!RemapperComesFirst(options)) return absl::OkStatus();
    if (ops.MayBeChain()) {
      RuntimeGraph body(graph);
      // A session's graph is all that the program has made; each run takes a part of it.
      KeepApart(options.is_function_graph ? options.debug_filename_prefix : "a session's graph",
                /*pruned=*/!options.is_function_graph, &body);
    }
    if (options.flib_def != nullptr && !differentiates) KeepApartIn(options.flib_def);
    return absl::OkStatus();
  }
};

// After placement, so that devices are known and loops and conditions are part of the graph.
REGISTER_OPTIMIZATION(tensorflow::OptimizationPassRegistry::POST_PLACEMENT, 100, KeepApartPass);

}  // namespace
}  // namespace nv_norms
