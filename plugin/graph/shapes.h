#ifndef NV_NORMS_PLUGIN_GRAPH_SHAPES_H_
#define NV_NORMS_PLUGIN_GRAPH_SHAPES_H_

#include <optional>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "plugin/graph/view.h"
#include "tensorflow/c/experimental/grappler/grappler.h"

namespace nv_norms {

// What shape inference says of one tensor. A dimension is its size, or -1 for unknown, or less
// than -1 for unknown but equal to every dimension with the same number.
struct TensorInfo {
  tensorflow::DataType dtype = tensorflow::DT_INVALID;
  bool rank_known = false;
  std::vector<int64_t> dims;
};

// Whether it is known in full.
bool IsKnown(const TensorInfo& info);

// Shapes and types by TensorFlow's static inference, asked for node by node and kept.
class Shapes {
 public:
  // `view` must outlive this; nodes that are not in `item`'s graph have no shape.
  Shapes(TF_GrapplerItem* item, const GraphView* view);
  ~Shapes();
  Shapes(const Shapes&) = delete;
  Shapes& operator=(const Shapes&) = delete;

  // `feeds_fit`: whether what is fed has the shapes that the graph says.
  absl::Status Infer(bool feeds_fit);
  const TensorInfo& Get(TensorId tensor) const;
  // For nodes that an edit made.
  void Set(int node, std::vector<TensorInfo> outputs) { known_[node] = {std::move(outputs)}; }
  // For one output of a node of which inference says too little.
  void SetOutput(TensorId tensor, TensorInfo info);
  // Takes two unknown sizes, numbers less than -1, for one, in all tensors.
  void Equate(int64_t a, int64_t b);

 private:
  struct Outputs {
    std::vector<TensorInfo> infos;
    size_t equated = 0;  // how many of equal_ are used in them
  };

  int64_t Representative(int64_t size) const;

  TF_GraphProperties* properties_;
  const GraphView* view_;
  mutable std::unordered_map<int, Outputs> known_;
  std::unordered_map<int64_t, int64_t> equal_;  // an unknown size -> another that it equals
};

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_GRAPH_SHAPES_H_
