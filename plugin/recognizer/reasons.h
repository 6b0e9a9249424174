#ifndef NV_NORMS_PLUGIN_RECOGNIZER_REASONS_H_
#define NV_NORMS_PLUGIN_RECOGNIZER_REASONS_H_

namespace nv_norms {

// Why something that looks like a normalization was left as it is. The log, the report and the
// tests use these.
enum class Reason {
  kNone,                // fused
  kNotANormalization,   // 1 / r^2 is neither var(x) + epsilon nor mean(x^2) + epsilon
  kEpsilonNotConstant,  // it is, but epsilon is no constant, or is negative
  kEpsilonLost,         // TensorFlow's own fusion may have lost it
  kEpsilonOutOfRange,   // the ops keep it in float32, where it is no normal number
  kNoEpsilon,           // what rounding leaves of equal numbers is divided by itself
  kMomentsDiffer,       // the variance runs over other axes than the mean
  kParameterVaries,     // gamma or beta varies along other axes than the layer's
  kOperandCancels,      // something else takes part, and cancels if it is not 0
  kNoOutput,            // no tensor equals xhat * gamma + beta
  kNoGradient,          // no tensors equal the gradients
  kSizesUnknown,        // the gradient would have to be reshaped to sizes that nobody knows
  kGradientElsewhere,   // the gradient is in another loop or branch
  kNotExpressible,      // a right normalization over axes that no op of ours covers
  kUnsupportedType,     // other types than half, bfloat16, float32 and float64
  kOtherDevice,         // parts of it live on different devices
  kNobodyReadsIt,       // the output has no reader
  kBatchStatistics,     // the moments run over the first axis, as a batch norm's do
  kCompiledByXla,       // in a function that TensorFlow's optimizer does not see
  // Why the Transposes beside a fused normalization were left as they are (plugin/layout).
  kUnknownRank,       // of x
  kPreserved,         // the normalization itself is fetched
  kParameterOrder,    // gamma and beta run along several axes, which would change their order
  kStatisticsOrder,   // mean and rstd do
  kOtherChannelAxis,  // the Transposes move another axis than the channels
  kMixedLayouts,      // ops between the Transposes would have to run in both layouts
  kNotFree,           // the op, or the rank, cannot change its layout
};

// "not_a_normalization", ...
const char* ReasonName(Reason reason);
// One sentence for people; "" for kNone.
const char* ReasonSentence(Reason reason);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_RECOGNIZER_REASONS_H_
