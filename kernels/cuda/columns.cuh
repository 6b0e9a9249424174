// What the column kernels share. x is [n, s, channels]; a block has a strip of channels
// (threadIdx.x, in vectors) and a slab of s (threadIdx.y, row after row).
#ifndef NV_NORMS_KERNELS_CUDA_COLUMNS_CUH_
#define NV_NORMS_KERNELS_CUDA_COLUMNS_CUH_

#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/numbers.cuh"
#include "kernels/geometry.h"

namespace nv_norms {
namespace cuda {

constexpr int kColumnThreads = 256;
constexpr int kColumnVector = 4;
constexpr int kUnroll = 4;  // rows that a thread loads before it uses the first

struct ColumnShape {
  int64_t n;
  int64_t s;
  int64_t channels;
  int64_t groups;
  int64_t depth;
  int64_t n_stride;
  int64_t s_stride;
  int64_t group_stride;
  int64_t depth_stride;
  int64_t slab_rows;
  int64_t slabs;
  int64_t strips;  // blocks along the channels

  static ColumnShape Of(const ColumnLayout& layout, const Slabs& slabs, const dim3& block,
                        int vector) {
    ColumnShape out;
    out.n = layout.n;
    out.s = layout.s;
    out.channels = layout.channels();
    out.groups = layout.groups;
    out.depth = layout.depth;
    out.n_stride = layout.n_stride;
    out.s_stride = layout.s_stride;
    out.group_stride = layout.group_stride;
    out.depth_stride = layout.depth_stride;
    out.slab_rows = slabs.rows;
    out.slabs = slabs.count;
    out.strips = CeilDiv(out.channels, static_cast<int64_t>(block.x) * vector);
    return out;
  }

  // Where it does not vary along s.
  __device__ __forceinline__ int64_t ParamOf(int64_t at_n, int64_t channel) const {
    return at_n * n_stride + channel / depth * group_stride + channel % depth * depth_stride;
  }
};

// Where a block and a thread are.
struct ColumnPlace {
  int64_t n;
  int64_t slab;
  int64_t begin;  // of s
  int64_t end;
  int64_t channel;
  int64_t base;  // of x[n, 0, channel]

  __device__ __forceinline__ ColumnPlace(const ColumnShape& shape, int vector) {
    const int64_t strip = blockIdx.x % shape.strips;
    slab = blockIdx.x / shape.strips % shape.slabs;
    n = blockIdx.x / (shape.strips * shape.slabs);
    begin = slab * shape.slab_rows;
    end = min(shape.s, begin + shape.slab_rows);
    channel = (strip * blockDim.x + threadIdx.x) * vector;
    base = n * shape.s * shape.channels + channel;
  }
};

// Channels to threads: as many threads along the channels as there are vectors, up to a warp.
inline dim3 ColumnBlock(int64_t channels, int vector) {
  unsigned x = 1;
  while (x < 32 && x * vector < channels) x *= 2;
  return dim3(x, kColumnThreads / x);
}

// Slabs of s, by shape and device alone: about eight blocks to a multiprocessor, if there is that
// much. Not tuned yet.
inline Slabs ColumnSlabs(const ColumnLayout& layout, int multiprocessors) {
  const dim3 block = ColumnBlock(layout.channels(), kColumnVector);
  const int64_t strips = CeilDiv(layout.channels(), static_cast<int64_t>(block.x) * kColumnVector);
  const int64_t wanted = CeilDiv(int64_t{8} * multiprocessors, layout.n * strips);
  const int64_t most = CeilDiv(layout.s, static_cast<int64_t>(block.y) * kUnroll);
  Slabs out;
  out.rows = CeilDiv(layout.s, std::max<int64_t>(1, std::min(wanted, most)));
  out.count = CeilDiv(layout.s, out.rows);
  return out;
}

inline int64_t ColumnBlocks(const ColumnShape& shape) {
  return shape.n * shape.slabs * shape.strips;
}

// Whether the kernels of general layouts take less time than the pair that reads a slab's rows; of
// thousands of random shapes on an H200 they are as many times as fast: parameters that belong to
// rows, fewer than 16 of them 2.5 to 10, samples of less than 32768 elements 1.1 to 2, others 0.8
// to 1.1; groups whose merging (a warp to a statistic) has more to do than a block has elements 1.1
// to 600, others 0.5 to 0.9; single channels in up to 16 slabs, blocks of fewer than 4096 elements
// forward 1.3 to 10, of fewer than 1024 backward 1.2 to 8, others 0.9 to 1.1; in more slabs 0.3 to
// 0.8.
inline bool GeneralSuitsColumns(const ColumnLayout& layout, const Slabs& slabs, int vector,
                                bool backward) {
  if (layout.s_stride != 0) return layout.s < 16 || layout.s * layout.channels() < 32768;
  const dim3 block = ColumnBlock(layout.channels(), vector);
  const int64_t strips = CeilDiv(layout.channels(), static_cast<int64_t>(block.x) * vector);
  const int64_t elements = layout.s * layout.channels() / (slabs.count * strips);  // to a block
  if (layout.depth > 1) return slabs.count * layout.depth > elements;
  return slabs.count <= 16 && elements < (backward ? 1024 : 4096);
}
// For any vector: alignment is not known when a launch is planned.
inline bool GeneralMaySuitColumns(const ColumnLayout& layout, const Slabs& slabs, bool backward) {
  return GeneralSuitsColumns(layout, slabs, 1, backward) ||
         GeneralSuitsColumns(layout, slabs, kColumnVector, backward);
}

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_COLUMNS_CUH_
