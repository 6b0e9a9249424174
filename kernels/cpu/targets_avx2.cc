// The kernels for x86-64-v3: AVX2, FMA, F16C.
#include "kernels/cpu/targets.h"

#if NV_NORMS_X86_TARGETS
#include <immintrin.h>

#include <cstring>
#include <type_traits>
#include <utility>

#include "kernels/cpu/cache.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/row_params.h"
#include "kernels/cpu/short_rows.h"

#pragma GCC target("avx2,fma,f16c,bmi,bmi2")

#define NV_NORMS_TARGET avx2
#define NV_NORMS_VECTOR_BYTES 32
#include "kernels/cpu/target_tables-inl.h"

#endif  // NV_NORMS_X86_TARGETS
