// What the kernels of split rows share: how rows too long for any team are cut into tiles.
#ifndef NV_NORMS_KERNELS_CUDA_SPLIT_CUH_
#define NV_NORMS_KERNELS_CUDA_SPLIT_CUH_

#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/rows.cuh"

namespace nv_norms {
namespace cuda {

constexpr int kSplitThreads = 512;
constexpr int kSplitItems = 16;  // elements of a tile to a thread
constexpr int kSplitColumns = kSplitThreads * kSplitItems;
constexpr int kApplyThreads = 256;
constexpr int kMergeThreads = 256;

inline int64_t SplitTiles(const RowLayout& layout) { return CeilDiv(layout.cols, kSplitColumns); }

inline bool SplitFits(const RowLayout& layout) {
  return layout.cols < kMostColumns && layout.rows * SplitTiles(layout) < kMostColumns;
}

// A block's tile in the first pass. It ends with the columns that the second pass begins with, of
// all rows: these are still in the L2 cache then.
struct SplitPlace {
  int64_t row;
  int tile;
};

__device__ __forceinline__ SplitPlace SplitPlaceOf(int64_t rows, int tiles) {
  const unsigned count = static_cast<unsigned>(rows);
  return {blockIdx.x % count, tiles - 1 - static_cast<int>(blockIdx.x / count)};
}

// make(types, vector), of null pointers to the types of this problem's tensors and to a
// std::integral_constant of the numbers to a vector.
template <typename A, typename Problem, typename Make>
auto WithSplitTypes(const Problem& problem, int vector, const Make& make) {
  const auto with = [&](auto* types) {
    return vector == 4 ? make(types, std::integral_constant<int, 4>())
                       : make(types, std::integral_constant<int, 1>());
  };
  if constexpr (sizeof(A) == 4) {
    if (UsualTypes(problem)) {
      const DType other = OtherType(problem);
      if (other != problem.x) {
        return other == DType::kHalf
                   ? with(static_cast<FixedTypes<float, __half>*>(nullptr))
                   : with(static_cast<FixedTypes<float, __nv_bfloat16>*>(nullptr));
      }
      if (problem.x == DType::kFloat) return with(static_cast<FixedTypes<float>*>(nullptr));
      if (problem.x == DType::kHalf) return with(static_cast<FixedTypes<__half>*>(nullptr));
      return with(static_cast<FixedTypes<__nv_bfloat16>*>(nullptr));
    }
  }
  return with(static_cast<AnyTypes<A>*>(nullptr));
}

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_SPLIT_CUH_
