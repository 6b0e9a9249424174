#ifndef NV_NORMS_PLUGIN_RECOGNIZER_OPEN_SIZES_H_
#define NV_NORMS_PLUGIN_RECOGNIZER_OPEN_SIZES_H_

#include <cstdint>
#include <set>
#include <vector>

#include "plugin/graph/shapes.h"
#include "plugin/graph/view.h"
#include "plugin/recognizer/axes.h"
#include "plugin/recognizer/problem.h"

namespace nv_norms {

// Whether x, of known rank, has an unknown size along a parameter's axes that its owner left open,
// so that it may be 1 when the graph runs: then x would be broadcast to the parameter's shape.
bool IsLeftOpenAlong(const GraphView& view, const Shapes& shapes, TensorId x, const Dims& x_dims,
                     const Dim& parameter);

// Whether the sizes of x along a parameter's axes are known. Of unknown ones the number of samples
// that a parameter of each sample is for cannot be told: 4 numbers may be of 4 with one channel.
bool KnowsSizesAlong(const Shapes& shapes, TensorId x, const Dims& x_dims, const Dim& parameter);

// Whether both have so many samples as they say. A batch of unknown size may be 1 when the graph
// runs, and be broadcast with the other's.
bool KnowsSamples(const Shapes& shapes, TensorId x, TensorId parameter);

// Whether all sizes of a parameter of each sample, with dimensions `dims`, are known but for the
// number of samples.
bool KnowsChannels(const Shapes& shapes, TensorId x, const Dims& x_dims, TensorId parameter,
                   const Dims& dims);

// The axes of a parameter that the op holds against x's: all but the samples, which it broadcasts.
Dim WithoutSamples(const Problem& problem, const Dims& x, const Dim& parameter);

// `symbols` without those that stand for the numbers of samples of x, the first of `tensors`, and
// of the others; `dims` are their dimensions.
std::set<int64_t> WithoutSizesOfSamples(const std::set<int64_t>& symbols, const Shapes& shapes,
                                        const std::vector<TensorId>& tensors,
                                        const std::vector<Dims>& dims, Axes* axes);

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_RECOGNIZER_OPEN_SIZES_H_
