// What a block knows of the columns of a strip, and makes of their sums: the terms that dx needs.
#ifndef NV_NORMS_KERNELS_CUDA_COLUMNS_GRADIENT_TERMS_CUH_
#define NV_NORMS_KERNELS_CUDA_COLUMNS_GRADIENT_TERMS_CUH_

#include "kernels/cuda/columns_exchange.cuh"
#include "kernels/cuda/columns_sums.cuh"
#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/resident.cuh"

namespace nv_norms {
namespace cuda {

constexpr int kGradientNumbers = 3;  // of a column, e = x - mean: sums of e, dy and dy * e

// Where things are in shared memory, after the tiles.
struct GradientScratch {
  float* entries;  // [entries, 3, columns spread]
  double* sums;    // [readers, columns, 3]
  float* gammas;   // [columns]
  float* means;    // [2, columns], as the forward pass stored them: of every other unit
  float* rstds;    // [stats]
  GradientTerms<float>* stats;

  __device__ __forceinline__ GradientScratch(const StripShape& shape, void* at) {
    char* to = static_cast<char*>(at);
    entries = reinterpret_cast<float*>(to);
    to += (4 * shape.entries * (shape.columns * kGradientNumbers + 1) + 15) / 16 * 16;
    sums = reinterpret_cast<double*>(to);
    to += 8 * shape.readers * shape.columns * kGradientNumbers;
    gammas = reinterpret_cast<float*>(to);
    means = gammas + shape.columns;
    rstds = means + 2 * shape.columns;
    to += (4 * kColumnNumbers * shape.columns + 15) / 16 * 16;
    stats = reinterpret_cast<GradientTerms<float>*>(to);
  }

  // Behind all others [2, columns], where there is an activation: the next unit's rstd * gamma, and
  // its beta.
  __device__ __forceinline__ float* Lines(const StripShape& shape) const {
    return reinterpret_cast<float*>(stats + shape.columns);
  }
};

// Of the last two arrays, for each column.
inline int GradientColumnBytes(bool activated) {
  return static_cast<int>(sizeof(GradientTerms<float>) + (activated ? 2 * sizeof(float) : 0));
}

struct PlainSums {
  __device__ __forceinline__ static void Encode(const double (&sums)[kGradientNumbers], double,
                                                float (&to)[kGradientNumbers]) {
#pragma unroll
    for (int k = 0; k < kGradientNumbers; ++k) to[k] = static_cast<float>(sums[k]);
  }
  __device__ __forceinline__ static void Add(const float (&from)[kGradientNumbers], double,
                                             double (&sums)[kGradientNumbers]) {
#pragma unroll
    for (int k = 0; k < kGradientNumbers; ++k) sums[k] += from[k];
  }
};

// With every column's sums over the group in scratch.sums.
__device__ __forceinline__ void TermsOfColumns(const StripShape& shape, Formula formula,
                                               const GradientScratch& scratch, const float* means,
                                               int64_t first_stat, XhatLine<float>* store) {
  const int members = shape.members();
  const int lanes = members == 1 ? 1 : 32;
  const int lane = threadIdx.x % lanes;
  const double count = static_cast<double>(shape.rows) * members;
#pragma unroll 1
  for (int g = threadIdx.x / lanes; g < shape.stats(); g += kResidentThreads / lanes) {
    double sums[3] = {0, 0, 0};
#pragma unroll 1
    for (int m = lane; m < members; m += lanes) {
      const int column = ColumnOfMember(shape, g, m);
      const double gamma = scratch.gammas[column];
      sums[0] += scratch.sums[3 * column];
      sums[1] += gamma * scratch.sums[3 * column + 1];
      sums[2] += gamma * scratch.sums[3 * column + 2];
    }
    if (members > 1) WarpSum(sums, 32);
    if (lane != 0) continue;
    scratch.stats[g] = TermsOf<float, double>(formula, means[g * shape.depth], scratch.rstds[g],
                                              sums[0], sums[1], sums[2], count);
    if (store != nullptr) store[first_stat + g] = XhatLineOf(scratch.stats[g]);
  }
}

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_COLUMNS_GRADIENT_TERMS_CUH_
