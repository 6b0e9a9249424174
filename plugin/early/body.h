#ifndef NV_NORMS_PLUGIN_EARLY_BODY_H_
#define NV_NORMS_PLUGIN_EARLY_BODY_H_

#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/function.pb.h"
#include "tensorflow/core/graph/graph.h"

namespace nv_norms {

// The place where a node reads a tensor.
struct Link {
  int reader;
  int input;
};

// The nodes of a runtime graph or of a function's body, as far as chains of ops are looked for in
// them. Nodes are numbers; -1 is an argument of a function, or what is not there.
class Body {
 public:
  virtual ~Body() = default;
  virtual int num_nodes() const = 0;
  virtual const std::string& op(int node) const = 0;  // "" where there is no node of this number
  virtual int num_inputs(int node) const = 0;         // of data
  virtual int input(int node, int index) const = 0;   // the node that gives this input, or -1
  virtual std::vector<Link> readers(int node) const = 0;  // of any of its outputs
  virtual const std::string& device(int node) const = 0;  // "" where that is not decided
  // nullptr where there is no such attribute, or no such node.
  virtual const tensorflow::AttrValue* attr(int node, const std::string& name) const = 0;
  // Whether arguments may turn out to be constants: those of functions that are called somewhere.
  virtual bool arguments_may_be_constant() const = 0;
  // Lets a Snapshot hand on what is read there. False, and nothing is changed, if that cannot be.
  virtual bool PutSnapshot(Link link) = 0;
};

class RuntimeGraph : public Body {
 public:
  explicit RuntimeGraph(tensorflow::Graph* graph) : graph_(graph) {}
  int num_nodes() const override { return graph_->num_node_ids(); }
  const std::string& op(int node) const override;
  int num_inputs(int node) const override;
  int input(int node, int index) const override;
  std::vector<Link> readers(int node) const override;
  const std::string& device(int node) const override;
  const tensorflow::AttrValue* attr(int node, const std::string& name) const override;
  bool arguments_may_be_constant() const override { return false; }
  bool PutSnapshot(Link link) override;

 private:
  tensorflow::Graph* graph_;
};

class FunctionBody : public Body {
 public:
  explicit FunctionBody(tensorflow::FunctionDef* function);
  int num_nodes() const override { return function_->node_def_size(); }
  const std::string& op(int node) const override { return function_->node_def(node).op(); }
  int num_inputs(int node) const override;
  int input(int node, int index) const override;
  std::vector<Link> readers(int node) const override;
  const std::string& device(int node) const override { return function_->node_def(node).device(); }
  const tensorflow::AttrValue* attr(int node, const std::string& name) const override;
  bool arguments_may_be_constant() const override { return true; }
  bool PutSnapshot(Link link) override;

 private:
  tensorflow::FunctionDef* function_;
  std::unordered_map<std::string, int> by_name_;
  std::vector<std::vector<Link>> readers_;
};

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_EARLY_BODY_H_
