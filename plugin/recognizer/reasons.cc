#include "plugin/recognizer/reasons.h"

namespace nv_norms {

const char* ReasonName(Reason reason) {
  switch (reason) {
    case Reason::kNone:
      return "";
    case Reason::kNotANormalization:
      return "not_a_normalization";
    case Reason::kEpsilonNotConstant:
      return "epsilon_not_constant";
    case Reason::kEpsilonLost:
      return "epsilon_lost";
    case Reason::kEpsilonOutOfRange:
      return "epsilon_out_of_range";
    case Reason::kNoEpsilon:
      return "no_epsilon";
    case Reason::kMomentsDiffer:
      return "moments_differ";
    case Reason::kParameterVaries:
      return "parameter_varies";
    case Reason::kOperandCancels:
      return "operand_cancels";
    case Reason::kNoOutput:
      return "no_output";
    case Reason::kNoGradient:
      return "no_gradient";
    case Reason::kSizesUnknown:
      return "sizes_unknown";
    case Reason::kGradientElsewhere:
      return "gradient_elsewhere";
    case Reason::kNotExpressible:
      return "not_expressible";
    case Reason::kUnsupportedType:
      return "unsupported_type";
    case Reason::kOtherDevice:
      return "other_device";
    case Reason::kNobodyReadsIt:
      return "nobody_reads_it";
    case Reason::kBatchStatistics:
      return "batch_statistics";
    case Reason::kCompiledByXla:
      return "compiled_by_xla";
    case Reason::kUnknownRank:
      return "unknown_rank";
    case Reason::kPreserved:
      return "preserved";
    case Reason::kParameterOrder:
      return "parameter_order";
    case Reason::kStatisticsOrder:
      return "statistics_order";
    case Reason::kOtherChannelAxis:
      return "other_channel_axis";
    case Reason::kMixedLayouts:
      return "mixed_layouts";
    case Reason::kNotFree:
      return "not_free";
  }
  return "unknown";
}

const char* ReasonSentence(Reason reason) {
  switch (reason) {
    case Reason::kNone:
      return "";
    case Reason::kNotANormalization:
      return "the inverse root is not that of a variance or mean square plus a constant";
    case Reason::kEpsilonNotConstant:
      return "epsilon is not a constant of at least 0";
    case Reason::kEpsilonLost:
      return "TensorFlow's remapper put a fixed epsilon in the place of the graph's";
    case Reason::kEpsilonOutOfRange:
      return "epsilon is too small for the fused ops, which keep it as normal numbers of float32";
    case Reason::kNoEpsilon:
      return "without an epsilon equal numbers give 0 / 0, of which rounding may make a number";
    case Reason::kMomentsDiffer:
      return "the variance runs over other axes than the mean";
    case Reason::kParameterVaries:
      return "gamma or beta varies along other axes than a normalization's parameters do";
    case Reason::kOperandCancels:
      return "a tensor that is no parameter (weights of the moments, say) takes part, and cancels "
             "only where it is not 0";
    case Reason::kNoOutput:
      return "no tensor equals xhat * gamma + beta";
    case Reason::kNoGradient:
      return "no tensors equal the gradients of x, gamma and beta";
    case Reason::kSizesUnknown:
      return "the gradient of x has another shape than x, of which several sizes are not known";
    case Reason::kGradientElsewhere:
      return "the gradient is in another loop or branch, which gets inner tensors through lists";
    case Reason::kNotExpressible:
      return "no fused op covers these axes";
    case Reason::kUnsupportedType:
      return "the types are not half, bfloat16, float32 or float64";
    case Reason::kOtherDevice:
      return "its parts or its gradient live on different devices";
    case Reason::kNobodyReadsIt:
      return "nobody reads the output";
    case Reason::kBatchStatistics:
      return "the moments run over the first axis, as a batch normalization's do";
    case Reason::kCompiledByXla:
      return "XLA compiles this function: it is fused where Python traces it, not out of a graph";
    case Reason::kUnknownRank:
      return "the rank of x is not known";
    case Reason::kPreserved:
      return "the output is fetched as it is";
    case Reason::kParameterOrder:
      return "gamma or beta run along several axes, whose order would change";
    case Reason::kStatisticsOrder:
      return "mean and rstd run along several axes, whose order would change";
    case Reason::kOtherChannelAxis:
      return "the Transposes move another axis than the normalization's channels";
    case Reason::kMixedLayouts:
      return "an op between the Transposes would have to run in both layouts";
    case Reason::kNotFree:
      return "the layout of this op cannot change";
  }
  return "unknown";
}

}  // namespace nv_norms
