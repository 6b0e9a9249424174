// Instance and group norm, channels last, of tensors much larger than the chip. A block's warps
// have roles, so that memory reads and writes at the same time and nobody but the writers waits for
// an exchange: while writers normalize a unit out of shared memory, the next is being added up and
// the one after it is on its way. See columns_pipe.h.
#include <cooperative_groups.h>

#include <utility>

#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/columns_pipe.h"
#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/pipe.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/resident.cuh"

namespace nv_norms {
namespace cuda {
namespace {

constexpr int kOwners = 2;  // warps
constexpr int kFinishers = 2;
constexpr int kSummers = 4;
constexpr int kWriters = 8;

// Warps of a block.
enum Role {
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
enum Barrier { kSummersBarrier = 1, kFinishersBarrier };

// What a block found of a column, or what all found, on its way: the mean in two parts, the sum of
// squares about it, and the round, in one word of 16 bytes that is written and read at once.
struct alignas(16) PipePost {
  float high;
  float low;
  float m2;
  unsigned round;
};

struct Moment {  // of a column; the mean is high + low
  float high;
  float low;
  float m2;
};

struct Line {  // y = (x - high) * scale + shift
  float high;
  float scale;
  float shift;
};

int64_t ScratchBytes(int columns) {
  const int64_t gates = 8 * (2 * kMaxPipeSlots + 4);
  const int64_t moments = static_cast<int64_t>(sizeof(Moment)) * (2 * kSummers + 1) * columns;
  return gates + moments + static_cast<int64_t>(sizeof(Line)) * 2 * columns + 4 * 2 * kSummers;
}

// Posts of a round of a group: of each column by each block, then all blocks' together.
NV_NORMS_HOST_DEVICE inline int64_t RoundPosts(const PipeShape& shape) {
  return static_cast<int64_t>(shape.columns) * (shape.blocks + 1);
}

int64_t MailBytes(const PipeShape& shape) {
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
struct Turn {
  int slot = 0;
  unsigned lap = 0;

  __device__ __forceinline__ void Next(int slots) {
    if (++slot == slots) {
      slot = 0;
      ++lap;
    }
  }
};

template <typename X, typename Y, bool ACTIVATED>
struct Pipe {
  static constexpr int kVec = kVectorBytes / sizeof(X);

  const PipeShape& shape;
  const ForwardProblem& problem;
  const ForwardBuffers& buffers;
  PipePost* mail;  // of the group
  uint4* tiles;
  uint64_t* gates;
  Moment* entries;  // [2, kSummers, columns]: of a warp of summers
  Moment* totals;   // [columns]: of the group
  Line* lines;      // [2, columns]
  float* counts;    // [2, kSummers]: rows of the entries
  int rank;
  int group;

  __device__ __forceinline__ Pipe(const PipeShape& shape, const ForwardProblem& problem,
                                  const ForwardBuffers& buffers, uint4* shared, void* workspace)
      : shape(shape), problem(problem), buffers(buffers), tiles(shared) {
    gates = reinterpret_cast<uint64_t*>(shared + shape.slots * kTileVectors);
    entries = reinterpret_cast<Moment*>(gates + 2 * kMaxPipeSlots + 4);
    totals = entries + 2 * kSummers * shape.columns;
    lines = reinterpret_cast<Line*>(totals + shape.columns);
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

  // By a warp.
  __device__ __forceinline__ void Load(int slot, int64_t base, int tile, uint64_t policy) const {
    const int lane = threadIdx.x % 32;
    const int row = lane / shape.vectors;
    const int step = 32 / shape.vectors;
    const int64_t hop = static_cast<int64_t>(step) * shape.width;
    const uint4* at = static_cast<const uint4*>(buffers.x) + base +
                      static_cast<int64_t>(RowOf(tile) + row) * shape.width + lane % shape.vectors;
    uint4* to = tiles + slot * kTileVectors + lane;
    const int rows = RowsOf(tile);
    if (rows == shape.tile_rows) {
#pragma unroll 4
      for (int j = 0; j < kTileVectors / 32; ++j) {
        CopyAsync<kVectorBytes>(to + j * 32, at, policy);
        at += hop;
      }
    } else {
#pragma unroll 1
      for (int r = row; r < rows; r += step) {
        CopyAsync<kVectorBytes>(to, at, policy);
        at += hop;
        to += 32;
      }
    }
    Full(slot).ArriveAfterCopies();
  }

  // The tiles that stay. wait_for_all: until all blocks have cleared their posts; it takes some
  // 3 us, and 15 when all slots are on their way. 8 x 32^3 x 256, float32: 180 us, 173 when only
  // the first tiles are. Of a unit that is streamed the first sums take longer than that.
  template <typename Wait>
  __device__ __forceinline__ void LoadStaying(const Wait& wait_for_all) const {
    const uint64_t policy = ReadOncePolicy();
    const int before = shape.streamed > 0 ? shape.tiles - shape.streamed : kTilesBeforeAll;
    int loaded = 0;
    Turn turn;
    Turn arrived;
#pragma unroll 1
    for (int unit = group; unit < shape.units; unit += shape.groups) {
      const int64_t base = BaseOf(unit);
#pragma unroll 1
      for (int tile = shape.streamed; tile < shape.tiles; ++tile) {
        if (loaded == before) wait_for_all();
        if (turn.lap > 0) Empty(turn.slot).Wait(turn.lap - 1 & 1);
        if (loaded >= shape.flight) {
          Full(arrived.slot).Wait(arrived.lap & 1);
          arrived.Next(stay_slots());
        }
        Load(turn.slot, base, tile, policy);
        turn.Next(stay_slots());
        ++loaded;
      }
    }
    if (loaded <= before) wait_for_all();
  }

  __device__ __forceinline__ void LoadStreamed(int unit, int first_slot, bool backwards,
                                               uint64_t policy, Turn* turn) const {
    const int64_t base = BaseOf(unit);
#pragma unroll 1
    for (int i = 0; i < shape.streamed; ++i) {
      const int slot = first_slot + turn->slot;
      if (turn->lap > 0) Empty(slot).Wait(turn->lap - 1 & 1);
      Load(slot, base, backwards ? shape.streamed - 1 - i : i, policy);
      turn->Next(shape.stream_slots);
    }
  }

  template <typename Wait>
  __device__ __forceinline__ void Stream(const Wait& wait_for_all) const {
    const uint64_t policy = KeepPolicy();
    Turn turn;
    int unit = group;
    if (shape.streamed > 0) LoadStreamed(unit, stay_slots(), false, policy, &turn);
    wait_for_all();
    if (shape.streamed == 0) return;
#pragma unroll 1
    for (unit += shape.groups; unit < shape.units; unit += shape.groups) {
      LoadStreamed(unit, stay_slots(), false, policy, &turn);
    }
  }

  // From the last to the first: the last are in the L2 cache.
  __device__ __forceinline__ void Reread() const {
    const uint64_t policy = ReadOncePolicy();
    Turn turn;
    unsigned round = 0;
#pragma unroll 1
    for (int unit = group; unit < shape.units; unit += shape.groups, ++round) {
      LinesFull(round).Wait(HalfParity(round));
      __syncwarp();
      if (threadIdx.x % 32 == 0) LinesEmpty(round).Arrive();
      LoadStreamed(unit, reread_slots(), true, policy, &turn);
    }
  }

  __device__ __forceinline__ static float Get(const uint32_t (&words)[4], int v) {
    return To<float>::Of(Word<X>::Get(words, v));
  }

  // Each thread sums about the median of its own first three elements, as in
  // forward_columns_resident.cu; a thread has some 1000 rows of 128^3.
  struct Sums {
    float count = 0;
    float reference[kVec];
    float sum[kVec];      // of x - reference
    float squares[kVec];  // of its square

    __device__ __forceinline__ Sums() {
#pragma unroll
      for (int v = 0; v < kVec; ++v) reference[v] = sum[v] = squares[v] = 0;
    }

    template <int ITEMS>
    __device__ __forceinline__ void Add(const uint32_t (&words)[ITEMS][4], bool shift) {
      if (count == 0 && shift) {
#pragma unroll
        for (int v = 0; v < kVec; ++v) {
          reference[v] = Get(words[0], v);
          if constexpr (ITEMS >= 3) {
            reference[v] = MedianOfThree(reference[v], Get(words[1], v), Get(words[2], v));
          }
        }
      }
      count += ITEMS;
#pragma unroll
      for (int j = 0; j < ITEMS; ++j) {
#pragma unroll
        for (int v = 0; v < kVec; ++v) {
          const float x = Get(words[j], v) - reference[v];
          sum[v] += x;
          squares[v] += x * x;
        }
      }
    }

    // From here on sum and squares are a mean, about what is now the reference, the same in all of
    // the warp's lanes with these columns, and squares about it; of all these lanes.
    __device__ __forceinline__ void Merge(int vectors, bool shift) {
      const float inverse = count > 0 && shift ? 1.0f / count : 0.0f;
#pragma unroll
      for (int v = 0; v < kVec; ++v) {
        const float mean = sum[v] * inverse;
        const float common = __shfl_sync(0xffffffffu, reference[v], threadIdx.x % vectors);
        squares[v] -= sum[v] * mean;
        sum[v] = count > 0 ? (reference[v] - common) + mean : 0.0f;
        reference[v] = common;
      }
      MergeLanes(vectors, count, sum, squares);
    }
  };

  template <typename Wait>
  __device__ __forceinline__ void Sum(const Wait& wait_for_all) const {
    constexpr int kItems = kTileVectors / (32 * kSummers);
    const int warp = threadIdx.x / 32 - kFirstSummer;
    const int lane = threadIdx.x % 32;
    const int place = warp * 32 + lane;
    const bool shift = problem.formula != Formula::kRms;
    if (shape.streamed == 0) wait_for_all();
    Turn stay;
    Turn stream;
    unsigned round = 0;
#pragma unroll 1
    for (int unit = group; unit < shape.units; unit += shape.groups, ++round) {
      Sums sums;
#pragma unroll 1
      for (int tile = 0; tile < shape.tiles; ++tile) {
        const bool streamed = tile < shape.streamed;
        const int slot = streamed ? stay_slots() + stream.slot : stay.slot;
        Full(slot).Wait((streamed ? stream.lap : stay.lap) & 1);
        const uint4* from = tiles + slot * kTileVectors + place;
        if (RowsOf(tile) == shape.tile_rows) {
          uint32_t words[kItems][4];
#pragma unroll
          for (int j = 0; j < kItems; ++j) Chunk<16>::Split(from[j * 32 * kSummers], words[j]);
          sums.Add(words, shift);
        } else {
          const int step = 32 * kSummers / shape.vectors;
#pragma unroll 1
          for (int row = place / shape.vectors; row < RowsOf(tile); row += step) {
            uint32_t words[1][4];
            Chunk<16>::Split(*from, words[0]);
            sums.Add(words, shift);
            from += 32 * kSummers;
          }
        }
        if (streamed) {
          __syncwarp();
          if (lane == 0) Empty(slot).Arrive(kWriters / kSummers);
          stream.Next(shape.stream_slots);
        } else {
          stay.Next(stay_slots());
        }
      }
      sums.Merge(shape.vectors, shift);
      const int half = round % 2;
      if (lane < shape.vectors) {
        Moment* to = entries + (half * kSummers + warp) * shape.columns + lane * kVec;
#pragma unroll
        for (int v = 0; v < kVec; ++v) to[v] = {sums.reference[v], sums.sum[v], sums.squares[v]};
        if (lane == 0) counts[half * kSummers + warp] = sums.count;
      }
      if (round == 0 && shape.streamed > 0) wait_for_all();
      // Nobody writes this half again before all have come to the next unit's barrier.
      SyncSome<kSummersBarrier, 32 * kSummers>();
      PostSums(round);
    }
  }

  // A thread to a column.
  __device__ __forceinline__ void PostSums(unsigned round) const {
    const int half = round % 2;
#pragma unroll 1
    for (int c = threadIdx.x - 32 * kFirstSummer; c < shape.columns; c += 32 * kSummers) {
      const Moment* from = entries + half * kSummers * shape.columns + c;
      const double about = MeanOf(from->high, from->low);  // the first warp has rows
      double sum = 0;
      double squares = 0;
#pragma unroll
      for (int w = 0; w < kSummers; ++w) {
        const Moment entry = from[w * shape.columns];
        const double n = counts[half * kSummers + w];
        const double d = n > 0 ? MeanOf(entry.high, entry.low) - about : 0.0;
        sum += n * d;
        squares += entry.m2 + n * d * d;
      }
      const double step = sum * shape.inverse_lengths[rank < shape.last_extra ? 0 : 1];
      Send(PostsOf(round, c) + rank, about + step, squares - sum * step, round + 1);
    }
  }

  // The columns of a round belong to the group's blocks in turn.
  __device__ __forceinline__ void AddUp() const {
    constexpr int kPosts = kMaxPipeBlocks / 32;  // of a lane; all are asked for at once
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32 - kFirstOwner;
    unsigned round = 0;
    int mine = rank;
#pragma unroll 1
    for (int unit = group; unit < shape.units; unit += shape.groups, ++round) {
#pragma unroll 1
      for (int c = mine + warp * shape.blocks; c < shape.columns; c += kOwners * shape.blocks) {
        const PipePost* const from = PostsOf(round, c);
        PipePost seen[kPosts];
        bool missing = true;
        while (missing) {
          missing = false;
#pragma unroll
          for (int i = 0; i < kPosts; ++i) {
            if (i * 32 + lane < shape.blocks) seen[i] = Look(from + i * 32 + lane);
          }
#pragma unroll
          for (int i = 0; i < kPosts; ++i) {
            if (i * 32 + lane < shape.blocks) missing |= seen[i].round != round + 1;
          }
        }
        __syncwarp();
        const double about = MeanOf(__shfl_sync(0xffffffffu, seen[0].high, 0),
                                    __shfl_sync(0xffffffffu, seen[0].low, 0));
        double sums[2] = {0, 0};
#pragma unroll
        for (int i = 0; i < kPosts; ++i) {
          const int block = i * 32 + lane;
          if (block >= shape.blocks) continue;
          const double n = shape.LengthOf(block);
          const double d = MeanOf(seen[i].high, seen[i].low) - about;
          sums[0] += n * d;
          sums[1] += seen[i].m2 + n * d * d;
        }
        WarpSum(sums, 32);
        const double step = sums[0] * shape.inverse_rows;
        if (lane == 0) Send(TotalsOf(round) + c, about + step, sums[1] - sums[0] * step, round + 1);
      }
      if (--mine < 0) mine = shape.blocks - 1;
    }
  }

  __device__ __forceinline__ Moment Total(unsigned round, int column) const {
    const PipePost* at = TotalsOf(round) + column;
    PipePost seen = Look(at);
    while (seen.round != round + 1) seen = Look(at);
    return {seen.high, seen.low, seen.m2};
  }

  __device__ __forceinline__ float2 LoadParams(int unit, int column) const {
    const int64_t param = shape.ParamOf(unit % shape.strips * shape.columns + column);
    return make_float2(ParamOr<float>(problem.param, buffers.gamma, param, 1),
                       ParamOr<float>(problem.param, buffers.beta, param, 0));
  }

  // Statistic g of a unit, from its mean and squares about it.
  __device__ __forceinline__ Scaling<float> StatOf(int unit, int g, double mean, double m2,
                                                   double inverse, bool store) const {
    const double rstd = rsqrt((m2 < 0 ? 0.0 : m2) * inverse + problem.epsilon);
    Scaling<float> out = {0, 0, static_cast<float>(rstd)};
    if (problem.formula == Formula::kCenter) {
      out.high = static_cast<float>(mean);
      out.low = static_cast<float>(mean - out.high);
    }
    if (store && rank == 0) {
      const int64_t stat = static_cast<int64_t>(unit / shape.strips) * shape.norm_groups +
                           static_cast<int64_t>(unit % shape.strips) * shape.stats() + g;
      if (buffers.mean != nullptr) {
        static_cast<float*>(buffers.mean)[stat] = static_cast<float>(mean);
      }
      static_cast<float*>(buffers.rstd)[stat] = out.rstd;
    }
    return out;
  }

  __device__ __forceinline__ void PutLine(unsigned round, int column, const Scaling<float>& stat,
                                          float2 params) const {
    const float scale = stat.rstd * params.x;
    lines[round % 2 * shape.columns + column] = {stat.high, scale, params.y - stat.low * scale};
  }

  __device__ __forceinline__ void Finish() const {
    constexpr int kThreads = 32 * kFinishers;
    const int thread = threadIdx.x - 32 * kFirstFinisher;
    const double rows = shape.rows;
    const double inverse = shape.inverse_rows / shape.depth;
    int lanes = 1;  // to a statistic
    while (lanes < shape.depth && lanes < 32) lanes *= 2;
    unsigned round = 0;
#pragma unroll 1
    for (int unit = group; unit < shape.units; unit += shape.groups, ++round) {
      // A warp without a column waits, too: its arrival counts.
      if (round >= 2) LinesEmpty(round).Wait(HalfParity(round - 2));
      if (shape.depth == 1) {
#pragma unroll 1
        for (int c = thread; c < shape.columns; c += kThreads) {
          const float2 params = LoadParams(unit, c);
          const Moment total = Total(round, c);
          PutLine(round, c, StatOf(unit, c, MeanOf(total.high, total.low), total.m2, inverse, true),
                  params);
        }
      } else {
#pragma unroll 1
        for (int c = thread; c < shape.columns; c += kThreads) totals[c] = Total(round, c);
        SyncSome<kFinishersBarrier, kThreads>();
        const int step = kThreads / lanes;
#pragma unroll 1
        for (int first = 0; first < shape.stats(); first += step) {
          const int g = first + thread / lanes;
          const bool there = g < shape.stats();
          const Moment* from = totals + (there ? g * shape.depth : 0);
          const double about = MeanOf(from->high, from->low);
          double sums[2] = {0, 0};
#pragma unroll 1
          for (int m = thread % lanes; m < shape.depth; m += lanes) {
            const double d = MeanOf(from[m].high, from[m].low) - about;
            sums[0] += rows * d;
            sums[1] += from[m].m2 + rows * d * d;
          }
          WarpSum(sums, lanes);
          if (!there) continue;
          const double move = sums[0] * inverse;
          const Scaling<float> stat =
              StatOf(unit, g, about + move, sums[1] - sums[0] * move, inverse, thread % lanes == 0);
#pragma unroll 1
          for (int c = g * shape.depth + thread % lanes; c < (g + 1) * shape.depth; c += lanes) {
            PutLine(round, c, stat, LoadParams(unit, c));
          }
        }
        SyncSome<kFinishersBarrier, kThreads>();  // totals are read no more
      }
      __syncwarp();
      if (threadIdx.x % 32 == 0) LinesFull(round).Arrive();
    }
  }

  __device__ __forceinline__ void Write() const {
    constexpr int kItems = kTileVectors / (32 * kWriters);
    const int lane = threadIdx.x % 32;
    const int place = threadIdx.x - 32 * kFirstWriter;
    const int vector = lane % shape.vectors;
    const int row = place / shape.vectors;
    const int step = 32 * kWriters / shape.vectors;
    const int64_t hop = static_cast<int64_t>(step) * shape.width * kVec;
    const Activator<float> activator(problem.activation);
    const int staying = shape.tiles - shape.streamed;
    Turn stay;
    Turn stream;
    unsigned round = 0;
#pragma unroll 1
    for (int unit = group; unit < shape.units; unit += shape.groups, ++round) {
      LinesFull(round).Wait(HalfParity(round));
      float high[kVec];
      float scale[kVec];
      float shift[kVec];
#pragma unroll
      for (int v = 0; v < kVec; ++v) {
        const Line line = lines[round % 2 * shape.columns + vector * kVec + v];
        high[v] = line.high;
        scale[v] = line.scale;
        shift[v] = line.shift;
      }
      __syncwarp();
      if (lane == 0) LinesEmpty(round).Arrive();
      const int64_t base = (BaseOf(unit) + static_cast<int64_t>(row) * shape.width + vector) * kVec;
#pragma unroll 1
      for (int i = 0; i < shape.tiles; ++i) {
        const bool streamed = i >= staying;
        const int tile = streamed ? shape.tiles - 1 - i : shape.streamed + i;
        const int slot = streamed ? reread_slots() + stream.slot : stay.slot;
        Full(slot).Wait((streamed ? stream.lap : stay.lap) & 1);
        const uint4* from = tiles + slot * kTileVectors + place;
        const int rows = RowsOf(tile);
        uint32_t words[kItems][4];
#pragma unroll
        for (int j = 0; j < kItems; ++j) {
          if (row + j * step < rows) Chunk<16>::Split(from[j * 32 * kWriters], words[j]);
        }
        __syncwarp();
        if (lane == 0) Empty(slot).Arrive();
        int64_t to = base + static_cast<int64_t>(RowOf(tile)) * shape.width * kVec;
#pragma unroll
        for (int j = 0; j < kItems; ++j) {
          if (row + j * step >= rows) break;
          float y[kVec];
#pragma unroll
          for (int v = 0; v < kVec; ++v) y[v] = (Get(words[j], v) - high[v]) * scale[v] + shift[v];
          if constexpr (ACTIVATED) {
            activator.Apply(y);
          }
          StoreStrip<Y>(problem.y, buffers.y, to, y, false);
          to += hop;
        }
        if (streamed) {
          stream.Next(shape.stream_slots);
        } else {
          stay.Next(stay_slots());
        }
      }
    }
  }
};

#endif  // __CUDA_ARCH__ >= 900

template <typename X, typename Y, bool ACTIVATED>
__global__ void __launch_bounds__(kPipeThreads, 1)
    ForwardPipeKernel(const __grid_constant__ PipeShape shape,
                      const __grid_constant__ ForwardProblem problem, const ForwardBuffers buffers,
                      void* workspace) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ uint4 shared[];
  const Pipe<X, Y, ACTIVATED> pipe(shape, problem, buffers, shared, workspace);
  if (threadIdx.x == 0) pipe.Open();
  pipe.Clear();
  const auto grid = cooperative_groups::this_grid();
  auto cleared = grid.barrier_arrive();
  __syncthreads();  // the gates are open
  // All threads of the block come here once.
  const auto wait_for_all = [&] { grid.barrier_wait(std::move(cleared)); };
  const int warp = threadIdx.x / 32;
  static_assert(kWriters % kSummers == 0);
  if (warp == kLoader) {
    pipe.LoadStaying(wait_for_all);
  } else if (warp == kStreamer) {
    pipe.Stream(wait_for_all);
  } else if (warp >= kFirstSummer && warp < kFirstWriter) {
    pipe.Sum(wait_for_all);
  } else {
    wait_for_all();
    if (warp >= kFirstWriter) {
      pipe.Write();
    } else if (warp >= kFirstFinisher) {
      pipe.Finish();
    } else if (warp >= kFirstOwner) {
      pipe.AddUp();
    } else if (warp == kRereader && shape.streamed > 0) {
      pipe.Reread();
    }
  }
#endif
}

using PipeKernel = void (*)(PipeShape, ForwardProblem, ForwardBuffers, void*);

template <bool ACTIVATED>
PipeKernel PipeKernelOf(DType x, DType y) {
  if (x == DType::kFloat) {
    if (y == DType::kHalf) return ForwardPipeKernel<float, __half, ACTIVATED>;
    if (y == DType::kBfloat16) return ForwardPipeKernel<float, __nv_bfloat16, ACTIVATED>;
    return ForwardPipeKernel<float, float, ACTIVATED>;
  }
  if (x != y) return nullptr;
  if (x == DType::kHalf) return ForwardPipeKernel<__half, __half, ACTIVATED>;
  return ForwardPipeKernel<__nv_bfloat16, __nv_bfloat16, ACTIVATED>;
}

// Null: no kernel for these types.
PipeKernel PipeKernelFor(const ForwardProblem& problem) {
  if (problem.in_double()) return nullptr;
  return ActivatedOnChip(problem) ? PipeKernelOf<true>(problem.x, problem.y)
                                  : PipeKernelOf<false>(problem.x, problem.y);
}

bool Cut(const ForwardPlan& plan, PipeShape* shape) {
  const ForwardProblem& problem = plan.problem;
  return PipeKernelFor(problem) != nullptr &&
         CutPipe(problem.geometry.columns, plan.device, static_cast<int>(SizeOf(problem.x)),
                 static_cast<int>(SizeOf(problem.y)), ScratchBytes, shape);
}

}  // namespace

void PlanForwardColumnsPipe(ForwardPlan* plan) {
  PipeShape shape;
  if (Cut(*plan, &shape)) plan->workspace = std::max(plan->workspace, MailBytes(shape));
}

Status LaunchForwardColumnsPipe(const ForwardPlan& plan, const ForwardBuffers& buffers,
                                void* workspace, void* stream, bool* launched) {
  PipeShape shape;
  *launched =
      Cut(plan, &shape) && AlignedTo(buffers.x, kVectorBytes) && AlignedTo(buffers.y, kVectorBytes);
  if (!*launched) return Status();
  const int64_t shared =
      int64_t{kTileVectors} * kVectorBytes * shape.slots + ScratchBytes(shape.columns);
  return LaunchTogether("normalization of columns in a pipe", PipeKernelFor(plan.problem),
                        shape.blocks * shape.groups, kPipeThreads, true, shared, stream, launched,
                        shape, plan.problem, buffers, workspace);
}

}  // namespace cuda
}  // namespace nv_norms
