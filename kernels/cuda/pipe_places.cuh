// What the roles of forward_columns_pipe.cu share: who is who, what they tell each other, and where
// it lies.
#ifndef NV_NORMS_KERNELS_CUDA_PIPE_PLACES_CUH_
#define NV_NORMS_KERNELS_CUDA_PIPE_PLACES_CUH_

#include "kernels/cuda/columns_pipe.h"
#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/pipe.cuh"
#include "kernels/cuda/resident.cuh"

namespace nv_norms {
namespace cuda {

constexpr int kOwners = 2;  // warps
constexpr int kFinishers = 2;
constexpr int kSummers = 4;
constexpr int kWriters = 8;

// Warps of a block.
enum PipeRole {
  kLoader,                                 // loads tiles that stay until they are written
  kStreamer,                               // loads the others for their sums
  kRereader,                               // and again for the output
  kFirstOwner,                             // add up columns for all blocks of the group
  kFirstFinisher = kFirstOwner + kOwners,  // make statistics of the group's sums
  kFirstSummer = kFirstFinisher + kFinishers,
  kFirstWriter = kFirstSummer + kSummers,
  kEndOfRoles = kFirstWriter + kWriters
};
constexpr int kPipeThreads = 32 * kEndOfRoles;

// Barriers among some of the warps; 0 is the block's.
enum PipeBarrier { kSummersBarrier = 1, kFinishersBarrier };

// What a block found of a column, or what all found, on its way: the mean in two parts, the sum of
// squares about it, and the round, in one word of 16 bytes that is written and read at once.
struct alignas(16) PipePost {
  float high;
  float low;
  float m2;
  unsigned round;
};

struct PipeMoment {  // of a column; the mean is high + low
  float high;
  float low;
  float m2;
};

struct PipeLine {  // y = (x - high) * scale + shift
  float high;
  float scale;
  float shift;
};

// Of shared memory, beside the tiles.
inline int64_t PipeScratchBytes(int columns) {
  const int64_t gates = 8 * (2 * kMaxPipeSlots + 4);
  const int64_t moments = static_cast<int64_t>(sizeof(PipeMoment)) * (2 * kSummers + 1) * columns;
  return gates + moments + static_cast<int64_t>(sizeof(PipeLine)) * 2 * columns + 4 * 2 * kSummers;
}

// Posts of a round of a group: of each column by each block, then all blocks' together.
NV_NORMS_HOST_DEVICE inline int64_t RoundPosts(const PipeShape& shape) {
  return static_cast<int64_t>(shape.columns) * (shape.blocks + 1);
}

inline int64_t PipeMailBytes(const PipeShape& shape) {
  return static_cast<int64_t>(sizeof(PipePost)) * shape.groups * shape.rounds * RoundPosts(shape);
}

#if __CUDA_ARCH__ >= 900

__device__ __forceinline__ void Send(PipePost* to, double mean, double m2, unsigned round) {
  const float high = static_cast<float>(mean);
  const uint32_t low = __float_as_uint(static_cast<float>(mean - high));
  const uint64_t first = static_cast<uint64_t>(low) << 32 | __float_as_uint(high);
  const uint64_t second =
      static_cast<uint64_t>(round) << 32 | __float_as_uint(static_cast<float>(m2));
  asm volatile(
      "{\n"
      "  .reg .b128 word;\n"
      "  mov.b128 word, {%1, %2};\n"
      "  st.relaxed.gpu.global.b128 [%0], word;\n"
      "}" ::"l"(to),
      "l"(first), "l"(second)
      : "memory");
}

__device__ __forceinline__ PipePost Look(const PipePost* at) {
  uint64_t first;
  uint64_t second;
  asm volatile(
      "{\n"
      "  .reg .b128 word;\n"
      "  ld.relaxed.gpu.global.b128 word, [%2];\n"
      "  mov.b128 {%0, %1}, word;\n"
      "}"
      : "=l"(first), "=l"(second)
      : "l"(at)
      : "memory");
  PipePost out;
  out.high = __uint_as_float(static_cast<uint32_t>(first));
  out.low = __uint_as_float(static_cast<uint32_t>(first >> 32));
  out.m2 = __uint_as_float(static_cast<uint32_t>(second));
  out.round = static_cast<uint32_t>(second >> 32);
  return out;
}

__device__ __forceinline__ double MeanOf(float high, float low) {
  return static_cast<double>(high) + low;
}

template <int BARRIER, int THREADS>
__device__ __forceinline__ void SyncSome() {
  asm volatile("bar.sync %0, %1;" ::"n"(BARRIER), "n"(THREADS) : "memory");
}

// The next slot of a ring, and how many laps have gone by.
struct PipeTurn {
  int slot = 0;
  unsigned lap = 0;

  __device__ __forceinline__ void Next(int slots) {
    if (++slot == slots) {
      slot = 0;
      ++lap;
    }
  }
};

// Number v of a vector.
template <typename X>
__device__ __forceinline__ float PipeNumber(const uint32_t (&words)[4], int v) {
  return To<float>::Of(Word<X>::Get(words, v));
}

// Where a block's things lie, and which are its rows.
struct PipePlaces {
  const PipeShape& shape;
  const ForwardProblem& problem;
  const ForwardBuffers& buffers;
  PipePost* mail;  // of the group
  uint4* tiles;
  uint64_t* gates;
  PipeMoment* entries;  // [2, kSummers, columns]: of a warp of summers
  PipeMoment* totals;   // [columns]: of the group
  PipeLine* lines;      // [2, columns]
  float* counts;        // [2, kSummers]: rows of the entries
  int rank;
  int group;

  __device__ __forceinline__ PipePlaces(const PipeShape& shape, const ForwardProblem& problem,
                                        const ForwardBuffers& buffers, uint4* shared,
                                        void* workspace)
      : shape(shape), problem(problem), buffers(buffers), tiles(shared) {
    gates = reinterpret_cast<uint64_t*>(shared + shape.slots * kTileVectors);
    entries = reinterpret_cast<PipeMoment*>(gates + 2 * kMaxPipeSlots + 4);
    totals = entries + 2 * kSummers * shape.columns;
    lines = reinterpret_cast<PipeLine*>(totals + shape.columns);
    counts = reinterpret_cast<float*>(lines + 2 * shape.columns);
    rank = blockIdx.x % shape.blocks;
    group = blockIdx.x / shape.blocks;
    mail = static_cast<PipePost*>(workspace) + group * shape.rounds * RoundPosts(shape);
  }

  // Gates. A slot is full when its copies have come, empty when all writers have read it, or, of
  // one that is loaded for its sums only, all summers. The two halves of `lines` likewise.
  __device__ __forceinline__ Gate Full(int slot) const { return Gate(gates, slot); }
  __device__ __forceinline__ Gate Empty(int slot) const {
    return Gate(gates, kMaxPipeSlots + slot);
  }
  __device__ __forceinline__ Gate LinesFull(unsigned round) const {
    return Gate(gates, 2 * kMaxPipeSlots + round % 2);
  }
  __device__ __forceinline__ Gate LinesEmpty(unsigned round) const {
    return Gate(gates, 2 * kMaxPipeSlots + 2 + round % 2);
  }
  __device__ __forceinline__ static unsigned HalfParity(unsigned round) { return round / 2 & 1; }

  __device__ __forceinline__ void Open() const {
#pragma unroll 1
    for (int i = 0; i < shape.slots; ++i) {
      Full(i).Init(32);
      Empty(i).Init(kWriters);
    }
    for (int i = 0; i < 2; ++i) {
      LinesFull(i).Init(kFinishers);
      LinesEmpty(i).Init(kWriters + (shape.streamed > 0 ? 1 : 0));
    }
  }

  // Slots: first those of tiles that stay, then twice `stream_slots`.
  __device__ __forceinline__ int stay_slots() const { return shape.slots - 2 * shape.stream_slots; }
  __device__ __forceinline__ int reread_slots() const { return shape.slots - shape.stream_slots; }

  // The blocks of a group have tiles in turn; the last tiles share what is left.
  __device__ __forceinline__ int RowOf(int tile) const {
    const int begin = tile * shape.blocks * shape.tile_rows;
    return begin + (tile == shape.tiles - 1 ? rank * shape.last_share + min(rank, shape.last_extra)
                                            : rank * shape.tile_rows);
  }
  __device__ __forceinline__ int RowsOf(int tile) const {
    return tile == shape.tiles - 1 ? shape.LastRows(rank) : shape.tile_rows;
  }
  // Of a unit's first vector.
  __device__ __forceinline__ int64_t BaseOf(int unit) const {
    return static_cast<int64_t>(unit / shape.strips) * shape.rows * shape.width +
           static_cast<int64_t>(unit % shape.strips) * shape.vectors;
  }

  __device__ __forceinline__ PipePost* PostsOf(unsigned round, int column) const {
    return mail + static_cast<int>(round % shape.rounds) * RoundPosts(shape) +
           static_cast<int64_t>(column) * shape.blocks;
  }
  __device__ __forceinline__ PipePost* TotalsOf(unsigned round) const {
    return PostsOf(round, shape.columns);
  }

  // No post may have a round's number before it is sent.
  __device__ __forceinline__ void Clear() const {
    for (int i = threadIdx.x; i < shape.rounds * shape.columns; i += kPipeThreads) {
      const unsigned round = i / shape.columns;
      const int column = i % shape.columns;
      Send(PostsOf(round, column) + rank, 0, 0, 0);
      if (rank == 0) Send(TotalsOf(round) + column, 0, 0, 0);
    }
  }
};

#endif  // __CUDA_ARCH__ >= 900

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_PIPE_PLACES_CUH_
