#ifndef NV_NORMS_PLUGIN_RECOGNIZER_OPS_H_
#define NV_NORMS_PLUGIN_RECOGNIZER_OPS_H_

#include <string>

namespace nv_norms {

// What the interpreter can follow; everything else is an operand of its own.
enum class OpClass {
  kOpaque,
  kElementwise,  // broadcasting, any number of inputs
  kReduction,    // Sum, Mean, BiasAddGrad
  kView,         // changes shape, order or type, never a value
  kBroadcast,    // Tile, BroadcastTo: repeats values; what has its tensor elsewhere
  kNorm,         // holds a normalization inside: FusedBatchNormV3, _MklLayerNorm, ...
  kNormGrad,     // the gradient of one: FusedBatchNormGradV3
};

OpClass ClassOf(const std::string& op);

// Whether an op has no state and no effect, as far as we know it.
bool IsPure(const std::string& op);

// Whether an op gives a reference to a variable of TensorFlow 1. What that holds hangs on when it
// is read, so it has no value; an op that reads it has one.
bool GivesReference(const std::string& op);

// Whether an op reads only its tensor's shape, and may read that of another one of the same shape.
bool ReadsShape(const std::string& op);  // Shape, Size, Rank

// Views that keep the order and the type of the elements: Identity, Reshape, ExpandDims, Squeeze.
bool IsPlainView(const std::string& op);

// What sums and products are made of (the recognizer flattens them).
bool IsSum(const std::string& op);      // Add, AddV2, AddN, Sub
bool IsProduct(const std::string& op);  // Mul, RealDiv

// What gives gradients of parameters.
bool SumsUp(const std::string& op);  // Sum, BiasAddGrad

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_RECOGNIZER_OPS_H_
