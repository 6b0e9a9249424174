#ifndef NV_NORMS_PLUGIN_EDIT_STEPS_H_
#define NV_NORMS_PLUGIN_EDIT_STEPS_H_

#include <functional>
#include <string>
#include <vector>

#include "plugin/graph/constants.h"
#include "plugin/graph/shapes.h"
#include "plugin/graph/view.h"
#include "plugin/recognizer/forward.h"
#include "tensorflow/core/framework/node_def.pb.h"

namespace nv_norms {

// Small steps that the edits of forward and backward are made of.

// Attributes that say where and how a node runs, not what it computes, nor which kernel of its op.
void CopyPlacement(const tensorflow::NodeDef& from, tensorflow::NodeDef* to);

void SetType(tensorflow::NodeDef* def, const char* attr, tensorflow::DataType type);

// Makes a node read `tensor` in this slot.
void SetInput(GraphView* view, int node, int slot, TensorId tensor);

// Has a node that reads a tensor's shape read that of another one, of this type.
void ReadShapeOf(GraphView* view, int node, TensorId tensor, tensorflow::DataType type);

// The ops take a parameter in any shape, and widen it themselves: what is behind such views.
TensorId ParameterBehindViews(const GraphView& view, TensorId tensor);

// Adds what a node waits for, each once.
void AddControls(const GraphView& view, int node, std::vector<int>* controls);

// What these nodes wait for, each once, and what leads to them or to the parameters, but for what
// leads to `kept`, which the fused op reads. In a branch that is not taken, only a constant's
// control edge may tell so.
std::vector<int> ControlsOf(const GraphView& view, const std::vector<int>& core,
                            const std::vector<TensorId>& parameters,
                            const std::vector<TensorId>& kept);

// Adds a constant next to the node `like`.
TensorId AddConstant(GraphView* view, Shapes* shapes, const IntTensor& ints,
                     tensorflow::DataType type, const std::string& name, const std::string& device,
                     int like, std::vector<int> waits_for);

// A tensor of the same type in the other's shape.
TensorInfo WithShapeOf(TensorInfo info, const TensorInfo& shaped);

// Adds a Reshape of `tensor` to a constant shape next to the node `like`, or puts it into the place
// of the node `in_place_of` if that is not negative.
TensorId AddReshape(GraphView* view, Shapes* shapes, TensorId tensor,
                    const std::vector<int64_t>& shape, int like, int in_place_of);

// The same to the shape that `shaped` has when the graph runs.
TensorId AddReshapeLike(GraphView* view, Shapes* shapes, TensorId tensor, TensorId shaped, int like,
                        int in_place_of);

// Adds the sum of `tensor` over what `shaped` is broadcast along to its shape.
TensorId AddSumLike(GraphView* view, Shapes* shapes, TensorId tensor, TensorId shaped, int like,
                    int in_place_of);

// A Reshape, too, of what an op gave for an x whose axes were merged, to that x's own shape.
TensorId AddReshapeToSplit(GraphView* view, Shapes* shapes, TensorId tensor,
                           const ForwardMatch& match, int like, int in_place_of);

// Adds a Transpose of `tensor` next to the node `like`.
TensorId AddTranspose(GraphView* view, Shapes* shapes, TensorId tensor,
                      const std::vector<int64_t>& order, int like);

// Adds a Cast of `tensor` next to the node `like`.
TensorId AddCast(GraphView* view, Shapes* shapes, TensorId tensor, tensorflow::DataType to,
                 int like);

// Adds the product of `tensor` and a factor, or the quotient, next to `like`. Its shape is taken
// for that of `tensor`.
TensorId AddFactor(GraphView* view, Shapes* shapes, TensorId tensor, const Part& factor, int like);

// Adds a chain of sums (or products) of `first` and what goes on beside it; the last one takes the
// place of the node `in_place_of`.
void JoinParts(GraphView* view, Shapes* shapes, TensorId first, const std::vector<Part>& parts,
               bool factors, int in_place_of);

// Removes what reads a node's outputs and is not live, and all behind that, which is not either.
void RemoveDeadReaders(GraphView* view, int node);

// Removes a node that nobody reads any more; who waited for it waits for others.
void RemoveReplaced(GraphView* view, int node, const std::vector<int>& instead);

// Removes nodes of `start` and behind it that nobody reads. Whoever waited for one waits for what
// it waited for.
void RemoveUnread(GraphView* view, const std::vector<int>& start,
                  const std::function<bool(int)>& keep);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_EDIT_STEPS_H_
