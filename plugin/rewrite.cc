#include "plugin/rewrite.h"

#include "plugin/graph/functions.h"
#include "plugin/graph/validate.h"
#include "plugin/graph/view.h"
#include "plugin/remapper.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/framework/graph_def_util.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/grappler/grappler_item.h"
#include "tensorflow/core/grappler/utils/functions.h"
#include "tensorflow/core/grappler/utils/transitive_fanin.h"

namespace nv_norms {
namespace {

using tensorflow::grappler::GrapplerItem;

// The C API's item is TensorFlow's own behind an opaque name.
TF_GrapplerItem* Opaque(GrapplerItem* item) { return reinterpret_cast<TF_GrapplerItem*>(item); }

absl::StatusOr<bool> RemapItem(GrapplerItem* item, const RemapperOptions& options,
                               tensorflow::GraphDef* remapped, std::vector<Record>* records) {
  return Remap(item->graph, Opaque(item), options, remapped, records);
}

absl::Status RewriteFunctions(bool layouts, bool compiled, tensorflow::GraphDef* graph,
                              std::vector<Record>* records) {
  const tensorflow::FunctionLibraryDefinition library(tensorflow::OpRegistry::Global(),
                                                      graph->library());
  const std::unordered_set<std::string> hidden =
      compiled ? std::unordered_set<std::string>() : FunctionsOfXla(*graph);
  for (tensorflow::FunctionDef& function : *graph->mutable_library()->mutable_function()) {
    tensorflow::grappler::GrapplerFunctionItem item;
    // A function whose types are parameters has no graph of its own.
    if (!tensorflow::grappler::MakeGrapplerFunctionItem(function, library,
                                                        graph->versions().producer(), &item)
             .ok()) {
      continue;
    }
    RemapperOptions options;
    options.layouts = layouts;
    options.compiled = compiled;
    options.preserve = item.NodesToPreserve();
    options.graph_name = function.signature().name();
    tensorflow::GraphDef rewritten;
    std::vector<Record> found;
    const auto changed = RemapItem(&item, options, &rewritten, &found);
    if (!changed.ok()) return changed.status();
    const bool is_hidden = hidden.count(options.graph_name) != 0;
    for (Record& record : found) {
      if (is_hidden && record.kind == "layout") continue;
      if (is_hidden) record.reason = Reason::kCompiledByXla;
      records->push_back(std::move(record));
    }
    if (!*changed || is_hidden) continue;
    item.SwapFunctionBody(std::move(rewritten));
    tensorflow::FunctionDef replaced;
    const absl::Status made = tensorflow::grappler::MakeFunctionDef(item, library, &replaced);
    if (!made.ok()) return made;
    function = replaced;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RewriteOffline(const std::string& device, const std::vector<std::string>& fetches,
                            bool layouts, bool compiled, tensorflow::GraphDef* graph,
                            std::vector<Record>* records) {
  GrapplerItem item;
  item.id = "graph";
  item.graph = *graph;
  // A SavedModel may have been stripped of attributes that have their op's default value.
  const absl::Status completed = tensorflow::AddDefaultAttrsToGraphDef(
      &item.graph, *tensorflow::OpRegistry::Global(), 0, /*skip_unknown_ops=*/true);
  if (!completed.ok()) return completed;
  const absl::Status valid = ValidateForInference(item.graph);
  if (!valid.ok()) return valid;
  RemapperOptions options;
  options.graph_name = item.id;
  options.check = true;
  options.layouts = layouts;
  options.compiled = compiled;
  {
    GraphView view(graph);
    if (!view.ok()) return absl::InvalidArgumentError(view.error());
    for (const std::string& fetch : fetches) {
      if (view.Find(fetch) < 0) {
        return absl::InvalidArgumentError("there is no node named " + fetch + " to fetch");
      }
      options.preserve.insert(fetch);
    }
    for (int node = 0; node < view.num_nodes(); ++node) {
      if (fetches.empty() && view.consumers(node).empty()) {
        options.preserve.insert(view.name(node));
      }
    }
  }
  std::unordered_set<std::string> placed;
  for (tensorflow::NodeDef& node : *item.graph.mutable_node()) {
    if (!node.device().empty()) {
      placed.insert(node.name());
    } else if (!device.empty()) {
      node.set_device(device);
    }
  }
  // What no fetch needs will not run, so that nothing follows from what it asks of its inputs: an
  // AddN of a batch and of one row, say, does not make the batch one row. Its own shapes are
  // unknown then.
  GrapplerItem needed;
  if (!fetches.empty()) {
    const absl::Status found =
        tensorflow::grappler::SetTransitiveFaninGraph(item.graph, &needed.graph, fetches);
    if (!found.ok()) return found;
    *needed.graph.mutable_library() = item.graph.library();
    *needed.graph.mutable_versions() = item.graph.versions();
  }
  // In the arena of `graph`, if it has one, so that moving is all that the end takes.
  auto& rewritten = *google::protobuf::Arena::Create<tensorflow::GraphDef>(graph->GetArena());
  const auto changed =
      Remap(item.graph, Opaque(fetches.empty() ? &item : &needed), options, &rewritten, records);
  if (!changed.ok()) return changed.status();
  if (*changed) {
    // What had no device, or was not there, has none now.
    for (tensorflow::NodeDef& node : *rewritten.mutable_node()) {
      if (!device.empty() && placed.count(node.name()) == 0) node.clear_device();
    }
    *graph = std::move(rewritten);
  }
  return graph->has_library() ? RewriteFunctions(layouts, compiled, graph, records)
                              : absl::OkStatus();
}

}  // namespace nv_norms
