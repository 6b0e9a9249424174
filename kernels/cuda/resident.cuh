// What the resident kernels need beside the walk: stores, and their launch.
#ifndef NV_NORMS_KERNELS_CUDA_RESIDENT_CUH_
#define NV_NORMS_KERNELS_CUDA_RESIDENT_CUH_

#include <type_traits>

#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/resident.h"

namespace nv_norms {
namespace cuda {

// A vector of x's worth of numbers, as Y; void: as this type.
template <typename Y, int VEC>
__device__ __forceinline__ void StoreStrip(DType type, void* to, int64_t index,
                                           const float (&values)[VEC], bool keep) {
  if constexpr (std::is_void_v<Y>) {
    StoreVector<float, VEC>(type, to, index, values);
  } else {
    using C = Chunk<VEC * sizeof(Y)>;
    uint32_t words[4];
#pragma unroll
    for (int v = 0; v < VEC; ++v) Word<Y>::Put(From<Y>::Of(values[v]), words, v);
    auto* at = reinterpret_cast<typename C::Type*>(static_cast<Y*>(to) + index);
    if (keep) {
      *at = C::Join(words);
    } else {
      __stcs(at, C::Join(words));
    }
  }
}

// The kernel for x and y of these types, which are not double: pick(of null pointers to them) is
// it. Where x is in 16 bits, a y of another type is void.
template <typename Pick>
auto ForwardKernelOf(DType x, DType y, const Pick& pick) {
  constexpr void* kAny = nullptr;
  constexpr float* kFloat = nullptr;
  constexpr __half* kHalf = nullptr;
  constexpr __nv_bfloat16* kBfloat16 = nullptr;
  if (x == DType::kHalf) return y == x ? pick(kHalf, kHalf) : pick(kHalf, kAny);
  if (x == DType::kBfloat16) return y == x ? pick(kBfloat16, kBfloat16) : pick(kBfloat16, kAny);
  if (y == DType::kHalf) return pick(kFloat, kHalf);
  return y == DType::kBfloat16 ? pick(kFloat, kBfloat16) : pick(kFloat, kFloat);
}

// Whether there is a gradient for these types: dy has x's, or x and dx are in float32 and dy is in
// 16 bits, as mixed precision has it.
inline bool HasGradientKernel(const BackwardProblem& problem) {
  return !problem.in_double() && (problem.dy == problem.x || MixedGradient(problem));
}

// The kernel for x, dy and dx of these types: pick(of null pointers to them) is it. Where dy has
// x's type, a dx of another is void.
template <typename Pick>
auto BackwardKernelOf(const BackwardProblem& problem, const Pick& pick) {
  constexpr float* kFloat = nullptr;
  if (problem.dy != problem.x) {
    return problem.dy == DType::kHalf ? pick(kFloat, static_cast<__half*>(nullptr), kFloat)
                                      : pick(kFloat, static_cast<__nv_bfloat16*>(nullptr), kFloat);
  }
  const auto of = [&](auto* x) {
    return problem.dx == problem.x ? pick(x, x, x) : pick(x, x, static_cast<void*>(nullptr));
  };
  if (problem.x == DType::kFloat) return of(kFloat);
  if (problem.x == DType::kHalf) return of(static_cast<__half*>(nullptr));
  return of(static_cast<__nv_bfloat16*>(nullptr));
}

// Bytes of dy beside a vector of x.
inline int BesideOf(const BackwardProblem& problem) {
  return static_cast<int>(kVectorBytes / SizeOf(problem.x) * SizeOf(problem.dy));
}

// together: blocks wait for each other. *launched: false where the device has no room now for so
// many at once.
template <typename... P, typename... Q>
Status LaunchTogether(const char* name, void (*kernel)(P...), int blocks, int threads,
                      bool together, int64_t shared, void* stream, bool* launched,
                      const Q&... arguments) {
  *launched = false;
  NV_NORMS_RETURN_IF_ERROR(AllowShared(kernel, shared, name));
  LaunchAttributes attributes;
  attributes.cooperative = together;
  return LaunchIfRoom(name, kernel, static_cast<unsigned>(blocks), static_cast<unsigned>(threads),
                      static_cast<size_t>(shared), attributes, stream, launched, arguments...);
}

template <typename... P, typename... Q>
Status LaunchResident(const char* name, void (*kernel)(P...), int blocks, bool together,
                      int64_t shared, void* stream, bool* launched, const Q&... arguments) {
  return LaunchTogether(name, kernel, blocks, kResidentThreads, together, shared, stream, launched,
                        arguments...);
}

// What shared memory holds of VEC neighbouring columns.
template <int VEC>
__device__ __forceinline__ void LoadColumns(const float* from, float (&to)[VEC]) {
#pragma unroll
  for (int v = 0; v < VEC; v += 4) {
    const float4 at = *reinterpret_cast<const float4*>(from + v);
    to[v] = at.x;
    to[v + 1] = at.y;
    to[v + 2] = at.z;
    to[v + 3] = at.w;
  }
}

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_RESIDENT_CUH_
