#include "plugin/graph/functions.h"

#include <unordered_map>
#include <vector>

#include "tensorflow/core/framework/function.pb.h"
#include "tensorflow/core/framework/node_def.pb.h"

namespace nv_norms {
namespace {

// True at a call, and at the function that is called.
constexpr char kMustCompile[] = "_XlaMustCompile";
// The op of a cluster, which names no function to call with that attribute.
constexpr char kXlaLaunch[] = "XlaLaunch";

template <typename Attributes>
bool MustCompile(const Attributes& attributes) {
  const auto found = attributes.find(kMustCompile);
  return found != attributes.end() && found->second.b();
}

using Names = std::unordered_set<std::string>;
using Functions = std::unordered_map<std::string, const tensorflow::FunctionDef*>;

template <typename Use>
void ForFunctionsOf(const tensorflow::NodeDef& node, const Use& use) {
  use(node.op());
  for (const auto& [name, value] : node.attr()) {
    if (value.has_func()) use(value.func().name());
    for (const tensorflow::NameAttrList& function : value.list().func()) use(function.name());
  }
}

// These functions and what they call, but for `barred` ones.
Names Reached(const Functions& functions, const Names& from, const Names& barred) {
  Names out;
  std::vector<const tensorflow::FunctionDef*> pending;
  const auto reach = [&](const std::string& name) {
    const auto found = functions.find(name);
    if (found == functions.end() || barred.count(name) != 0) return;
    if (out.insert(name).second) pending.push_back(found->second);
  };
  for (const std::string& name : from) reach(name);
  while (!pending.empty()) {
    const tensorflow::FunctionDef* const function = pending.back();
    pending.pop_back();
    for (const tensorflow::NodeDef& node : function->node_def()) ForFunctionsOf(node, reach);
  }
  return out;
}

}  // namespace

std::unordered_set<std::string> FunctionsOfXla(const tensorflow::GraphDef& graph) {
  Functions functions;
  Names compiled;
  for (const tensorflow::FunctionDef& function : graph.library().function()) {
    functions.emplace(function.signature().name(), &function);
    if (MustCompile(function.attr())) compiled.insert(function.signature().name());
  }
  if (functions.empty()) return {};
  Names called;      // by anybody
  Names from_graph;  // called by the graph itself, or by nobody
  const auto look_at = [&](const tensorflow::NodeDef& node, bool in_graph) {
    const bool to_xla = MustCompile(node.attr()) || node.op() == kXlaLaunch;
    ForFunctionsOf(node, [&](const std::string& name) {
      called.insert(name);
      if (to_xla) compiled.insert(name);
      if (in_graph) from_graph.insert(name);
    });
  };
  for (const tensorflow::NodeDef& node : graph.node()) look_at(node, true);
  for (const auto& [name, function] : functions) {
    for (const tensorflow::NodeDef& node : function->node_def()) look_at(node, false);
  }
  for (const auto& [name, function] : functions) {
    if (called.count(name) == 0) from_graph.insert(name);
  }
  return Reached(functions, compiled, Reached(functions, from_graph, compiled));
}

}  // namespace nv_norms
