// Reductions over any axes, by index arithmetic. A reduction has outputs (statistics, or
// parameters) and for each of them inputs. A block has a tile: some outputs, neighbours, and the
// inputs of these or, where outputs are few, a chunk of them.
#ifndef NV_NORMS_KERNELS_CUDA_GENERAL_CUH_
#define NV_NORMS_KERNELS_CUDA_GENERAL_CUH_

#include "kernels/cuda/divisor.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/terms.cuh"

namespace nv_norms {
namespace cuda {

constexpr int kGeneralThreads = 256;
constexpr int kGeneralUnroll = 4;  // elements that a thread loads before it uses the first

// Where an element lies in x, in gamma, and in mean.
struct GeneralPlace {
  int64_t offset = 0;
  int64_t param = 0;
  int64_t stat = 0;
};

constexpr int64_t kMostPlaces = int64_t{1} << 31;  // that an unsigned index is for

// Some axes of a tensor, the last one fastest.
struct Walk {
  int64_t count = 1;  // places
  int rank = 0;
  Axis axes[kMaxRank];
  Divisor divisors[kMaxRank] = {};

  void Add(const Axis& axis) {
    count *= axis.size;
    axes[rank] = axis;
    if (axis.size < kMostPlaces) divisors[rank] = Divisor::Of(axis.size);
    ++rank;
  }
  bool HasNeighbours() const { return rank > 0 && axes[rank - 1].stride == 1; }

  // The index-th place, counted from `place`.
  template <typename Index>
  __device__ __forceinline__ GeneralPlace At(Index index, GeneralPlace place) const {
    for (int i = rank - 1; i >= 0; --i) {
      const Axis& axis = axes[i];
      Index at = index;
      if (i != 0) {
        if constexpr (sizeof(Index) == 4) {
          index = static_cast<Index>(divisors[i].Quotient(index));
        } else {
          index /= axis.size;
        }
        at -= index * static_cast<Index>(axis.size);
      }
      place.offset += at * axis.stride;
      place.param += at * axis.param_stride;
      place.stat += at * axis.stat_stride;
    }
    return place;
  }
};

struct Reduction {
  Walk outputs;
  Walk inputs;
  int tile = 1;        // outputs to a block, a power of two
  bool along = false;  // neighbouring threads have neighbouring outputs, not inputs
  int64_t tiles = 1;
  int64_t chunks = 1;      // blocks to a tile
  int64_t chunk_size = 1;  // inputs
  int64_t partials() const { return chunks == 1 ? 0 : outputs.count * chunks; }
  bool small() const { return outputs.count < kMostPlaces && inputs.count < kMostPlaces; }

  // Of the axes for which is_output holds, by shape and device alone.
  template <typename F>
  static Reduction Of(const Geometry& geometry, const Device& device, const F& is_output) {
    Reduction out;
    for (int i = 0; i < geometry.rank; ++i) {
      (is_output(geometry.axes[i]) ? out.outputs : out.inputs).Add(geometry.axes[i]);
    }
    out.along = out.outputs.HasNeighbours();
    if (out.along) {  // lines of 128 bytes
      out.tile = PowerOfTwo(std::min<int64_t>(32, out.outputs.axes[out.outputs.rank - 1].size));
    }
    const int64_t inputs = out.inputs.count;
    if (inputs < kGeneralThreads / out.tile) out.tile = kGeneralThreads / PowerOfTwo(inputs);
    // Fewer threads to an output, so that merging is not most of their work, while outputs are
    // many.
    while (out.tile < kGeneralThreads && inputs < kGeneralThreads / out.tile * 2 * kGeneralUnroll &&
           out.outputs.count > int64_t{16} * out.tile * device.multiprocessors) {
      out.tile *= 2;
    }
    out.tiles = CeilDiv(out.outputs.count, out.tile);
    const int64_t round = static_cast<int64_t>(kGeneralThreads / out.tile) * kGeneralUnroll;
    const int64_t wanted = CeilDiv(int64_t{8} * device.multiprocessors, out.tiles);
    out.chunk_size = CeilDiv(CeilDiv(inputs, wanted), round) * round;
    out.chunks = CeilDiv(inputs, out.chunk_size);
    return out;
  }
};

// What a thread has of a block's work: an output, and every lanes-th of a chunk of its inputs.
struct GeneralTask {
  int lane;
  int lanes;
  int64_t output;
  int64_t chunk;
  int64_t begin;
  int64_t end;

  __device__ __forceinline__ GeneralTask(const Reduction& reduction, int64_t work) {
    lanes = kGeneralThreads / reduction.tile;
    const int thread = static_cast<int>(threadIdx.x);
    lane = reduction.along ? thread / reduction.tile : thread % lanes;
    const int at = reduction.along ? thread % reduction.tile : thread / lanes;
    chunk = work % reduction.chunks;
    output = work / reduction.chunks * reduction.tile + at;
    begin = chunk * reduction.chunk_size;
    end = min(reduction.inputs.count, begin + reduction.chunk_size);
    if (output >= reduction.outputs.count) {  // nothing to do
      output = 0;
      end = begin;
      live = false;
    }
  }
  bool live = true;
};

// Calls visit(places, count) for a thread's inputs, up to kGeneralUnroll at a time; places behind
// `count` are the last one again.
template <typename Index, typename F>
__device__ __forceinline__ void ForInputs(const Reduction& reduction, const GeneralTask& task,
                                          const GeneralPlace& base, const F& visit) {
  const Index last = static_cast<Index>(task.end - 1);
  const Index lanes = static_cast<Index>(task.lanes);
  for (int64_t i = task.begin + task.lane; i < task.end; i += kGeneralUnroll * task.lanes) {
    GeneralPlace places[kGeneralUnroll];
    int count = 0;
#pragma unroll
    for (int j = 0; j < kGeneralUnroll; ++j) {
      const Index index = static_cast<Index>(i) + j * lanes;
      if (index <= last) ++count;
      places[j] = reduction.inputs.At<Index>(min(index, last), base);
    }
    visit(places, count);
  }
}

template <typename A>
__device__ __forceinline__ void LoadAt(DType type, const void* from,
                                       const GeneralPlace (&places)[kGeneralUnroll],
                                       A (&to)[kGeneralUnroll]) {
  Typed<A>::Call(type, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
#pragma unroll
    for (int j = 0; j < kGeneralUnroll; ++j) {
      to[j] = To<A>::Of(static_cast<const T*>(from)[places[j].offset]);
    }
  });
}

template <typename A>
__device__ __forceinline__ void LoadParamsAt(DType type, const void* from,
                                             const GeneralPlace (&places)[kGeneralUnroll], A absent,
                                             A (&to)[kGeneralUnroll]) {
#pragma unroll
  for (int j = 0; j < kGeneralUnroll; ++j) to[j] = absent;
  if (from == nullptr) return;
  Typed<A>::Call(type, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
#pragma unroll
    for (int j = 0; j < kGeneralUnroll; ++j) {
      to[j] = To<A>::Of(static_cast<const T*>(from)[places[j].param]);
    }
  });
}

template <typename A>
__device__ __forceinline__ void StoreAt(DType type, void* to,
                                        const GeneralPlace (&places)[kGeneralUnroll], int count,
                                        const A (&from)[kGeneralUnroll]) {
  Typed<A>::Call(type, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
#pragma unroll
    for (int j = 0; j < kGeneralUnroll; ++j) {
      if (j < count) static_cast<T*>(to)[places[j].offset] = From<T>::Of(from[j]);
    }
  });
}

struct MergeMoments {
  __device__ __forceinline__ Moments operator()(const Moments& a, const Moments& b) const {
    return Merge(a, b);
  }
};

template <int N>
struct GeneralSums {
  double of[N];
};

struct AddSums {
  template <int N>
  __device__ __forceinline__ GeneralSums<N> operator()(const GeneralSums<N>& a,
                                                       const GeneralSums<N>& b) const {
    GeneralSums<N> out;
#pragma unroll
    for (int n = 0; n < N; ++n) out.of[n] = a.of[n] + b.of[n];
    return out;
  }
};

// What the threads of an output have, merged in a fixed order; the same for all of them. All
// threads of the block call it, shared: one for each of them.
template <typename V, typename F>
__device__ __forceinline__ V MergeTile(const Reduction& reduction, const GeneralTask& task, V mine,
                                       V* shared, const F& merge) {
  const int step = reduction.along ? reduction.tile : 1;
  const int thread = static_cast<int>(threadIdx.x);
  __syncthreads();  // `shared` may still be read
  shared[thread] = mine;
  for (int half = task.lanes / 2; half > 0; half /= 2) {
    __syncthreads();
    if (task.lane < half) shared[thread] = merge(shared[thread], shared[thread + half * step]);
  }
  __syncthreads();
  return shared[thread - task.lane * step];
}

// An output's partial results, from the blocks that have a chunk each.
template <typename V, typename F>
__device__ __forceinline__ V MergeChunks(const Reduction& reduction, const GeneralTask& task,
                                         const V* partials, V none, const F& merge) {
  V out = none;
  if (!task.live) return out;
  const V* const from = partials + task.output * reduction.chunks;
  for (int64_t i = task.lane; i < reduction.chunks; i += task.lanes) out = merge(out, from[i]);
  return out;
}

// Where tiles have chunks, a first launch leaves each one's result, and a second goes on with all.
enum class Phase { kWhole, kPartial, kRest };

template <typename F>
Status LaunchPhases(const Reduction& reduction, const F& launch) {
  constexpr int64_t kMostBlocks = 1 << 20;
  const auto blocks =
      static_cast<unsigned>(std::min(kMostBlocks, reduction.tiles * reduction.chunks));
  if (reduction.chunks == 1) return launch(blocks, Phase::kWhole);
  NV_NORMS_RETURN_IF_ERROR(launch(blocks, Phase::kPartial));
  return launch(blocks, Phase::kRest);
}

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_GENERAL_CUH_
