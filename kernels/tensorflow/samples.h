// Norms with parameters of each sample, where x, scale or offset may have one sample that stands
// for as many as the others have.
#ifndef NV_NORMS_KERNELS_TENSORFLOW_SAMPLES_H_
#define NV_NORMS_KERNELS_TENSORFLOW_SAMPLES_H_

#include <deque>
#include <functional>

#include "kernels/tensorflow/attributes.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace nv_norms {

// The shape of y: x's, but that where x has one sample y has as many as a parameter (null: not
// there) that has more. Whether the parameters fit is CheckParam's affair.
tensorflow::TensorShape ShapeOfY(const Attributes& attributes, const tensorflow::TensorShape& x,
                                 const tensorflow::TensorShape* scale,
                                 const tensorflow::TensorShape* offset);

// Whether a parameter is that of one sample, of y's many.
bool IsShared(const Attributes& attributes, const tensorflow::TensorShape& param,
              const tensorflow::TensorShape& y);

// Copies on an op's device, in the order of its launches.
using CopyBytes = std::function<absl::Status(void* to, const void* from, int64_t bytes)>;

// And as dy tells it, for which offset need not be there.
tensorflow::TensorShape ShapeOfY(const Attributes& attributes, const tensorflow::TensorShape& x,
                                 const tensorflow::TensorShape& dy);

// An op's x, scale and offset, which follow each other, with as many samples as y, or dy, has.
class Inputs {
 public:
  Inputs(tensorflow::OpKernelContext* ctx, const Attributes& attributes, int x,
         const tensorflow::Tensor* dy, CopyBytes copy);

  const tensorflow::TensorShape& y_shape() const { return y_shape_; }
  // These repeat what has one sample; the data live as long as this.
  absl::Status X(const void** data);
  absl::Status Scale(const Geometry& geometry, DType* type, const void** data);
  absl::Status Offset(const Geometry& geometry, DType* type, const void** data);

 private:
  absl::Status Param(const char* name, const tensorflow::Tensor* param, const Geometry& geometry,
                     DType* type, const void** data);
  absl::Status Repeat(const tensorflow::Tensor& one, const tensorflow::TensorShape& shape,
                      const void** data);

  tensorflow::OpKernelContext* ctx_;
  const Attributes& attributes_;
  CopyBytes copy_;
  const tensorflow::Tensor* x_;
  const tensorflow::Tensor* scale_ = nullptr;
  const tensorflow::Tensor* offset_ = nullptr;
  tensorflow::TensorShape y_shape_;
  std::deque<tensorflow::Tensor> repeated_;
};

// The sum of samples of `size` elements each, as the gradient of an RMS norm's offset, which all
// rows share. That does not depend on rstd: any will do of as many numbers as samples, of the type
// `stat`, which is no wider than the parts.
absl::Status SumOfSamples(const tensorflow::Tensor& parts, int64_t size, DType stat,
                          const void* rstd, tensorflow::DataType out_type, void* out,
                          BackwardProblem* problem, BackwardBuffers* buffers);

}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_TENSORFLOW_SAMPLES_H_
