// What the ring kernels share. A team of blocks goes through rows; each thread has the same columns
// of every row and copies them itself to a ring of stages in shared memory, some rows ahead.
#ifndef NV_NORMS_KERNELS_CUDA_RING_CUH_
#define NV_NORMS_KERNELS_CUDA_RING_CUH_

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/ring_shape.h"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/staged.cuh"

namespace nv_norms {
namespace cuda {

struct Post;  // of team.cuh

// Of a block of a team of the grid, clerks among them, where a thread has so many numbers of a row:
// these leave it 96, 128 or 112 registers.
template <int NUMBERS>
constexpr int kTeamThreads = NUMBERS <= 16   ? 640
                             : NUMBERS <= 24 ? 512
                                             : 576;

// The place of this block and thread. A warp has neighbouring vectors: of item k this thread has
// vector `first` + 32 * k of the block's share.
struct RingPlace {
  int rank;  // of the block in its team
  int64_t team;
  int64_t teams;
  int begin;  // of the share, in vectors of a row
  int count;  // vectors of the share
  int first;
  bool any;   // the warp has vectors at all
  bool full;  // the warp has ITEMS items

  __device__ bool Has(int k, int items) const { return k < items && first + 32 * k < count; }
};

// Calls use(k, vector, has) for this thread's items, at most ITEMS. Full warps need no branches,
// between which the compiler would not overlap the items' work. MASKED: the others have none,
// either: has is false then where there is no item, and the vector is the warp's last.
template <int ITEMS, bool MASKED = false, typename F>
__device__ __forceinline__ void ForItems(const RingPlace& place, int items, const F& use) {
  if (place.full) {
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) use(k, place.first + 32 * k, true);
    return;
  }
  if (MASKED && !place.any) return;
#pragma unroll
  for (int k = 0; k < ITEMS; ++k) {
    const bool has = place.Has(k, items);
    if constexpr (MASKED) {
      use(k, min(place.first + 32 * k, place.count - 1), has);
    } else {
      if (has) use(k, place.first + 32 * k, true);
    }
  }
}

template <Team kTeam, int ITEMS>
__device__ __forceinline__ RingPlace PlaceOf(const RingShape& shape, int vectors) {
  const int blocks = shape.blocks;
  RingPlace out;
  if constexpr (kTeam == Team::kBlock) {
    out.rank = 0;
    out.team = blockIdx.x;
    out.teams = gridDim.x;
  } else {
    out.rank = kTeam == Team::kCluster
                   ? BlockRankInCluster()
                   : static_cast<int>(blockIdx.x % static_cast<unsigned>(blocks));
    out.team = blockIdx.x / static_cast<unsigned>(blocks);
    out.teams = gridDim.x / static_cast<unsigned>(blocks);
  }
  out.begin = out.rank * shape.share;
  out.count = max(0, min(shape.share, vectors - out.begin));
  const int warp_first = static_cast<int>(threadIdx.x) / 32 * 32 * shape.items;
  out.first = warp_first + static_cast<int>(threadIdx.x) % 32;
  out.any = warp_first < out.count;
  out.full = shape.items == ITEMS && warp_first + 32 * ITEMS <= out.count;
  return out;
}

// This thread's part of parameters that belong to columns, all asked for before the first is used;
// number by number where they are not aligned as vectors.
template <bool VECTORS, int VEC, int ITEMS>
__device__ __forceinline__ void LoadOwn(const RingPlace& place, int items, DType type,
                                        const void* from, int skip, float absent,
                                        float (&to)[ITEMS][VEC]) {
  if (from == nullptr) {
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
#pragma unroll
      for (int v = 0; v < VEC; ++v) to[k][v] = absent;
    }
    return;
  }
  Typed<float>::Call(type, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    const T* first = static_cast<const T*>(from) + skip + (place.begin + place.first) * VEC;
    Bits<float, VEC> bits[ITEMS] = {};
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
      if (!place.Has(k, items)) continue;
      if constexpr (VECTORS) {
        LoadBits(first + 32 * k * VEC, &bits[k]);
      } else {
#pragma unroll
        for (int v = 0; v < VEC; ++v) Word<T>::Put(first[32 * k * VEC + v], bits[k].words, v);
      }
    }
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) ConvertBits<T>(bits[k], to[k]);
  });
}

// The kernel for rows with a rim: x, in the gradient dx, of one type, y or dy of another. Null
// where there is none. Kernels has Rim<T, O>(shape).
template <typename Pointer, typename Kernels>
Pointer RimKernelFor(DType x, DType other, const RingShape& shape) {
  if (x == DType::kFloat) {
    if (other == DType::kHalf) return Kernels::template Rim<float, __half>(shape);
    if (other == DType::kBfloat16) return Kernels::template Rim<float, __nv_bfloat16>(shape);
    return Kernels::template Rim<float, float>(shape);
  }
  if (x != other) return nullptr;
  if (x == DType::kHalf) return Kernels::template Rim<__half, __half>(shape);
  return Kernels::template Rim<__nv_bfloat16, __nv_bfloat16>(shape);
}

// Whether rows with parameters of their own may be so long and so many.
inline bool ByRowFits(const RowLayout& layout, int64_t size) {
  constexpr int64_t kMost = (int64_t{1} << 31) - 1;
  return layout.rows <= kMost && layout.cols <= kMost && layout.cols * size % 16 == 0;
}

// Clusters of a kernel that the device holds at once; 0 where it cannot tell.
int64_t ClustersThatFit(const void* kernel, const RingShape& shape);

// *launched: false where the device has no room now for a team's blocks at once.
template <typename Arguments>
Status LaunchRing(const char* name, void (*kernel)(Arguments), const RingShape& shape, void* stream,
                  bool* launched, const Arguments& arguments) {
  NV_NORMS_RETURN_IF_ERROR(AllowShared(kernel, shape.shared, name));
  LaunchAttributes attributes;
  attributes.cluster = shape.allies;
  if (shape.team == Team::kCluster && shape.blocks > 1) {
    attributes.cluster = shape.blocks;
    NV_NORMS_RETURN_IF_ERROR(
        FromCuda(AllowCluster(reinterpret_cast<const void*>(kernel), shape.blocks), name));
  }
  attributes.cooperative = shape.team == Team::kGrid && shape.blocks > 1;
  return LaunchIfRoom(name, kernel, static_cast<unsigned>(shape.teams * shape.blocks),
                      static_cast<unsigned>(shape.threads), static_cast<size_t>(shape.shared),
                      attributes, stream, launched, arguments);
}

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_RING_CUH_
