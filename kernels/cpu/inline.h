// Functions of this kind leave no copy of their own in an object file: a copy that was compiled for
// one CPU could be linked into code for another.
#ifndef NV_NORMS_KERNELS_CPU_INLINE_H_
#define NV_NORMS_KERNELS_CPU_INLINE_H_

#define NV_NORMS_INLINE inline __attribute__((always_inline))

#endif  // NV_NORMS_KERNELS_CPU_INLINE_H_
