// A team of blocks that has a row at a time, each block the same columns of every row. What a block
// found out of its part of a row is posted to the others, and collected one or more rows later, so
// that nobody waits. Either a cluster, through distributed shared memory, or blocks anywhere on the
// GPU, all of them resident (a cooperative launch), through global memory.
#ifndef NV_NORMS_KERNELS_CUDA_TEAM_CUH_
#define NV_NORMS_KERNELS_CUDA_TEAM_CUH_

#include <cooperative_groups.h>

#include <cstdint>

#include "kernels/cuda/reduce.cuh"

namespace nv_norms {
namespace cuda {

enum class Team { kBlock, kCluster, kGrid };

constexpr int kMaxTeamCluster = 16;
constexpr int kMaxTeamGrid = 256;

// What blocks post: three numbers, none of them of these bits, to which mailboxes in global memory
// are set before.
constexpr int kPostNumbers = 3;
constexpr uint32_t kNothingPosted = 0xffffffffu;

// In a block's shared memory; posts of even and odd rows have their own place.
struct ClusterMail {
  float posts[2][kPostNumbers][kMaxTeamCluster];
};

// Called by all threads, each of which has `post`; rank: of the block in its team. The cluster is
// to be waited for before posts are read.
__device__ __forceinline__ void PostToCluster(ClusterMail* mail, int parity, int rank, int blocks,
                                              const float (&post)[kPostNumbers]) {
#if __CUDA_ARCH__ >= 900
  namespace cg = cooperative_groups;
  if (threadIdx.x < blocks) {
    ClusterMail* other = cg::this_cluster().map_shared_rank(mail, threadIdx.x);
#pragma unroll
    for (int n = 0; n < kPostNumbers; ++n) other->posts[parity][n][rank] = post[n];
  }
  cg::this_cluster().barrier_arrive();
#endif
}

__device__ __forceinline__ uint32_t PostedBits(float value) {
  const uint32_t bits = __float_as_uint(value);
  return bits == kNothingPosted ? 0x7fffffffu : bits;  // another NaN
}

// mail: of one row, [kPostNumbers][blocks]; called by one thread.
__device__ __forceinline__ void PostToGrid(uint32_t* mail, int rank, int blocks,
                                           const float (&post)[kPostNumbers]) {
#pragma unroll
  for (int n = 0; n < kPostNumbers; ++n) {
    __stcg(mail + n * blocks + rank, PostedBits(post[n]));
  }
}

__device__ __forceinline__ float WaitForPost(const uint32_t* from) {
  uint32_t bits;
  do {
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(bits) : "l"(from) : "memory");
  } while (bits == kNothingPosted);
  return __uint_as_float(bits);
}

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_TEAM_CUH_
