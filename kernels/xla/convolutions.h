#ifndef NV_NORMS_KERNELS_XLA_CONVOLUTIONS_H_
#define NV_NORMS_KERNELS_XLA_CONVOLUTIONS_H_

// The data format in which XLA_FLAGS has XLA run all convolutions on a GPU: "N...C", "NC...", or
// "" where XLA chooses one for each. Reads XLA_FLAGS, if XLA has not yet.
extern "C" const char* NvNormsConvolutionFormat();

#endif  // NV_NORMS_KERNELS_XLA_CONVOLUTIONS_H_
