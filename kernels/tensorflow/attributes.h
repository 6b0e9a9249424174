// From an op's attributes and the shapes that it is given to the kernel library's problems.
#ifndef NV_NORMS_KERNELS_TENSORFLOW_ATTRIBUTES_H_
#define NV_NORMS_KERNELS_TENSORFLOW_ATTRIBUTES_H_

#include <string>
#include <vector>

#include "kernels/problem.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace nv_norms {

enum class Kind { kLayerNorm, kRMSNorm, kInstanceNorm, kGroupNorm };

struct Attributes {
  Kind kind = Kind::kLayerNorm;
  std::vector<int64_t> axis;  // layer and RMS norm
  bool channels_last = true;  // instance and group norm
  int64_t groups = -1;        // group norm; -1: as many as channels
  bool per_sample = false;    // each sample has its own parameters
  Formula formula = Formula::kCenter;
  double epsilon = 0;     // forward ops only
  Activation activation;  // instance and group norm
  bool has_scale = false;
  bool has_offset = false;  // forward ops, and gradients of instance and group norm

  // Layer and RMS norm; the others are norms of channels.
  bool over_axes() const { return kind == Kind::kLayerNorm || kind == Kind::kRMSNorm; }
};

// Which outputs of a gradient op are wanted, and their types.
struct Wanted {
  bool dx = false;
  bool dscale = false;
  bool doffset = false;
  tensorflow::DataType dx_type = tensorflow::DT_FLOAT;
  tensorflow::DataType param_type = tensorflow::DT_FLOAT;
};

absl::Status ReadAttributes(tensorflow::OpKernelConstruction* ctx, Kind kind, bool forward,
                            Attributes* out);
absl::Status ReadWanted(tensorflow::OpKernelConstruction* ctx, Wanted* out);

// float64 for float64 x, else float32.
absl::Status CheckStatType(tensorflow::OpKernelConstruction* ctx);

absl::Status MakeGeometry(const Attributes& attributes, const tensorflow::TensorShape& x,
                          Geometry* out);
// How many parameters there are, of each sample if these have their own.
int64_t ParamsOfSample(const Attributes& attributes, const tensorflow::TensorShape& x);
// Of mean and rstd.
tensorflow::TensorShape StatShape(const Attributes& attributes, const tensorflow::TensorShape& x);
// Of dscale and doffset.
tensorflow::TensorShape ParamShape(const Attributes& attributes, const tensorflow::TensorShape& x);

absl::Status CheckParam(const char* name, const tensorflow::TensorShape& param,
                        const Geometry& geometry, const tensorflow::TensorShape& x);

DType ToDType(tensorflow::DataType type);
absl::Status ToTensorFlow(const Status& status);

}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_TENSORFLOW_ATTRIBUTES_H_
