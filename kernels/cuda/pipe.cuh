// What kernels need whose warps have different work and hand tiles in shared memory to each other:
// barriers in shared memory that count arrivals.
#ifndef NV_NORMS_KERNELS_CUDA_PIPE_CUH_
#define NV_NORMS_KERNELS_CUDA_PIPE_CUH_

#include <cstdint>

#include "kernels/cuda/staged.cuh"

namespace nv_norms {
namespace cuda {

#if __CUDA_ARCH__ >= 900

// A barrier goes through phases; each ends when so many threads have arrived. Whoever waits names
// the phase's parity: 0, 1, 0, ...
struct Gate {
  uint32_t at;

  __device__ __forceinline__ Gate(const uint64_t* gates, int i)
      : at(static_cast<uint32_t>(__cvta_generic_to_shared(gates + i))) {}

  __device__ __forceinline__ void Init(int arrivals) const {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(arrivals) : "memory");
  }
  __device__ __forceinline__ void Arrive() const {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
  }
  __device__ __forceinline__ void Arrive(int arrivals) const {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(arrivals)
                 : "memory");
  }
  // When all copies that this thread has begun so far are done.
  __device__ __forceinline__ void ArriveAfterCopies() const {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(at) : "memory");
  }
  // Counts as one arrival; the phase ends when so many bytes have come, too.
  __device__ __forceinline__ void ArriveExpecting(int bytes) const {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes)
                 : "memory");
  }
  // To shared memory, a multiple of 16 bytes, all aligned to 16.
  __device__ __forceinline__ void Copy(void* to, const void* from, int bytes,
                                       uint64_t policy) const {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
        " [%0], [%1], %2, [%3], %4;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))),
        "l"(from), "r"(bytes), "r"(at), "l"(policy)
        : "memory");
  }
  __device__ __forceinline__ void Wait(unsigned parity) const {
    uint32_t done = 0;
    while (done == 0) {
      asm volatile(
          "{\n"
          "  .reg .pred p;\n"
          "  mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
          "  selp.u32 %0, 1, 0, p;\n"
          "}"
          : "=r"(done)
          : "r"(at), "r"(parity)
          : "memory");
    }
  }
};

#endif  // __CUDA_ARCH__ >= 900

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_PIPE_CUH_
