// How a block holds a row: see held.h.
#ifndef NV_NORMS_KERNELS_CUDA_HELD_CUH_
#define NV_NORMS_KERNELS_CUDA_HELD_CUH_

#include <limits>

#include "kernels/cuda/held.h"
#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/segments.h"

namespace nv_norms {
namespace cuda {

constexpr int kMostHeldThreads = 1024;

// How a row's parameters lie.
enum class Runs {
  kOne,      // one for the row
  kOneOdd,   // likewise, of a row that is no whole vectors
  kVectors,  // one for some whole vectors of 16 bytes
  kNumbers,  // one for some numbers, at least as many as a vector has
};

template <Runs RUNS>
constexpr bool kOneRun = RUNS == Runs::kOne || RUNS == Runs::kOneOdd;

inline Runs RunsOf(const RowLayout& layout, DType x) {
  if (layout.by_row()) {
    return layout.cols * SizeOf(x) % kVectorBytes == 0 ? Runs::kOne : Runs::kOneOdd;
  }
  return layout.col_divisor * SizeOf(x) % kVectorBytes == 0 ? Runs::kVectors : Runs::kNumbers;
}

// Vectors of 16 bytes in a row, at most, or more than any block holds: where a row of several runs
// is no whole vectors, or a row is too short, or a vector may have numbers of three runs. Whole
// rows of fewer than 128 are faster by rings and segments, of a copy's speed on an H200 float16
// 32768 x 784 forward 0.77 -> 0.64, float32 8192 x 256 gradient 0.71 -> 0.67; rows of segments are
// not, float16 32768 x 128 (2 segments) 0.24 -> 0.41, 0.29 -> 0.35, nor are odd ones: float16 64000
// x 253 0.41 -> 0.53, 0.30 -> 0.41, float32 64000 x 169 gradient 0.34 -> 0.49.
inline int64_t HeldVectors(const RowLayout& layout, DType x) {
  constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  if (layout.by_column() || layout.rows >= kMostColumns) return kNone;
  const Runs runs = RunsOf(layout, x);
  if (runs != Runs::kOneOdd && (layout.cols * SizeOf(x) % kVectorBytes != 0 ||
                                layout.col_divisor * SizeOf(x) < kVectorBytes)) {
    return kNone;
  }
  const int64_t vectors = layout.cols * SizeOf(x) / kVectorBytes;
  const int64_t least = runs == Runs::kOne                            ? 128
                        : runs == Runs::kOneOdd && x == DType::kFloat ? 32
                                                                      : 16;
  return vectors < least ? kNone : vectors;
}

inline SegmentRuns HeldRuns(const RowLayout& layout, DType x) {
  const SegmentLayout segments = SegmentLayout::Of(layout);
  return RunsOf(layout, x) == Runs::kNumbers
             ? SegmentRuns::OfNumbers(segments)
             : SegmentRuns::Of(segments, static_cast<int>(SizeOf(x)));
}

// Where a block's row is. Its vectors are those aligned to 16 bytes; if there are numbers before
// and after them, a thread has one of these each.
template <Runs RUNS, int VEC>
struct HeldRow {
  int64_t first;  // element of the first vector
  int vectors;
  int64_t single = -1;  // element of the thread's single number, or none

  __device__ __forceinline__ HeldRow(int row, int64_t cols, int most_vectors)
      : first(row * cols), vectors(most_vectors) {
    if constexpr (RUNS == Runs::kOneOdd) {
      const int64_t begin = first;
      first = (begin + VEC - 1) / VEC * VEC;
      const int before = static_cast<int>(first - begin);
      vectors = static_cast<int>((cols - before) / VEC);
      const int after = static_cast<int>(cols) - before - vectors * VEC;
      const int thread = static_cast<int>(threadIdx.x);
      if (thread < before) single = begin + thread;
      if (thread >= before && thread < before + after) {
        single = first + vectors * VEC + (thread - before);
      }
    }
  }
  __device__ __forceinline__ bool HasSingle() const { return RUNS == Runs::kOneOdd && single >= 0; }
};

// The parameters of a vector: its first `own` numbers', and those of the others, if there are any.
template <Runs RUNS>
struct HeldParams {
  float gamma;
  float beta;
};
template <>
struct HeldParams<Runs::kNumbers> : HeldParams<Runs::kVectors> {
  int own;
  HeldParams<Runs::kVectors> others;
};

// Of this thread's vector i in a row.
template <Runs RUNS, int VEC>
__device__ __forceinline__ HeldParams<RUNS> LoadHeldParams(const SegmentRuns& runs, DType type,
                                                           const void* gamma, const void* beta,
                                                           int row, int i) {
  const unsigned vector = i * blockDim.x + threadIdx.x;
  HeldParams<RUNS> out = {};
  const auto load = [&](int run, auto* to) {
    const int64_t param = runs.ParamOf(row, run);
    to->gamma = ParamOr<float>(type, gamma, param, 1);
    to->beta = ParamOr<float>(type, beta, param, 0);
  };
  if constexpr (RUNS == Runs::kNumbers) {
    const int run = runs.SegmentAt(vector * VEC);
    out.own = static_cast<int>((run + 1) * runs.length.value - vector * VEC);
    load(run, &out);
    if (out.own < VEC) load(run + 1, &out.others);
  } else {
    load(RUNS == Runs::kVectors ? runs.SegmentAt(vector) : 0, &out);
  }
  return out;
}

// Threads of a block that has so many vectors of 16 bytes, so many to a thread.
inline int64_t HeldThreads(int64_t vectors, int items) {
  return CeilDiv(CeilDiv(vectors, items), 32) * 32;
}

// Whether item i of this thread is one of the row's vectors.
__device__ __forceinline__ bool HasItem(int i, int vectors) {
  return static_cast<int>(i * blockDim.x + threadIdx.x) < vectors;
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
