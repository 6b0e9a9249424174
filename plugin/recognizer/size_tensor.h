#ifndef NV_NORMS_PLUGIN_RECOGNIZER_SIZE_TENSOR_H_
#define NV_NORMS_PLUGIN_RECOGNIZER_SIZE_TENSOR_H_

#include <optional>
#include <string>
#include <vector>

#include "plugin/recognizer/size.h"

namespace nv_norms {

// Integers that a graph computes from shapes: axes, shapes, counts.
struct SizeTensor {
  bool scalar = false;
  std::vector<Size> values;
};

// What TensorFlow's op of the name (or nearly) puts out; no value where that hangs on a size that
// is not known, or where the inputs do not fit.
using MaybeSizes = std::optional<SizeTensor>;

SizeTensor Joined(const std::vector<SizeTensor>& parts);  // ConcatV2 of vectors, Pack of scalars
MaybeSizes Gathered(const SizeTensor& from, const SizeTensor& places);
SizeTensor CountOf(const SizeTensor& sizes, bool scalar);  // Prod over all of them
MaybeSizes RangeOf(const SizeTensor& from, const SizeTensor& to, const SizeTensor& step);
MaybeSizes Filled(const SizeTensor& count, const SizeTensor& value);
// DynamicStitch: the places, then what to put there. The last one that names a place wins.
MaybeSizes Stitched(const std::vector<SizeTensor>& inputs);
// BroadcastGradientArgs: which axes the gradient of operand `which` (0, 1) is summed over.
MaybeSizes SummedAxes(const SizeTensor& a, const SizeTensor& b, int which);
MaybeSizes BroadcastShape(const SizeTensor& a, const SizeTensor& b);  // of equal ranks
// An elementwise op of two inputs.
MaybeSizes Arithmetic(const std::string& op, const SizeTensor& a, const SizeTensor& b);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_RECOGNIZER_SIZE_TENSOR_H_
