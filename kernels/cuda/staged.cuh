// Rows staged in shared memory by asynchronous copies: a block has many bytes in flight and few
// registers in use.
#ifndef NV_NORMS_KERNELS_CUDA_STAGED_CUH_
#define NV_NORMS_KERNELS_CUDA_STAGED_CUH_

#include <type_traits>

#include "kernels/cuda/numbers.cuh"

namespace nv_norms {
namespace cuda {

// 4, 8 or 16 bytes, at once on devices older than compute capability 8.0.
template <int BYTES>
__device__ __forceinline__ void CopyAsync(void* to, const void* from) {
#if __CUDA_ARCH__ >= 800
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  if constexpr (BYTES == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(address), "l"(from)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;\n" ::"r"(address), "l"(from), "n"(BYTES)
                 : "memory");
  }
#else
  using Type = typename Chunk<BYTES>::Type;
  *static_cast<Type*>(to) = *static_cast<const Type*>(from);
#endif
}

// Policies of the L2 cache: what is first to leave it, last, or in its turn.
__device__ __forceinline__ uint64_t ReadOncePolicy() {
  uint64_t policy = 0;
#if __CUDA_ARCH__ >= 800
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#endif
  return policy;
}

__device__ __forceinline__ uint64_t KeepPolicy() {
  uint64_t policy = 0;
#if __CUDA_ARCH__ >= 800
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
#endif
  return policy;
}

__device__ __forceinline__ uint64_t ReadAgainPolicy() {
  uint64_t policy = 0;
#if __CUDA_ARCH__ >= 800
  asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
#endif
  return policy;
}

// CopyAsync of 8 or 16 bytes with a policy.
template <int BYTES>
__device__ __forceinline__ void CopyAsync(void* to, const void* from, uint64_t policy) {
#if __CUDA_ARCH__ >= 800
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  if constexpr (BYTES == 16) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(address),
                 "l"(from), "l"(policy)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global.L2::cache_hint [%0], [%1], %3, %2;" ::"r"(address),
                 "l"(from), "l"(policy), "n"(BYTES)
                 : "memory");
  }
#else
  CopyAsync<BYTES>(to, from);
#endif
}

// Ends a group of copies.
__device__ __forceinline__ void CommitCopies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;\n" ::: "memory");
#endif
}

// Waits until at most `PENDING` groups of this thread are under way.
template <int PENDING>
__device__ __forceinline__ void WaitForCopies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;\n" ::"n"(PENDING) : "memory");
#endif
}

// The same for a number of groups known only when the kernel runs; of more than 8, for 8.
__device__ __forceinline__ void WaitForCopies(int pending) {
  switch (pending) {
    case 0:
      return WaitForCopies<0>();
    case 1:
      return WaitForCopies<1>();
    case 2:
      return WaitForCopies<2>();
    case 3:
      return WaitForCopies<3>();
    case 4:
      return WaitForCopies<4>();
    case 5:
      return WaitForCopies<5>();
    case 6:
      return WaitForCopies<6>();
    case 7:
      return WaitForCopies<7>();
    default:
      return WaitForCopies<8>();
  }
}

// BYTES of shared memory at once; left to itself the compiler reads number by number.
template <int BYTES>
__device__ __forceinline__ void ReadShared(const void* from, uint32_t* words) {
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(from));
  if constexpr (BYTES == 16) {
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(address));
  } else if constexpr (BYTES == 8) {
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
                 : "=r"(words[0]), "=r"(words[1])
                 : "r"(address));
  } else if constexpr (BYTES == 4) {
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(words[0]) : "r"(address));
  } else {
    static_assert(BYTES == 2);
    asm volatile("{ .reg .u16 t; ld.shared.u16 t, [%1]; cvt.u32.u16 %0, t; }"
                 : "=r"(words[0])
                 : "r"(address));
  }
}

// VEC numbers of T in shared memory.
template <typename T, int VEC>
__device__ __forceinline__ void Unpack(const void* from, float (&to)[VEC]) {
  uint32_t words[(VEC * sizeof(T) + 3) / 4];
  ReadShared<VEC * sizeof(T)>(from, words);
  if constexpr (std::is_same_v<T, __nv_bfloat16> && VEC % 2 == 0) {
    // An instruction to a number, of which the compiler makes two.
#pragma unroll
    for (int v = 0; v < VEC; v += 2) {
      to[v] = __uint_as_float(words[v / 2] << 16);
      to[v + 1] = __uint_as_float(words[v / 2] & 0xffff0000u);
    }
  } else {
#pragma unroll
    for (int v = 0; v < VEC; ++v) to[v] = To<float>::Of(Word<T>::Get(words, v));
  }
}

// The numbers in 16 bytes of T.
template <typename T>
constexpr int kVectorOf = 16 / sizeof(T);

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_STAGED_CUH_
