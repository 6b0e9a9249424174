#ifndef NV_NORMS_KERNELS_TENSORFLOW_CPU_THREADS_H_
#define NV_NORMS_KERNELS_TENSORFLOW_CPU_THREADS_H_

#include "kernels/cpu/norms.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace nv_norms {

// The kernel library's ParallelFor on TensorFlow's thread pool.
cpu::ParallelFor ThreadsOf(tensorflow::OpKernelContext* ctx);

}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_TENSORFLOW_CPU_THREADS_H_
