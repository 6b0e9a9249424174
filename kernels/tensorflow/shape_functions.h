#ifndef NV_NORMS_KERNELS_TENSORFLOW_SHAPE_FUNCTIONS_H_
#define NV_NORMS_KERNELS_TENSORFLOW_SHAPE_FUNCTIONS_H_

#include "tensorflow/core/framework/shape_inference.h"

namespace nv_norms {

// Layer and RMS norm: y as x; mean (where `with_mean`) and rstd as x without the normalized axes.
absl::Status LayerNormShape(tensorflow::shape_inference::InferenceContext* c, bool with_mean);

// Group norm: y as x; mean and rstd [N, groups]; groups = -1: as many as channels.
absl::Status GroupNormShape(tensorflow::shape_inference::InferenceContext* c, int64_t groups);

// Gradients: dx as x; dscale and doffset as the axes that gamma spans.
absl::Status LayerNormGradShape(tensorflow::shape_inference::InferenceContext* c, bool with_mean);
absl::Status GroupNormGradShape(tensorflow::shape_inference::InferenceContext* c, int64_t groups);

}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_TENSORFLOW_SHAPE_FUNCTIONS_H_
