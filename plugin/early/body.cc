#include "plugin/early/body.h"

#include "absl/strings/str_cat.h"
#include "tensorflow/core/graph/node_builder.h"

namespace nv_norms {
namespace {

const std::string& Empty() {
  static const auto* const kEmpty = new std::string;
  return *kEmpty;
}

// Longer names are not for reading; short ones may be taken.
std::string SnapshotName(const std::string& of) { return absl::StrCat(of, "/nv_norms_kept_apart"); }

}  // namespace

const std::string& RuntimeGraph::op(int node) const {
  const tensorflow::Node* n = graph_->FindNodeId(node);
  return n == nullptr ? Empty() : n->type_string();
}

int RuntimeGraph::num_inputs(int node) const { return graph_->FindNodeId(node)->num_inputs(); }

int RuntimeGraph::input(int node, int index) const {
  const tensorflow::Edge* edge = nullptr;
  return graph_->FindNodeId(node)->input_edge(index, &edge).ok() ? edge->src()->id() : -1;
}

std::vector<Link> RuntimeGraph::readers(int node) const {
  std::vector<Link> readers;
  for (const tensorflow::Edge* edge : graph_->FindNodeId(node)->out_edges()) {
    if (!edge->IsControlEdge()) readers.push_back({edge->dst()->id(), edge->dst_input()});
  }
  return readers;
}

const std::string& RuntimeGraph::device(int node) const {
  const tensorflow::Node* n = graph_->FindNodeId(node);
  return n->has_assigned_device_name() ? n->assigned_device_name() : n->requested_device();
}

const tensorflow::AttrValue* RuntimeGraph::attr(int node, const std::string& name) const {
  const tensorflow::Node* n = graph_->FindNodeId(node);
  return n == nullptr ? nullptr : n->attrs().Find(name);
}

bool RuntimeGraph::PutSnapshot(Link link) {
  tensorflow::Node* reader = graph_->FindNodeId(link.reader);
  const tensorflow::Edge* edge = nullptr;
  if (reader == nullptr || !reader->input_edge(link.input, &edge).ok()) return false;
  tensorflow::Node* source = edge->src();
  const int port = edge->src_output();
  tensorflow::Node* snapshot = nullptr;
  const absl::Status made =
      tensorflow::NodeBuilder(graph_->NewName(SnapshotName(source->name())), "Snapshot")
          .Input(source, port)
          .Device(source->requested_device())
          .Finalize(graph_, &snapshot);
  if (!made.ok()) return false;
  snapshot->set_assigned_device_name(source->assigned_device_name());
  if (graph_->UpdateEdge(snapshot, 0, reader, link.input).ok()) return true;
  graph_->RemoveNode(snapshot);
  return false;
}

FunctionBody::FunctionBody(tensorflow::FunctionDef* function)
    : function_(function), readers_(function->node_def_size()) {
  by_name_.reserve(function->node_def_size());
  for (int node = 0; node < function->node_def_size(); ++node) {
    by_name_.emplace(function->node_def(node).name(), node);
  }
  for (int node = 0; node < function->node_def_size(); ++node) {
    for (int index = 0; index < num_inputs(node); ++index) {
      const int source = input(node, index);
      if (source >= 0) readers_[source].push_back({node, index});
    }
  }
  // What the function returns is read, by somebody who is not in here.
  for (const auto& [result, tensor] : function->ret()) {
    const auto found = by_name_.find(tensor.substr(0, tensor.find(':')));
    if (found != by_name_.end()) readers_[found->second].push_back({-1, 0});
  }
}

int FunctionBody::num_inputs(int node) const {
  const auto& def = function_->node_def(node);
  int count = def.input_size();
  while (count > 0 && def.input(count - 1).compare(0, 1, "^") == 0) --count;
  return count;
}

int FunctionBody::input(int node, int index) const {
  if (index >= num_inputs(node)) return -1;
  const std::string& tensor = function_->node_def(node).input(index);
  const auto found = by_name_.find(tensor.substr(0, tensor.find(':')));
  return found == by_name_.end() ? -1 : found->second;
}

std::vector<Link> FunctionBody::readers(int node) const { return readers_[node]; }

const tensorflow::AttrValue* FunctionBody::attr(int node, const std::string& name) const {
  if (node < 0) return nullptr;
  const auto& attrs = function_->node_def(node).attr();
  const auto found = attrs.find(name);
  return found == attrs.end() ? nullptr : &found->second;
}

bool FunctionBody::PutSnapshot(Link link) {
  const int source = input(link.reader, link.input);
  if (source < 0) return false;
  const auto type = function_->node_def(source).attr().find("T");
  if (type == function_->node_def(source).attr().end()) return false;
  std::string name = SnapshotName(function_->node_def(source).name());
  for (int i = 1; by_name_.count(name) > 0; ++i) {
    name = absl::StrCat(SnapshotName(function_->node_def(source).name()), "_", i);
  }
  tensorflow::NodeDef snapshot;
  snapshot.set_name(name);
  snapshot.set_op("Snapshot");
  snapshot.set_device(function_->node_def(source).device());
  snapshot.add_input(function_->node_def(link.reader).input(link.input));
  (*snapshot.mutable_attr())["T"] = type->second;
  function_->mutable_node_def(link.reader)->set_input(link.input, absl::StrCat(name, ":output:0"));
  by_name_.emplace(name, function_->node_def_size());
  *function_->add_node_def() = std::move(snapshot);
  readers_.push_back({link});
  return true;
}

}  // namespace nv_norms
