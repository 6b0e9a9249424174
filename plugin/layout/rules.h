#ifndef NV_NORMS_PLUGIN_LAYOUT_RULES_H_
#define NV_NORMS_PLUGIN_LAYOUT_RULES_H_

#include <string>
#include <vector>

#include "plugin/graph/shapes.h"
#include "plugin/graph/view.h"
#include "plugin/layout/format.h"
#include "plugin/recognizer/reasons.h"

namespace nv_norms {

// An input or output that has the node's format: a tensor of the region's rank, or a vector with
// one entry for each axis of such a tensor.
struct Carrier {
  int index;  // input slot or output port
  bool vector;
};

// What it takes to run a node in the other format. Inputs that are not named here stay as they are.
struct Rule {
  std::vector<Carrier> inputs, outputs;
  std::vector<int> axes;           // slots of constants that name axes
  std::vector<int> channel_slots;  // slots of vectors that are broadcast along the last axis
};

// Some nodes are several in one: each input of a ShapeN has a format of its own.
int PartOf(const GraphView& view, int node, int slot_or_port);

// Whether the node, whose tensors of rank `rank` are in the format `now`, computes the same in the
// other format. kNone and the rule, or the reason why not; for other nodes than norms that is
// always kNotFree.
Reason FindRule(const GraphView& view, const Shapes& shapes, int node, int part, Format now,
                int rank, Rule* rule);

// The node's attributes for the other format.
tensorflow::NodeDef InFormat(const GraphView& view, int node, Format to, int rank);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_LAYOUT_RULES_H_
