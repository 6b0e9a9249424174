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

// The bits of VEC numbers of any type that fits A. They are taken apart word by word: arrays that
// are written as one type and read as another would go through local memory.
template <typename A, int VEC>
struct Bits {
  uint32_t words[(VEC * sizeof(A) + 3) / 4];
};

template <int BYTES>
struct Chunk;
template <>
struct Chunk<2> {
  using Type = uint16_t;
  __device__ static void Split(Type chunk, uint32_t* words) { words[0] = chunk; }
  __device__ static Type Join(const uint32_t* words) { return static_cast<uint16_t>(words[0]); }
};
template <>
struct Chunk<4> {
  using Type = uint32_t;
  __device__ static void Split(Type chunk, uint32_t* words) { words[0] = chunk; }
  __device__ static Type Join(const uint32_t* words) { return words[0]; }
};
template <>
struct Chunk<8> {
  using Type = uint2;
  __device__ static void Split(const Type& chunk, uint32_t* words) {
    words[0] = chunk.x;
    words[1] = chunk.y;
  }
  __device__ static Type Join(const uint32_t* words) { return make_uint2(words[0], words[1]); }
};
template <>
struct Chunk<16> {
  using Type = uint4;
  __device__ static void Split(const Type& chunk, uint32_t* words) {
    words[0] = chunk.x;
    words[1] = chunk.y;
    words[2] = chunk.z;
    words[3] = chunk.w;
  }
  __device__ static Type Join(const uint32_t* words) {
    return make_uint4(words[0], words[1], words[2], words[3]);
  }
};

// Number v of those in these words.
template <typename T>
struct Word;
template <>
struct Word<__half> {
  __device__ static __half Get(const uint32_t* words, int v) {
    return __ushort_as_half(static_cast<unsigned short>(words[v / 2] >> (v % 2 * 16)));
  }
  __device__ static void Put(__half value, uint32_t* words, int v) {
    const uint32_t bits = __half_as_ushort(value);
    words[v / 2] = v % 2 == 0 ? bits : words[v / 2] | bits << 16;
  }
};
template <>
struct Word<__nv_bfloat16> {
  __device__ static __nv_bfloat16 Get(const uint32_t* words, int v) {
    return __ushort_as_bfloat16(static_cast<unsigned short>(words[v / 2] >> (v % 2 * 16)));
  }
  __device__ static void Put(__nv_bfloat16 value, uint32_t* words, int v) {
    const uint32_t bits = __bfloat16_as_ushort(value);
    words[v / 2] = v % 2 == 0 ? bits : words[v / 2] | bits << 16;
  }
};
template <>
struct Word<float> {
  __device__ static float Get(const uint32_t* words, int v) { return __uint_as_float(words[v]); }
  __device__ static void Put(float value, uint32_t* words, int v) {
    words[v] = __float_as_uint(value);
  }
};
template <>
struct Word<double> {
  __device__ static double Get(const uint32_t* words, int v) {
    return __hiloint2double(static_cast<int>(words[2 * v + 1]), static_cast<int>(words[2 * v]));
  }
  __device__ static void Put(double value, uint32_t* words, int v) {
    words[2 * v] = static_cast<uint32_t>(__double2loint(value));
    words[2 * v + 1] = static_cast<uint32_t>(__double2hiint(value));
  }
};

// VEC numbers at an address aligned to the vector's size, or to 16 bytes.
template <typename T, int VEC, typename A>
__device__ __forceinline__ void LoadBits(const T* from, Bits<A, VEC>* to) {
  constexpr int kBytes = VEC * sizeof(T);
  constexpr int kStep = kBytes < 16 ? kBytes : 16;
  using C = Chunk<kStep>;
#pragma unroll
  for (int i = 0; i < kBytes / kStep; ++i) {
    C::Split(reinterpret_cast<const typename C::Type*>(from)[i], to->words + i * 4);
  }
}

template <typename T, int VEC, typename A>
__device__ __forceinline__ void ConvertBits(const Bits<A, VEC>& bits, A (&to)[VEC]) {
#pragma unroll
  for (int v = 0; v < VEC; ++v) to[v] = To<A>::Of(Word<T>::Get(bits.words, v));
}

// The numbers as T, at an address aligned to the vector's size, or to 16 bytes.
template <typename T, int VEC, typename A>
__device__ __forceinline__ void StoreAs(T* to, const A (&from)[VEC]) {
  constexpr int kBytes = VEC * sizeof(T);
  constexpr int kStep = kBytes < 16 ? kBytes : 16;
  using C = Chunk<kStep>;
  uint32_t words[(kBytes + 3) / 4];
#pragma unroll
  for (int v = 0; v < VEC; ++v) Word<T>::Put(From<T>::Of(from[v]), words, v);
#pragma unroll
  for (int i = 0; i < kBytes / kStep; ++i) {
    reinterpret_cast<typename C::Type*>(to)[i] = C::Join(words + i * 4);
  }
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
    StoreAs(static_cast<T*>(to) + index, from);
  });
}

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_NUMBERS_CUH_
