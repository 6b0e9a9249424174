#include "plugin/graph/view.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <utility>

#include "absl/strings/numbers.h"
#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/node_def.pb.h"

namespace nv_norms {
namespace {

const tensorflow::AttrValue* FindAttr(const tensorflow::NodeDef& def, const char* attr) {
  auto found = def.attr().find(attr);
  return found == def.attr().end() ? nullptr : &found->second;
}

// "name", "name:2" or "^name"; whether it is one of these.
bool SplitInput(const std::string& input, std::string* name, int* port) {
  if (!input.empty() && input[0] == '^') {
    *name = input.substr(1);
    *port = -1;
    return true;
  }
  *port = 0;
  const size_t colon = input.rfind(':');
  *name = input.substr(0, colon);
  return colon == std::string::npos ||
         (absl::SimpleAtoi(input.substr(colon + 1), port) && *port >= 0);
}

// Room between two nodes in the order, for those that edits put there.
constexpr int kOrderStep = 64;

template <typename T, typename Pred>
void EraseIf(std::vector<T>* v, Pred pred) {
  v->erase(std::remove_if(v->begin(), v->end(), pred), v->end());
}

}  // namespace

GraphView::GraphView(tensorflow::GraphDef* graph) : graph_(graph) {
  const int n = graph->node_size();
  index_.reserve(n);
  inputs_.resize(n);
  control_inputs_.resize(n);
  consumers_.resize(n);
  control_consumers_.resize(n);
  alive_.assign(n, true);
  fed_.assign(n, false);
  for (int i = 0; i < n; ++i) {
    if (!index_.emplace(graph->node(i).name(), i).second) {
      error_ = "two nodes are named " + graph->node(i).name();
      return;
    }
  }
  std::string name;
  int port;
  for (int i = 0; i < n; ++i) {
    std::vector<TensorId> inputs;
    std::vector<int> controls;
    for (const std::string& input : graph->node(i).input()) {
      const bool split = SplitInput(input, &name, &port);
      const int from = Find(name);
      if (!split || from < 0) {
        error_ = graph->node(i).name() + " reads " + input + ", which is not in the graph";
        return;
      }
      if (port < 0) {
        controls.push_back(from);
      } else {
        inputs.push_back({from, port});
      }
    }
    Link(i, inputs, controls);
  }
  ComputeOrder();
}

const std::string& GraphView::op(int node) const {
  static const std::string* const kFed = new std::string("(fed)");
  return fed_[node] ? *kFed : graph_->node(node).op();
}

bool GraphView::IsArgument(int node) const {
  const std::string& op = graph_->node(node).op();
  return fed_[node] || op == "_Arg" || op == "Placeholder" || op == "PlaceholderWithDefault";
}

void GraphView::Link(int node, const std::vector<TensorId>& inputs,
                     const std::vector<int>& controls) {
  inputs_[node] = inputs;
  control_inputs_[node] = controls;
  for (size_t slot = 0; slot < inputs.size(); ++slot) {
    consumers_[inputs[slot].node].push_back({node, static_cast<int>(slot), inputs[slot].port});
  }
  for (int control : controls) control_consumers_[control].push_back(node);
}

void GraphView::Raise(int node) {
  constexpr int kGiveUp = 100000;  // a cycle, in which nothing can be ordered, or a huge graph
  // By what their order was: the nodes that one reads are raised before it.
  using Raised = std::pair<int, int>;
  std::priority_queue<Raised, std::vector<Raised>, std::greater<Raised>> waiting;
  waiting.emplace(order_[node], node);
  for (int steps = 0; !waiting.empty(); ++steps) {
    if (steps == kGiveUp) return ComputeOrder();
    const int at = waiting.top().second;
    waiting.pop();
    int lowest = order_[at];
    const auto after = [&](int input) { lowest = std::max(lowest, order_[input] + 1); };
    for (const TensorId& input : inputs_[at]) {
      if (!IsBackEdge(input.node, at)) after(input.node);
    }
    for (int control : control_inputs_[at]) after(control);
    if (lowest == order_[at] && at != node) continue;
    order_[at] = lowest;
    for (const Consumer& c : consumers_[at]) {
      if (order_[c.node] <= lowest && !IsBackEdge(at, c.node)) {
        waiting.emplace(order_[c.node], c.node);
      }
    }
    for (int c : control_consumers_[at]) {
      if (order_[c] <= lowest) waiting.emplace(order_[c], c);
    }
  }
}

bool GraphView::IsBackEdge(int from, int to) const {
  return (op(from) == "NextIteration" || op(from) == "RefNextIteration") &&
         (op(to) == "Merge" || op(to) == "RefMerge");
}

bool GraphView::DependsOn(int node, const std::unordered_set<int>& on, int limit) const {
  if (on.empty()) return false;
  int first = order_[*on.begin()];
  for (int each : on) first = std::min(first, order_[each]);
  std::unordered_set<int> seen;
  std::vector<int> stack = {node};
  while (!stack.empty()) {
    const int at = stack.back();
    stack.pop_back();
    if (on.count(at) > 0) return true;
    if (order_[at] <= first || !seen.insert(at).second) continue;
    if (static_cast<int>(seen.size()) > limit) return true;
    for (const TensorId& input : inputs_[at]) {
      if (!IsBackEdge(input.node, at)) stack.push_back(input.node);
    }
    stack.insert(stack.end(), control_inputs_[at].begin(), control_inputs_[at].end());
  }
  return false;
}

void GraphView::Unlink(int node) {
  for (const TensorId& input : inputs_[node]) {
    EraseIf(&consumers_[input.node], [&](const Consumer& c) { return c.node == node; });
  }
  for (int control : control_inputs_[node]) {
    EraseIf(&control_consumers_[control], [&](int c) { return c == node; });
  }
  inputs_[node].clear();
  control_inputs_[node].clear();
}

void GraphView::WriteInputs(int node) {
  tensorflow::NodeDef* def = graph_->mutable_node(node);
  def->clear_input();
  for (const TensorId& input : inputs_[node]) {
    def->add_input(input.port == 0 ? name(input.node)
                                   : name(input.node) + ":" + std::to_string(input.port));
  }
  for (int control : control_inputs_[node]) def->add_input("^" + name(control));
}

void GraphView::ComputeOrder() {
  const int n = num_nodes();
  order_.assign(n, 0);
  std::vector<int> waiting(n, 0);
  std::vector<int> ready;
  for (int i = 0; i < n; ++i) {
    if (op(i) != "NextIteration" && op(i) != "RefNextIteration") {
      waiting[i] = static_cast<int>(inputs_[i].size() + control_inputs_[i].size());
    }
    for (const TensorId& input : inputs_[i]) {
      if (IsBackEdge(input.node, i)) --waiting[i];
    }
    if (waiting[i] == 0) ready.push_back(i);
  }
  int position = 0;
  for (size_t at = 0; at < ready.size(); ++at) {
    const int node = ready[at];
    order_[node] = position;
    position += kOrderStep;
    for (const Consumer& c : consumers_[node]) {
      if (IsBackEdge(node, c.node)) continue;
      if (--waiting[c.node] == 0) ready.push_back(c.node);
    }
    for (int c : control_consumers_[node]) {
      if (--waiting[c] == 0) ready.push_back(c);
    }
  }
  for (int i = 0; i < n; ++i) {
    if (waiting[i] > 0) order_[i] = position;  // in a cycle we do not understand: last
  }
}

void GraphView::MarkLive(const std::function<bool(int)>& is_root) {
  live_.assign(num_nodes(), false);
  std::vector<int> stack;
  for (int i = 0; i < num_nodes(); ++i) {
    if (is_root(i)) stack.push_back(i);
  }
  while (!stack.empty()) {
    const int node = stack.back();
    stack.pop_back();
    if (live_[node]) continue;
    live_[node] = true;
    for (const TensorId& input : inputs_[node]) stack.push_back(input.node);
    for (int control : control_inputs_[node]) stack.push_back(control);
  }
}

std::string GraphView::name(TensorId tensor) const {
  return name(tensor.node) + ":" + std::to_string(tensor.port);
}

int GraphView::Find(const std::string& name) const {
  auto found = index_.find(name);
  return found == index_.end() ? -1 : found->second;
}

std::vector<Consumer> GraphView::consumers(TensorId tensor) const {
  std::vector<Consumer> of_port;
  for (const Consumer& c : consumers_[tensor.node]) {
    if (c.port == tensor.port) of_port.push_back(c);
  }
  return of_port;
}

int64_t GraphView::GetInt(int node, const char* attr, int64_t fallback) const {
  const tensorflow::AttrValue* value = FindAttr(def(node), attr);
  return value == nullptr ? fallback : value->i();
}

float GraphView::GetFloat(int node, const char* attr, float fallback) const {
  const tensorflow::AttrValue* value = FindAttr(def(node), attr);
  return value == nullptr ? fallback : value->f();
}

bool GraphView::GetBool(int node, const char* attr, bool fallback) const {
  const tensorflow::AttrValue* value = FindAttr(def(node), attr);
  return value == nullptr ? fallback : value->b();
}

std::string GraphView::GetString(int node, const char* attr, const std::string& fallback) const {
  const tensorflow::AttrValue* value = FindAttr(def(node), attr);
  return value == nullptr ? fallback : std::string(value->s());
}

tensorflow::DataType GraphView::GetType(int node, const char* attr) const {
  const tensorflow::AttrValue* value = FindAttr(def(node), attr);
  return value == nullptr ? tensorflow::DT_INVALID : value->type();
}

int GraphView::AddNode(const tensorflow::NodeDef& def, std::vector<TensorId> inputs,
                       std::vector<int> control_inputs, int place_like) {
  const int node = num_nodes();
  *graph_->add_node() = def;
  index_[def.name()] = node;
  inputs_.emplace_back();
  control_inputs_.emplace_back();
  consumers_.emplace_back();
  control_consumers_.emplace_back();
  alive_.push_back(true);
  fed_.push_back(false);
  order_.push_back(order_[place_like]);
  if (!live_.empty()) live_.push_back(true);
  Link(node, inputs, control_inputs);
  Raise(node);
  WriteInputs(node);
  return node;
}

void GraphView::ReplaceNode(int node, const tensorflow::NodeDef& def, std::vector<TensorId> inputs,
                            std::vector<int> control_inputs) {
  const std::string kept = name(node);
  Unlink(node);
  *graph_->mutable_node(node) = def;
  graph_->mutable_node(node)->set_name(kept);
  Link(node, inputs, control_inputs);
  Raise(node);
  WriteInputs(node);
}

void GraphView::AddControlInput(int node, int control) {
  if (node == control) return;
  std::vector<int>& controls = control_inputs_[node];
  if (std::find(controls.begin(), controls.end(), control) != controls.end()) return;
  controls.push_back(control);
  control_consumers_[control].push_back(node);
  Raise(node);
  WriteInputs(node);
}

void GraphView::DropControlConsumers(int node) {
  for (int reader : control_consumers_[node]) {
    EraseIf(&control_inputs_[reader], [&](int c) { return c == node; });
    WriteInputs(reader);
  }
  control_consumers_[node].clear();
}

void GraphView::RemoveNode(int node) {
  Unlink(node);
  index_.erase(name(node));
  alive_[node] = false;
}

void GraphView::Compact() {
  auto* nodes = graph_->mutable_node();
  // "loc:@name": a node may ask to be placed with one that is gone.
  const auto is_gone = [this](const std::string& location) {
    return location.rfind("loc:@", 0) == 0 && Find(location.substr(5)) < 0;
  };
  for (int i = 0; i < num_nodes(); ++i) {
    auto found = nodes->Mutable(i)->mutable_attr()->find("_class");
    if (!alive_[i] || found == nodes->Mutable(i)->mutable_attr()->end()) continue;
    tensorflow::AttrValue kept;
    for (const auto& location : found->second.list().s()) {
      if (!is_gone(std::string(location))) kept.mutable_list()->add_s(location);
    }
    if (kept.list().s_size() == found->second.list().s_size()) continue;
    if (kept.list().s_size() == 0) {
      nodes->Mutable(i)->mutable_attr()->erase("_class");
    } else {
      found->second = kept;
    }
  }
  int kept = 0;
  for (int i = 0; i < num_nodes(); ++i) {
    if (!alive_[i]) continue;
    if (kept != i) nodes->SwapElements(kept, i);
    ++kept;
  }
  nodes->DeleteSubrange(kept, nodes->size() - kept);
}

std::string GraphView::UniqueName(const std::string& wanted) const {
  std::string name = wanted;
  for (int i = 1; Find(name) >= 0; ++i) name = wanted + "_" + std::to_string(i);
  return name;
}

bool HasOwnGradient(const GraphView& view, int node) {
  return view.def(node).attr().count("_gradient_op_type") > 0;
}

bool IsSwitchOrMerge(const std::string& op) {
  return op == "Switch" || op == "RefSwitch" || op == "Merge" || op == "RefMerge";
}

}  // namespace nv_norms
