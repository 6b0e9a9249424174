// NV_NORMS_CLONES before a function compiles it once for each instruction set worth having; the
// loader picks one when the library is loaded. The function must not be a template.
#ifndef NV_NORMS_KERNELS_CPU_TARGETS_H_
#define NV_NORMS_KERNELS_CPU_TARGETS_H_

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define NV_NORMS_CLONES \
  __attribute__((target_clones("arch=skylake-avx512", "arch=haswell", "default")))
#else
#define NV_NORMS_CLONES
#endif

#define NV_NORMS_INLINE inline __attribute__((always_inline))

#endif  // NV_NORMS_KERNELS_CPU_TARGETS_H_
