// The kernels for any x86-64 CPU, or another architecture.
#include <cstring>
#include <type_traits>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "kernels/cpu/cache.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/row_params.h"
#include "kernels/cpu/short_rows.h"
#include "kernels/cpu/targets.h"

#define NV_NORMS_TARGET baseline
#define NV_NORMS_VECTOR_BYTES 16
#include "kernels/cpu/target_tables-inl.h"
