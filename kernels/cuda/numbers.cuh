// Numbers of a type known only when the kernel runs. The type is the same for all threads of a
// launch, so a switch over it costs a branch and no divergence; it stands outside the loops, so
// that all of a tile's loads are in flight before the first is used.
#ifndef NV_NORMS_KERNELS_CUDA_NUMBERS_CUH_
#define NV_NORMS_KERNELS_CUDA_NUMBERS_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/problem.h"

namespace nv_norms {
namespace cuda {

template <typename A>
struct To {
  __device__ static A Of(__half v) { return static_cast<A>(__half2float(v)); }
  __device__ static A Of(__nv_bfloat16 v) { return static_cast<A>(__bfloat162float(v)); }
  __device__ static A Of(float v) { return static_cast<A>(v); }
  __device__ static A Of(double v) { return static_cast<A>(v); }
};

template <typename T>
struct From;
template <>
struct From<__half> {
  __device__ static __half Of(float v) { return __float2half_rn(v); }
  __device__ static __half Of(double v) { return __double2half(v); }
};
template <>
struct From<__nv_bfloat16> {
  __device__ static __nv_bfloat16 Of(float v) { return __float2bfloat16_rn(v); }
  __device__ static __nv_bfloat16 Of(double v) { return __double2bfloat16(v); }
};
template <>
struct From<float> {
  __device__ static float Of(float v) { return v; }
  __device__ static float Of(double v) { return static_cast<float>(v); }
};
template <>
struct From<double> {
  __device__ static double Of(float v) { return v; }
  __device__ static double Of(double v) { return v; }
};

// Calls f with a null pointer of the type.
template <typename F>
__device__ __forceinline__ void WithType(DType type, const F& f) {
  switch (type) {
    case DType::kHalf:
      return f(static_cast<__half*>(nullptr));
    case DType::kBfloat16:
      return f(static_cast<__nv_bfloat16*>(nullptr));
    case DType::kFloat:
      return f(static_cast<float*>(nullptr));
    case DType::kDouble:
      return f(static_cast<double*>(nullptr));
  }
}

// The same without double, which does not occur where computing in float.
template <typename A>
struct Typed {
  template <typename F>
  __device__ __forceinline__ static void Call(DType type, const F& f) {
    switch (type) {
      case DType::kHalf:
        return f(static_cast<__half*>(nullptr));
      case DType::kBfloat16:
        return f(static_cast<__nv_bfloat16*>(nullptr));
      default:
        return f(static_cast<float*>(nullptr));
    }
  }
};
template <>
struct Typed<double> {
  template <typename F>
  __device__ __forceinline__ static void Call(DType type, const F& f) {
    WithType(type, f);
  }
};

// How a kernel finds out a tensor's type: known when it was compiled, or any that fits A.
template <typename T>
struct Fixed {
  template <typename F>
  __device__ __forceinline__ static void Call(DType, const F& f) {
    f(static_cast<T*>(nullptr));
  }
};
template <typename A>
struct Any {
  template <typename F>
  __device__ __forceinline__ static void Call(DType type, const F& f) {
    Typed<A>::Call(type, f);
  }
};

template <typename A, typename How = Any<A>>
__device__ __forceinline__ A LoadOne(DType type, const void* from, int64_t index) {
  A value = 0;
  How::Call(type, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    value = To<A>::Of(static_cast<const T*>(from)[index]);
  });
  return value;
}

template <typename A>
__device__ __forceinline__ void StoreOne(DType type, void* to, int64_t index, A value) {
  Typed<A>::Call(type, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    static_cast<T*>(to)[index] = From<T>::Of(value);
  });
}

template <typename A>
__device__ __forceinline__ A ParamOr(DType type, const void* from, int64_t index, A absent) {
  return from == nullptr ? absent : LoadOne<A>(type, from, index);
}

// The bits of VEC numbers of any type that fits A, aligned like a vector of them.
template <typename A, int VEC>
struct alignas(16) Bits {
  uint32_t words[VEC * sizeof(A) / 4];
};

template <int BYTES>
struct Chunk;
template <>
struct Chunk<2> {
  using Type = uint16_t;
};
template <>
struct Chunk<4> {
  using Type = uint32_t;
};
template <>
struct Chunk<8> {
  using Type = uint2;
};
template <>
struct Chunk<16> {
  using Type = uint4;
};

// VEC numbers at an address aligned to the vector's size, or to 16 bytes.
template <typename T, int VEC, typename A>
__device__ __forceinline__ void LoadBits(const T* from, Bits<A, VEC>* to) {
  constexpr int kBytes = VEC * sizeof(T);
  constexpr int kStep = kBytes < 16 ? kBytes : 16;
  using C = typename Chunk<kStep>::Type;
#pragma unroll
  for (int i = 0; i < kBytes / kStep; ++i) {
    reinterpret_cast<C*>(to->words)[i] = reinterpret_cast<const C*>(from)[i];
  }
}

template <typename T, int VEC, typename A>
__device__ __forceinline__ void ConvertBits(const Bits<A, VEC>& bits, A (&to)[VEC]) {
  const T* from = reinterpret_cast<const T*>(bits.words);
#pragma unroll
  for (int v = 0; v < VEC; ++v) to[v] = To<A>::Of(from[v]);
}

template <typename A, int VEC, typename How = Any<A>>
__device__ __forceinline__ void LoadVector(DType type, const void* from, int64_t index,
                                           A (&to)[VEC]) {
  How::Call(type, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    Bits<A, VEC> bits;
    LoadBits(static_cast<const T*>(from) + index, &bits);
    ConvertBits<T>(bits, to);
  });
}

template <typename A, int VEC, typename How = Any<A>>
__device__ __forceinline__ void StoreVector(DType type, void* to, int64_t index,
                                            const A (&from)[VEC]) {
  How::Call(type, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    constexpr int kBytes = VEC * sizeof(T);
    constexpr int kStep = kBytes < 16 ? kBytes : 16;
    using C = typename Chunk<kStep>::Type;
    alignas(16) T values[VEC];
#pragma unroll
    for (int v = 0; v < VEC; ++v) values[v] = From<T>::Of(from[v]);
#pragma unroll
    for (int i = 0; i < kBytes / kStep; ++i) {
      reinterpret_cast<C*>(static_cast<T*>(to) + index)[i] = reinterpret_cast<const C*>(values)[i];
    }
  });
}

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_NUMBERS_CUH_
