// The kernels of bfloat16 for CPUs that have AVX-512's own rounding to it; all others are
// AVX-512's.
#include "kernels/cpu/targets.h"

#if NV_NORMS_X86_BFLOAT16
#include <immintrin.h>

#include <cstring>
#include <type_traits>
#include <utility>

#include "kernels/cpu/cache.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/row_params.h"
#include "kernels/cpu/short_rows.h"

#pragma GCC target("avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c,bmi,bmi2")

#define NV_NORMS_TARGET avx512bf16
#define NV_NORMS_VECTOR_BYTES 64
#define NV_NORMS_BFLOAT16 1
#include "kernels/cpu/target_tables-inl.h"

#endif  // NV_NORMS_X86_BFLOAT16
