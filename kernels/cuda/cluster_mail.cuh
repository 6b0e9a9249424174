// How the warps of a cluster tell each other what they found out of a row. Every warp posts four
// numbers to every block, where an mbarrier counts the bytes that have come; each collects the
// posts of a row when it has summed up the next one. Nobody waits for a barrier over a block or a
// cluster.
#ifndef NV_NORMS_KERNELS_CUDA_CLUSTER_MAIL_CUH_
#define NV_NORMS_KERNELS_CUDA_CLUSTER_MAIL_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/ring.cuh"

namespace nv_norms {
namespace cuda {

// Where row `step` of a team lies in a block's shared memory. A warp posts a row when all posts of
// the row before have come, so nobody still reads posts of a row further back than two.
struct ClusterMail {
  float4* posts;       // [kMailSlots][warps of the team]
  uint64_t* barriers;  // [kMailSlots]
  int warps;           // of the team
  int own;             // this warp

  __device__ __forceinline__ const float4* Posts(unsigned step) const {
    return posts + step % kMailSlots * warps;
  }
};

__device__ __forceinline__ ClusterMail MailOf(const RingShape& shape, const RingPlace& place,
                                              void* posts, uint64_t* barriers) {
  const int warps = static_cast<int>(blockDim.x) / 32;
  return {static_cast<float4*>(posts), barriers, warps * shape.blocks,
          warps * place.rank + static_cast<int>(threadIdx.x) / 32};
}

// By all threads, before copies are started: Open, then Await before the first post.
__device__ __forceinline__ void OpenMail(const RingShape& shape, uint64_t* barriers) {
#if __CUDA_ARCH__ >= 900
  if (threadIdx.x == 0) {
    const int arrivals = shape.blocks == 1 ? static_cast<int>(blockDim.x) : 1;
    for (int i = 0; i < kMailSlots; ++i) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(
                       static_cast<unsigned>(__cvta_generic_to_shared(barriers + i))),
                   "r"(arrivals)
                   : "memory");
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  ArriveAtCluster(shape.blocks);
#endif
}

__device__ __forceinline__ void AwaitMail(const RingShape& shape) {
  if (shape.blocks == 1) {
    __syncthreads();
  } else {
    WaitForCluster(shape.blocks);
  }
}

// Which of the team's warps this is, asked of the hardware: ClusterMail::own costs a register, and
// these kernels have none left. What is spilled is read in every row, which takes up to a third of
// the time, but the compiler's choice of it is hard to tell: each kernel takes what was measured to
// be better.
__device__ __forceinline__ int WarpOfTeam() {
  unsigned rank = 0;
#if __CUDA_ARCH__ >= 900
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
  return static_cast<int>((rank * blockDim.x + threadIdx.x) / 32);
}

// By all lanes of each warp, the team's warp `own`; the lanes have the same post.
__device__ __forceinline__ void PostToCluster(const ClusterMail& mail, unsigned step, int blocks,
                                              int own, const float4& post) {
#if __CUDA_ARCH__ >= 900
  const unsigned slot = step % kMailSlots;
  const auto barrier = static_cast<unsigned>(__cvta_generic_to_shared(mail.barriers + slot));
  float4* const place = mail.posts + slot * mail.warps + own;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (blocks == 1) {  // st.async is illegal outside of clusters
    if (lane == 0) *place = post;
    // By all lanes: they have read older posts, which this slot held.
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
    return;
  }
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
                 "r"(mail.warps * static_cast<int>(sizeof(float4)))
                 : "memory");
  }
  if (lane < blocks) {
    asm volatile(
        "{\n"
        "  .reg .b32 other_post, other_barrier;\n"
        "  mapa.shared::cluster.u32 other_post, %0, %2;\n"
        "  mapa.shared::cluster.u32 other_barrier, %1, %2;\n"
        "  st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [other_post], "
        "{%3, %4, %5, %6}, [other_barrier];\n"
        "}" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(place))),
        "r"(barrier), "r"(lane), "f"(post.x), "f"(post.y), "f"(post.z), "f"(post.w)
        : "memory");
  }
#endif
}

// Until all posts of the row are there.
__device__ __forceinline__ void WaitForPosts(const ClusterMail& mail, unsigned step) {
#if __CUDA_ARCH__ >= 900
  const auto barrier =
      static_cast<unsigned>(__cvta_generic_to_shared(mail.barriers + step % kMailSlots));
  const unsigned parity = step / kMailSlots % 2;
  uint32_t complete = 0;
  while (complete == 0) {
    asm volatile(
        "{\n"
        "  .reg .pred p;\n"
        "  mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
        "  selp.u32 %0, 1, 0, p;\n"
        "}"
        : "=r"(complete)
        : "r"(barrier), "r"(parity)
        : "memory");
  }
  __syncwarp();
#endif
}

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_CLUSTER_MAIL_CUH_
