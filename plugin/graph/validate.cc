#include "plugin/graph/validate.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/function.pb.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/op.h"

namespace nv_norms {
namespace {

using tensorflow::FunctionDef;
using tensorflow::NodeDef;

using FunctionsByName = std::unordered_map<std::string, const FunctionDef*>;

absl::Status ValidateNode(const NodeDef& node) {
  bool control = false;
  for (const std::string& input : node.input()) {
    if (!input.empty() && input[0] == '^') {
      control = true;
    } else if (control) {
      return absl::InvalidArgumentError(
          absl::StrCat(node.name(), " reads ", input, " after a control input"));
    }
  }
  const tensorflow::OpDef* op = nullptr;
  // Ops that nobody knows are named elsewhere.
  if (!tensorflow::OpRegistry::Global()->LookUpOpDef(node.op(), &op).ok()) {
    return absl::OkStatus();
  }
  for (const tensorflow::OpDef::AttrDef& attr : op->attr()) {
    if (!attr.has_default_value() && node.attr().count(attr.name()) == 0) {
      return absl::InvalidArgumentError(absl::StrCat(node.name(), " has no attribute ", attr.name(),
                                                     ", which a ", node.op(), " needs"));
    }
  }
  tensorflow::DataTypeVector types;
  const absl::Status typed = tensorflow::InputTypesForNode(node, *op, &types);
  if (!typed.ok()) return typed;
  const auto given = std::count_if(node.input().begin(), node.input().end(), [](const auto& input) {
    return input.empty() || input[0] != '^';
  });
  if (given == static_cast<int64_t>(types.size())) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(node.name(), " has ", given, " inputs, where a ",
                                                 node.op(), " needs ", types.size()));
}

// The function that the node calls, which shape inference goes into; null if it calls none.
const FunctionDef* Callee(const NodeDef& node, const FunctionsByName& functions) {
  std::string name = node.op();
  if (name == "PartitionedCall" || name == "StatefulPartitionedCall") {
    const auto f = node.attr().find("f");
    if (f != node.attr().end()) name = f->second.func().name();
  }
  const auto found = functions.find(name);
  return found == functions.end() ? nullptr : found->second;
}

// Goes along calls as deep as they go.
absl::Status ValidateCalls(const tensorflow::FunctionDefLibrary& library) {
  FunctionsByName functions;
  for (const FunctionDef& function : library.function()) {
    functions[function.signature().name()] = &function;
  }
  std::unordered_map<const FunctionDef*, bool> left;  // false: calls from it are being followed
  for (const auto& [_, root] : functions) {
    if (!left.emplace(root, false).second) continue;
    std::vector<std::pair<const FunctionDef*, int>> path = {{root, 0}};  // and the next node
    while (!path.empty()) {
      auto& [function, next] = path.back();
      if (next == function->node_def_size()) {
        left[function] = true;
        path.pop_back();
        continue;
      }
      const FunctionDef* callee = Callee(function->node_def(next++), functions);
      if (callee == nullptr) continue;
      const auto [seen, is_new] = left.emplace(callee, false);
      if (is_new) {
        path.emplace_back(callee, 0);
      } else if (!seen->second) {
        return absl::InvalidArgumentError(
            absl::StrCat("the function ", callee->signature().name(), " calls itself"));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateForInference(const tensorflow::GraphDef& graph) {
  for (const NodeDef& node : graph.node()) {
    const absl::Status valid = ValidateNode(node);
    if (!valid.ok()) return valid;
  }
  for (const FunctionDef& function : graph.library().function()) {
    for (const NodeDef& node : function.node_def()) {
      const absl::Status valid = ValidateNode(node);
      if (!valid.ok()) {
        return absl::InvalidArgumentError(
            absl::StrCat("in the function ", function.signature().name(), ": ", valid.message()));
      }
    }
  }
  return ValidateCalls(graph.library());
}

}  // namespace nv_norms
