// How a block, or a cluster of blocks, holds a row: see held.h.
#ifndef NV_NORMS_KERNELS_CUDA_HELD_CUH_
#define NV_NORMS_KERNELS_CUDA_HELD_CUH_

#include <limits>

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/held.h"
#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/segments.h"

namespace nv_norms {
namespace cuda {

constexpr int kMostHeldThreads = 1024;
constexpr int kMostHeldBlocks = 16;  // of a cluster
constexpr int kMostHeldRuns = 4096;  // of a row

// How a row's parameters lie.
enum class Runs {
  kOne,      // one for the row
  kOneOdd,   // likewise, of a row that is no whole vectors
  kVectors,  // one for some whole vectors of 16 bytes
  kNumbers,  // one for some numbers, at least as many as a vector has
  kNumbersOdd,
};

template <Runs RUNS>
constexpr bool kOneRun = RUNS == Runs::kOne || RUNS == Runs::kOneOdd;
template <Runs RUNS>
constexpr bool kOddRow = RUNS == Runs::kOneOdd || RUNS == Runs::kNumbersOdd;
constexpr bool AreOfNumbers(Runs runs) {
  return runs == Runs::kNumbers || runs == Runs::kNumbersOdd;
}
template <Runs RUNS>
constexpr bool kRunsOfNumbers = AreOfNumbers(RUNS);

// Whether a cluster of blocks may have a row: whole vectors to a parameter have other kernels for
// long rows.
constexpr bool HasClusters(Runs runs) { return runs == Runs::kOneOdd || AreOfNumbers(runs); }

inline Runs RunsOf(const RowLayout& layout, DType x) {
  const bool odd = layout.cols * SizeOf(x) % kVectorBytes != 0;
  if (layout.by_row()) return odd ? Runs::kOneOdd : Runs::kOne;
  if (layout.col_divisor * SizeOf(x) % kVectorBytes == 0) return Runs::kVectors;
  return odd ? Runs::kNumbersOdd : Runs::kNumbers;
}

// Vectors of 16 bytes in a row, at most, or more than any block holds: where a row is too short, or
// a vector may have numbers of three runs. Whole rows of fewer than 128 are faster by rings and
// segments, of a copy's speed on an H200 float16 32768 x 784 forward 0.77 -> 0.64, float32 8192 x
// 256 gradient 0.71 -> 0.67; rows of segments are not, float16 32768 x 128 (2 segments) 0.24 ->
// 0.41, 0.29 -> 0.35, nor are odd ones: float16 64000 x 253 0.41 -> 0.53, 0.30 -> 0.41, float32
// 64000 x 169 gradient 0.34 -> 0.49.
inline int64_t HeldVectors(const RowLayout& layout, DType x) {
  constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  if (layout.by_column() || layout.rows >= kMostColumns) return kNone;
  if (!layout.by_row() && (layout.col_divisor * SizeOf(x) < kVectorBytes ||
                           SegmentLayout::Of(layout).segments > kMostHeldRuns)) {
    return kNone;
  }
  const int64_t vectors = layout.cols * SizeOf(x) / kVectorBytes;
  const Runs runs = RunsOf(layout, x);
  const int64_t least = runs == Runs::kOne                            ? 128
                        : runs == Runs::kOneOdd && x == DType::kFloat ? 32
                                                                      : 16;
  return vectors < least ? kNone : vectors;
}

inline SegmentRuns HeldRuns(const RowLayout& layout, DType x) {
  const SegmentLayout segments = SegmentLayout::Of(layout);
  return AreOfNumbers(RunsOf(layout, x)) ? SegmentRuns::OfNumbers(segments)
                                         : SegmentRuns::Of(segments, static_cast<int>(SizeOf(x)));
}

// How rows are shared out.
struct HeldCut {
  int items = 0;    // vectors of a thread, at most; 0: these kernels do not suit
  int threads = 0;  // of a block
  int blocks = 1;   // of a row, a cluster
  int share = 0;    // vectors of a block, at most

  static HeldCut Of(int64_t vectors, int items, int blocks) {
    HeldCut out;
    out.items = items;
    out.blocks = blocks;
    out.share = static_cast<int>(CeilDiv(vectors, blocks));
    out.threads = static_cast<int>(CeilDiv(CeilDiv(out.share, items), 32) * 32);
    return out;
  }
  // Of a cluster of the fewest blocks, of half as many threads as a block may have, so that one
  // works while the other one of its multiprocessor waits. Where the most do not suffice they have
  // more threads, if these may be `full`.
  static HeldCut OfCluster(int64_t vectors, int items, bool full) {
    const int64_t half = int64_t{kMostHeldThreads / 2} * items;
    if (vectors > (full ? 2 : 1) * kMostHeldBlocks * half) return HeldCut();
    const int64_t blocks = std::min<int64_t>(kMostHeldBlocks, CeilDiv(vectors, half));
    return Of(vectors, items, static_cast<int>(blocks));
  }
};

// Where a block's vectors of a row are. They are aligned to 16 bytes; if there are numbers before
// and after those of the row, a thread of the first block, or of the last, has one of these each.
// Each block of a cluster has vectors: there are many more than blocks.
template <Runs RUNS, int VEC, bool CLUSTER>
struct HeldRow {
  static constexpr int kNone = -VEC;
  int row;
  int rank = 0;        // of the block in its cluster,
  int last = 0;        // and of the last one
  int64_t first;       // element of the first vector
  int begin = 0;       // that vector, in the row
  int vectors;         // of the block
  int before = 0;      // numbers of the row before its first vector,
  int after = 0;       // and after its last
  int single = kNone;  // the thread's single number, from the block's first vector, or kNone

  __device__ __forceinline__ HeldRow(int64_t cols, int most_vectors, int blocks, int share)
      : row(static_cast<int>(CLUSTER ? blockIdx.x / static_cast<unsigned>(blocks) : blockIdx.x)),
        first(row * cols),
        vectors(most_vectors) {
    if constexpr (kOddRow<RUNS>) {
      const int64_t start = first;
      first = (start + VEC - 1) / VEC * VEC;
      before = static_cast<int>(first - start);
      vectors = static_cast<int>((cols - before) / VEC);
      after = static_cast<int>(cols) - before - vectors * VEC;
      const int thread = static_cast<int>(threadIdx.x);
      if (thread < before) single = thread - before;
      if (thread >= before && thread < before + after) single = vectors * VEC + thread - before;
    }
    if constexpr (CLUSTER) {
      rank = BlockRankInCluster();
      last = blocks - 1;
      begin = rank * share;
      first += int64_t{begin} * VEC;
      vectors = min(share, vectors - begin);
      if (rank != (single < 0 ? 0 : last)) {
        single = kNone;
      } else if (single > 0) {
        single -= begin * VEC;
      }
    }
  }
  __device__ __forceinline__ bool HasSingle() const { return kOddRow<RUNS> && single != kNone; }
  // Its element.
  __device__ __forceinline__ int64_t Single() const { return first + single; }
  __device__ __forceinline__ bool SingleIsAfter() const {
    return static_cast<int>(threadIdx.x) >= before;
  }
  // Of the block, in all.
  __device__ __forceinline__ int Numbers() const {
    return vectors * VEC + (rank == 0 ? before : 0) + (rank == last ? after : 0);
  }
  // Of this thread's item i: the vector of the row, and the number that it begins with.
  __device__ __forceinline__ int VectorAt(int i) const {
    return begin + static_cast<int>(i * blockDim.x + threadIdx.x);
  }
  __device__ __forceinline__ int NumberAt(int i) const { return VectorAt(i) * VEC + before; }
};

// Whether item i of this thread is one of the row's vectors.
__device__ __forceinline__ bool HasItem(int i, int vectors) {
  return static_cast<int>(i * blockDim.x + threadIdx.x) < vectors;
}

struct alignas(8) RunParams {
  float gamma;
  float beta;
};
// The parameters of a vector: its first `own` numbers', and those of the others, if there are any.
struct RunParamsOfTwo : RunParams {
  int own;
  RunParams others;
};
template <Runs RUNS>
using HeldParams = std::conditional_t<kRunsOfNumbers<RUNS>, RunParamsOfTwo, RunParams>;

// The parameters of a row. Those of one run, or of a thread's vectors, are in registers; those of
// runs of numbers are in shared memory where a thread has more than two vectors: RunBytes makes
// room, and they are there after a barrier. Of a copy's speed, in registers and so, float32 (and
// float16) 3 items 64 x 64 x 49^2 (8) 0.46 and 0.72, 0.63 and 0.78, but 2 items 64 x 512 x 7^2 (32)
// 0.86 and 0.73; runs of vectors, gradient of 32 x 256 x 56^2 (32), 0.73 and 0.73, 0.74 and 0.64.
constexpr bool AreRunsShared(Runs runs, int items) { return AreOfNumbers(runs) && items > 2; }
inline int64_t RunBytes(const RowLayout& layout, Runs runs, const HeldCut& cut) {
  if (!AreRunsShared(runs, cut.items)) return 0;
  return SegmentLayout::Of(layout).segments * static_cast<int64_t>(sizeof(RunParams));
}

template <Runs RUNS, int VEC, int ITEMS, bool CLUSTER>
class RowRuns {
 public:
  using Row = HeldRow<RUNS, VEC, CLUSTER>;
  static constexpr bool kShared = AreRunsShared(RUNS, ITEMS);

  // `shared`: RunBytes.
  __device__ __forceinline__ RowRuns(const SegmentRuns& runs, const Row& at, DType type,
                                     const void* gamma, const void* beta, RunParams* shared)
      : runs_(runs), at_(at), type_(type), gamma_(gamma), beta_(beta), shared_(shared) {
    // Of what it is given: of its own members, one of the kernels would spill registers.
    const auto load = [&](int run, RunParams* to) { Load(runs, at, type, gamma, beta, run, to); };
    if constexpr (kOneRun<RUNS>) {
      load(0, &own_[0]);
    } else if constexpr (kShared) {
      const int count = static_cast<int>(runs.layout.segments);
#pragma unroll 1
      for (int run = threadIdx.x; run < count; run += blockDim.x) load(run, &shared[run]);
    } else {
#pragma unroll
      for (int i = 0; i < ITEMS; ++i) {
        if (!HasItem(i, at.vectors)) continue;
        if constexpr (RUNS == Runs::kVectors) {
          load(runs.SegmentAt(at.VectorAt(i)), &own_[i]);
        } else {
          own_[i] = Find(i);
        }
      }
    }
  }
  // Of this thread's item i.
  __device__ __forceinline__ HeldParams<RUNS> Of(int i) const {
    if constexpr (kShared) {
      return Find(i);
    } else {
      return own_[kOneRun<RUNS> ? 0 : i];
    }
  }
  // Of its single number, or of a row of one run.
  __device__ __forceinline__ RunParams OfSingle() const {
    if constexpr (kOneRun<RUNS>) {
      return own_[0];
    } else {
      RunParams out;
      Load(at_.SingleIsAfter() ? static_cast<int>(runs_.layout.segments) - 1 : 0, &out);
      return out;
    }
  }

 private:
  static __device__ __forceinline__ void Load(const SegmentRuns& runs, const Row& at, DType type,
                                              const void* gamma, const void* beta, int run,
                                              RunParams* to) {
    const int64_t param = runs.ParamOf(at.row, run);
    to->gamma = ParamOr<float>(type, gamma, param, 1);
    to->beta = ParamOr<float>(type, beta, param, 0);
  }
  __device__ __forceinline__ void Load(int run, RunParams* to) const {
    Load(runs_, at_, type_, gamma_, beta_, run, to);
  }
  // Of runs of numbers.
  __device__ __forceinline__ HeldParams<RUNS> Find(int i) const {
    HeldParams<RUNS> out;
    const int number = at_.NumberAt(i);
    const int run = runs_.SegmentAt(number);
    out.own = static_cast<int>((run + 1) * runs_.length.value) - number;
    if constexpr (kShared) {
      static_cast<RunParams&>(out) = shared_[run];
      out.others = shared_[out.own < VEC ? run + 1 : run];
    } else {
      Load(run, &out);
      if (out.own < VEC) Load(run + 1, &out.others);
    }
    return out;
  }

  const SegmentRuns& runs_;
  const Row& at_;
  const DType type_;
  const void* const gamma_;
  const void* const beta_;
  const RunParams* const shared_;
  HeldParams<RUNS> own_[kOneRun<RUNS> || kShared ? 1 : ITEMS];
};

// *launched: false where the device has no room for such a block, or clusters of so many.
template <typename Arguments>
Status LaunchHeld(const char* name, void (*kernel)(Arguments), const HeldCut& cut, int64_t rows,
                  int64_t shared, void* stream, bool* launched, const Arguments& arguments) {
  const void* const function = reinterpret_cast<const void*>(kernel);
  const int fit = cut.blocks == 1 ? ResidentBlocks(function, cut.threads, shared)
                                  : ResidentClusters(function, cut.blocks, cut.threads, shared);
  *launched = fit > 0;
  if (!*launched) return Status();
  NV_NORMS_RETURN_IF_ERROR(AllowShared(kernel, shared, name));
  return LaunchKernel(name, kernel, static_cast<unsigned>(rows * cut.blocks),
                      static_cast<unsigned>(cut.threads), static_cast<size_t>(shared), cut.blocks,
                      stream, arguments);
}

// Lets every block of a cluster know what each has: posted[rank], in shared memory. All have
// arrived at the cluster before.
template <int N>
__device__ __forceinline__ void PostInCluster(const float (&mine)[N], float (*posted)[N],
                                              int blocks) {
  WaitForCluster(blocks);
  if (threadIdx.x < blocks) {
    float* const to = InBlockOfCluster(posted[BlockRankInCluster()], threadIdx.x);
#pragma unroll
    for (int n = 0; n < N; ++n) to[n] = mine[n];
  }
  SyncCluster();
}

// The thread's vectors of a row, as they are in memory, past the L1 cache, which is for parameters.
template <typename T, int VEC, int ITEMS>
__device__ __forceinline__ void LoadHeld(const T* row, int vectors, Bits<float, VEC> (&to)[ITEMS]) {
  using C = Chunk<VEC * sizeof(T)>;
  const auto* at = reinterpret_cast<const typename C::Type*>(row) + threadIdx.x;
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    if (HasItem(i, vectors)) C::Split(__ldcs(at + i * static_cast<int>(blockDim.x)), to[i].words);
  }
}

// The compiler would keep what it has made of the numbers, twice as many registers.
template <typename T, int VEC, int ITEMS>
__device__ __forceinline__ void ForgetConverted(Bits<float, VEC> (&bits)[ITEMS]) {
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
#pragma unroll
    for (int w = 0; w < static_cast<int>(VEC * sizeof(T) / 4); ++w) {
      asm volatile("" : "+r"(bits[i].words[w]));
    }
  }
}

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_HELD_CUH_
