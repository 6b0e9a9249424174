#ifndef NV_NORMS_PLUGIN_GRAPH_VIEW_H_
#define NV_NORMS_PLUGIN_GRAPH_VIEW_H_

#include <functional>
#include <limits>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "tensorflow/core/framework/graph.pb.h"
#include "tensorflow/core/framework/types.pb.h"

namespace nv_norms {

// One output of one node. `node` indexes GraphView's nodes.
struct TensorId {
  int node = -1;
  int port = 0;
  bool valid() const { return node >= 0; }
  bool operator==(const TensorId& o) const { return node == o.node && port == o.port; }
  bool operator!=(const TensorId& o) const { return !(*this == o); }
  bool operator<(const TensorId& o) const { return node != o.node ? node < o.node : port < o.port; }
};

struct TensorIdHash {
  size_t operator()(const TensorId& t) const {
    return std::hash<int64_t>()((static_cast<int64_t>(t.node) << 16) ^ t.port);
  }
};

// A data edge, seen from the producer: `port` of the producer feeds input `slot` of `node`.
struct Consumer {
  int node;
  int slot;
  int port;
};

// A GraphDef with its edges resolved in both directions. Edits go through here, so that the
// edges and the GraphDef never disagree.
class GraphView {
 public:
  // `graph` must outlive the view. ok() is false (and error() says why) when the graph names an
  // input that does not exist or uses one name twice.
  explicit GraphView(tensorflow::GraphDef* graph);
  // Goes on with `graph`, a copy of the one that it has.
  void MoveTo(tensorflow::GraphDef* graph) { graph_ = graph; }
  bool ok() const { return error_.empty(); }
  const std::string& error() const { return error_; }

  int num_nodes() const { return static_cast<int>(inputs_.size()); }
  bool alive(int node) const { return alive_[node]; }
  const tensorflow::NodeDef& def(int node) const { return graph_->node(node); }
  tensorflow::NodeDef* mutable_def(int node) { return graph_->mutable_node(node); }
  // The op's name; for a node whose value is fed from outside, a name that no op has.
  const std::string& op(int node) const;
  void MarkFed(int node) { fed_[node] = true; }
  // Whether its value is one that the graph's owner gives: an argument, or a node that is fed.
  bool IsArgument(int node) const;
  const std::string& name(int node) const { return graph_->node(node).name(); }
  std::string name(TensorId tensor) const;
  int Find(const std::string& name) const;

  const std::vector<TensorId>& inputs(int node) const { return inputs_[node]; }
  const std::vector<int>& control_inputs(int node) const { return control_inputs_[node]; }
  const std::vector<Consumer>& consumers(int node) const { return consumers_[node]; }
  const std::vector<int>& control_consumers(int node) const { return control_consumers_[node]; }
  // The consumers of one output.
  std::vector<Consumer> consumers(TensorId tensor) const;

  // Position in an order in which producers come before consumers (the back edges of loops,
  // NextIteration, do not count). Edits keep it so.
  int order(int node) const { return order_[node]; }
  // Whether a node is one of these or is computed from one of them, control edges included; taken
  // to be so where more than `limit` nodes would have to be looked at.
  bool DependsOn(int node, const std::unordered_set<int>& on,
                 int limit = std::numeric_limits<int>::max()) const;

  // Whether anything that matters reads the node: a node for which `is_root` is true, or an op that
  // may have an effect. Everything counts as live before MarkLive() is called.
  void MarkLive(const std::function<bool(int)>& is_root);
  bool live(int node) const { return live_.empty() || live_[node]; }

  // Attributes; the fallback where the node lacks them.
  int64_t GetInt(int node, const char* attr, int64_t fallback) const;
  float GetFloat(int node, const char* attr, float fallback) const;
  bool GetBool(int node, const char* attr, bool fallback) const;
  std::string GetString(int node, const char* attr, const std::string& fallback) const;
  tensorflow::DataType GetType(int node, const char* attr) const;

  // Adds a node whose data inputs are `inputs`; the caller has filled in everything else.
  // `place_like` gives its place in order(). By value: the caller may pass another node's lists.
  int AddNode(const tensorflow::NodeDef& def, std::vector<TensorId> inputs,
              std::vector<int> control_inputs, int place_like);
  // Replaces the node's op, attributes, data and control inputs; name and readers stay.
  void ReplaceNode(int node, const tensorflow::NodeDef& def, std::vector<TensorId> inputs,
                   std::vector<int> control_inputs);
  void AddControlInput(int node, int control);
  // Makes nobody wait for this node any more.
  void DropControlConsumers(int node);
  // Removes a node that nobody reads.
  void RemoveNode(int node);
  // Drops removed nodes from the GraphDef, and what was colocated with them. The view must not be
  // used afterwards.
  void Compact();
  std::string UniqueName(const std::string& wanted) const;

 private:
  void Link(int node, const std::vector<TensorId>& inputs, const std::vector<int>& controls);
  void Unlink(int node);
  void WriteInputs(int node);
  void ComputeOrder();
  // Puts a node after its inputs, and what reads it after it, as far as that is needed.
  void Raise(int node);
  bool IsBackEdge(int from, int to) const;

  tensorflow::GraphDef* graph_;
  std::string error_;
  std::unordered_map<std::string, int> index_;
  std::vector<std::vector<TensorId>> inputs_;
  std::vector<std::vector<int>> control_inputs_;
  std::vector<std::vector<Consumer>> consumers_;
  std::vector<std::vector<int>> control_consumers_;
  std::vector<bool> alive_, fed_;
  std::vector<int> order_;
  std::vector<bool> live_;
};

// Whether it is differentiated after this by a function of its own, and so must stay.
bool HasOwnGradient(const GraphView& view, int node);

// Ops whose tensors may belong to a branch, while a control edge from them does not tell which.
bool IsSwitchOrMerge(const std::string& op);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_GRAPH_VIEW_H_
