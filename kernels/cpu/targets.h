// The instruction sets that the kernels are compiled for, one of which is chosen when they first
// run: the widest one that the CPU has, or what the environment variable NV_NORMS_CPU_TARGET names.
//
// The vectors are GCC's own (vector_size) and each targets_*.cc compiles the same source below
// another `#pragma GCC target`: that is all these loops need, and it asks for no library that a
// build machine may not have (Highway's headers come with TensorFlow, but without the part that
// must be linked).
#ifndef NV_NORMS_KERNELS_CPU_TARGETS_H_
#define NV_NORMS_KERNELS_CPU_TARGETS_H_

#include "kernels/status.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define NV_NORMS_X86_TARGETS 1
#else
#define NV_NORMS_X86_TARGETS 0
#endif
// Older ones do not have AVX-512's bfloat16, or do not tell whether a CPU has it.
#if NV_NORMS_X86_TARGETS && __GNUC__ >= 11
#define NV_NORMS_X86_BFLOAT16 1
#else
#define NV_NORMS_X86_BFLOAT16 0
#endif

namespace nv_norms {
namespace cpu {

struct KernelTables;

namespace baseline {
const KernelTables& Tables();
}
#if NV_NORMS_X86_TARGETS
namespace avx2 {
const KernelTables& Tables();
}
namespace avx512 {
const KernelTables& Tables();
}
#endif
#if NV_NORMS_X86_BFLOAT16
namespace avx512bf16 {
const KernelTables& Tables();
}
#endif

struct Target {
  const char* name = nullptr;
  const KernelTables* tables = nullptr;
};

// An error if NV_NORMS_CPU_TARGET names something else than a target that this CPU can run, or
// NV_NORMS_CPU_PREFETCH no way to prefetch.
const Status& TargetStatus();
// "avx512bf16", "avx512", "avx2" or "baseline".
const Target& ChosenTarget();

}  // namespace cpu
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CPU_TARGETS_H_
