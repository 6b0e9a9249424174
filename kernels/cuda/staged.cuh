// Rows staged in shared memory by asynchronous copies: a block has many bytes in flight and few
// registers in use. A thread reads only what it copied itself, so no barrier is needed in between.
#ifndef NV_NORMS_KERNELS_CUDA_STAGED_CUH_
#define NV_NORMS_KERNELS_CUDA_STAGED_CUH_

#include "kernels/cuda/numbers.cuh"

namespace nv_norms {
namespace cuda {

// 16 bytes, at once on devices older than compute capability 8.0.
__device__ __forceinline__ void CopyAsync(uint4* to, const uint4* from) {
#if __CUDA_ARCH__ >= 800
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(address), "l"(from) : "memory");
#else
  *to = *from;
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

// The numbers in 16 bytes of T.
template <typename T>
constexpr int kVectorOf = 16 / sizeof(T);

// Reads 16 bytes of shared memory at once; left to itself the compiler reads number by number.
template <typename T>
__device__ __forceinline__ void Unpack(const uint4& from, float (&to)[kVectorOf<T>]) {
  uint32_t words[4];
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(&from));
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address)
               : "memory");
#pragma unroll
  for (int v = 0; v < kVectorOf<T>; ++v) to[v] = To<float>::Of(Word<T>::Get(words, v));
}

// gamma or beta, which no kernel writes; absent ones are `absent`.
template <typename P, int VEC>
__device__ __forceinline__ void LoadParamVector(DType type, const void* from, int c, float absent,
                                                float (&to)[VEC]) {
  if (from == nullptr) {
#pragma unroll
    for (int v = 0; v < VEC; ++v) to[v] = absent;
    return;
  }
  P::Call(type, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    constexpr int kBytes = VEC * sizeof(T);
    constexpr int kStep = kBytes < 16 ? kBytes : 16;
    using C = Chunk<kStep>;
    Bits<float, VEC> bits;
#pragma unroll
    for (int i = 0; i < kBytes / kStep; ++i) {
      C::Split(
          __ldg(reinterpret_cast<const typename C::Type*>(static_cast<const T*>(from) + c) + i),
          bits.words + i * 4);
    }
    ConvertBits<T>(bits, to);
  });
}

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_STAGED_CUH_
