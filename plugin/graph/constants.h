#ifndef NV_NORMS_PLUGIN_GRAPH_CONSTANTS_H_
#define NV_NORMS_PLUGIN_GRAPH_CONSTANTS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "plugin/graph/view.h"

namespace nv_norms {

struct IntTensor {
  bool scalar = false;
  std::vector<int64_t> values;
};

bool IsFloat(tensorflow::DataType dtype);   // half, bfloat16, float32, float64
bool IsInt(tensorflow::DataType dtype);     // int32, int64
bool IsNarrow(tensorflow::DataType dtype);  // half, bfloat16

// A Cast from half or bfloat16 to float32, which loses nothing.
bool IsWideningCast(const GraphView& view, int node);

// A Cast to a floating-point type with fewer digits than `dtype` has.
bool IsRoundingOf(const GraphView& view, int node, tensorflow::DataType dtype);

// The value of a Const of floating type whose elements are all equal, however many there are.
std::optional<double> FloatSplat(const GraphView& view, int node);
// The elements of a Const of type int32 or int64 with rank 0 or 1 and at most 64 elements, of
// several that are joined (the order of the axes in Keras' Dense), or of the InvertPermutation of
// either (the gradient of a Transpose): only Grappler's folding computes these.
std::optional<IntTensor> IntConstant(const GraphView& view, int node);
// Those of a Const of any rank, row by row.
std::optional<std::vector<int64_t>> IntElements(const GraphView& view, int node);
// Entry `row` of a vector, or row `row` of a matrix, of `rows`: of a Const, or of a Pack, whose
// others may be unknown.
std::optional<std::vector<int64_t>> IntRow(const GraphView& view, int node, size_t row,
                                           size_t rows);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_GRAPH_CONSTANTS_H_
