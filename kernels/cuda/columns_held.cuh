// How a block holds columns: see columns_held.h.
#ifndef NV_NORMS_KERNELS_CUDA_COLUMNS_HELD_CUH_
#define NV_NORMS_KERNELS_CUDA_COLUMNS_HELD_CUH_

#include "kernels/cuda/columns_held.h"
#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/reduce.cuh"

namespace nv_norms {
namespace cuda {

// Where a thread is.
struct HeldColumnPlace {
  int sample;    // of the block's
  int position;  // the first
  int vector;    // of the block's, in a position
  int channel;   // of the tensor's, the first
  int group;     // of the chunk's: that of the first channel,
  int before;    // and channels of it before
  bool live;

  template <int VEC>
  static __device__ __forceinline__ HeldColumnPlace Of(const HeldColumnShape& shape, int chunk) {
    HeldColumnPlace out;
    const int thread = static_cast<int>(threadIdx.x);
    const int rest = shape.by_vectors.Quotient(thread);
    out.vector = thread - rest * shape.vectors;
    out.sample = shape.by_positions.Quotient(rest);
    out.position = rest - out.sample * shape.positions;
    out.live = out.sample < shape.samples;
    const int first = out.vector * VEC;
    out.channel = chunk * shape.vectors * VEC + first;
    out.group = shape.by_depth.Quotient(first);
    out.before = first - out.group * shape.depth;
    return out;
  }
  // Of the thread's first part in shared memory, of [samples][positions][parts of a position].
  __device__ __forceinline__ int PartAt(const HeldColumnShape& shape, int parts_of_vector) const {
    return ((sample * shape.positions + position) * shape.vectors + vector) * parts_of_vector;
  }
  // Calls use(v, group) for the thread's channels, or once where groups are whole vectors.
  template <int PARTS, typename F>
  __device__ __forceinline__ void ForGroups(const HeldColumnShape& shape, const F& use) const {
    int at = group;
    int within = before;
#pragma unroll
    for (int v = 0; v < PARTS; ++v) {
      use(v, at);
      if (++within == shape.depth) {
        within = 0;
        ++at;
      }
    }
  }
};

// A thread's numbers to shared memory.
template <int COUNT>
__device__ __forceinline__ void StoreParts(float* to, const float (&values)[COUNT]) {
  if constexpr (COUNT % 4 == 0) {
#pragma unroll
    for (int v = 0; v < COUNT; v += 4) {
      *reinterpret_cast<float4*>(to + v) =
          make_float4(values[v], values[v + 1], values[v + 2], values[v + 3]);
    }
  } else {
#pragma unroll
    for (int v = 0; v < COUNT; ++v) to[v] = values[v];
  }
}

// For every group of the block some lanes of a warp call work(group of the block, its first part,
// its sample, its number in the chunk, whether this lane is the first and there is such a group,
// for_parts); for_parts(add) calls add(part, position) for the lane's parts of the group.
template <typename Work>
__device__ __forceinline__ void ForHeldGroups(const HeldColumnShape& shape, const Work& work) {
  const int lane = threadIdx.x & (shape.lanes - 1);
  const int beside = shape.lanes / shape.lanes_apart;
  const int first_part = lane & (beside - 1);
  const int first_position = lane / beside;
  const int count = shape.samples * shape.groups;
  const int at_once = static_cast<int>(blockDim.x) / shape.lanes;
  const int row = shape.PartsOfPosition();
  for (int first = 0; first < count; first += at_once) {
    const int at = first + static_cast<int>(threadIdx.x) / shape.lanes;
    const int sample = shape.by_groups.Quotient(at);
    const int group = at - sample * shape.groups;
    const int begin = at < count ? sample * shape.positions * row + group * shape.parts : 0;
    const auto for_parts = [&](const auto& add) {
      if (at >= count) return;
      for (int position = first_position; position < shape.positions;
           position += shape.lanes_apart) {
        for (int part = first_part; part < shape.parts; part += beside) {
          add(begin + position * row + part, position);
        }
      }
    };
    work(at, begin, sample, group, at < count && lane == 0, for_parts);
  }
}

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_COLUMNS_HELD_CUH_
