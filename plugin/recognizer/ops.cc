#include "plugin/recognizer/ops.h"

#include <set>
#include <unordered_map>

namespace nv_norms {

OpClass ClassOf(const std::string& op) {
  static const auto* const kClasses = new std::unordered_map<std::string, OpClass>{
      {"Mul", OpClass::kElementwise},
      {"Add", OpClass::kElementwise},
      {"AddV2", OpClass::kElementwise},
      {"AddN", OpClass::kElementwise},
      {"Sub", OpClass::kElementwise},
      {"RealDiv", OpClass::kElementwise},
      {"Div", OpClass::kElementwise},
      {"DivNoNan", OpClass::kElementwise},
      {"SquaredDifference", OpClass::kElementwise},
      {"Maximum", OpClass::kElementwise},
      {"Minimum", OpClass::kElementwise},
      {"Pow", OpClass::kElementwise},
      {"Neg", OpClass::kElementwise},
      {"Abs", OpClass::kElementwise},
      {"Square", OpClass::kElementwise},
      {"Sqrt", OpClass::kElementwise},
      {"Rsqrt", OpClass::kElementwise},
      {"Reciprocal", OpClass::kElementwise},
      {"Inv", OpClass::kElementwise},
      {"Exp", OpClass::kElementwise},
      {"Log", OpClass::kElementwise},
      {"_UnaryOpsComposition", OpClass::kElementwise},
      {"RsqrtGrad", OpClass::kElementwise},
      {"SqrtGrad", OpClass::kElementwise},
      {"ReciprocalGrad", OpClass::kElementwise},
      {"InvGrad", OpClass::kElementwise},
      {"BiasAdd", OpClass::kElementwise},
      {"Sum", OpClass::kReduction},
      {"Mean", OpClass::kReduction},
      {"BiasAddGrad", OpClass::kReduction},
      {"Identity", OpClass::kView},
      {"Snapshot", OpClass::kView},
      {"StopGradient", OpClass::kView},
      {"PreventGradient", OpClass::kView},
      {"Cast", OpClass::kView},
      {"Reshape", OpClass::kView},
      {"Transpose", OpClass::kView},
      {"ExpandDims", OpClass::kView},
      {"Squeeze", OpClass::kView},
      {"StridedSlice", OpClass::kView},  // as x[..., None]
      {"Tile", OpClass::kBroadcast},
      {"BroadcastTo", OpClass::kBroadcast},
      {"StridedSliceGrad", OpClass::kBroadcast},  // of x[..., None]
      {"OnesLike", OpClass::kBroadcast},
      {"ZerosLike", OpClass::kBroadcast},
      {"FusedBatchNorm", OpClass::kNorm},
      {"FusedBatchNormV2", OpClass::kNorm},
      {"FusedBatchNormV3", OpClass::kNorm},
      {"FusedBatchNormGrad", OpClass::kNormGrad},
      {"FusedBatchNormGradV2", OpClass::kNormGrad},
      {"FusedBatchNormGradV3", OpClass::kNormGrad},
      {"_MklLayerNorm", OpClass::kNorm},
      {"_MklFusedInstanceNorm", OpClass::kNorm},
  };
  auto found = kClasses->find(op);
  return found == kClasses->end() ? OpClass::kOpaque : found->second;
}

bool IsPure(const std::string& op) {
  static const auto* const kOthers = new std::set<std::string>{"Const",
                                                               "Shape",
                                                               "Pack",
                                                               "StridedSlice",
                                                               "GatherV2",
                                                               "Prod",
                                                               "Fill",
                                                               "ConcatV2",
                                                               "Size",
                                                               "Range",
                                                               "FloorDiv",
                                                               "BroadcastGradientArgs",
                                                               "Relu",
                                                               "ReluGrad",
                                                               "SelectV2",
                                                               "GreaterEqual",
                                                               "InvertPermutation",
                                                               "DynamicStitch",
                                                               "DataFormatDimMap",
                                                               "DataFormatVecPermute"};
  return ClassOf(op) != OpClass::kOpaque || kOthers->count(op) > 0;
}

bool GivesReference(const std::string& op) {
  const auto begins = [&](const char* prefix) { return op.rfind(prefix, 0) == 0; };
  if (begins("Scatter")) return op != "ScatterNd" && op != "ScatterNdNonAliasingAdd";
  return op == "VariableV2" || op == "Variable" || op == "TemporaryVariable" ||
         op == "StridedSliceAssign" || begins("Ref") || begins("Assign") || begins("Apply") ||
         begins("SparseApply");
}

bool ReadsShape(const std::string& op) { return op == "Shape" || op == "Size" || op == "Rank"; }

bool IsPlainView(const std::string& op) {
  return op == "Identity" || op == "Reshape" || op == "ExpandDims" || op == "Squeeze";
}

bool IsSum(const std::string& op) {
  return op == "AddV2" || op == "AddN" || op == "Add" || op == "Sub";
}

bool SumsUp(const std::string& op) { return op == "Sum" || op == "BiasAddGrad"; }

bool IsProduct(const std::string& op) { return op == "Mul" || op == "RealDiv"; }

}  // namespace nv_norms
