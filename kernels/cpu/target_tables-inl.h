// Everything of one target. Included once by each targets_*.cc after `#pragma GCC target`, with
//   NV_NORMS_TARGET         the target's namespace
//   NV_NORMS_VECTOR_BYTES   the size of its vectors
//   NV_NORMS_BFLOAT16       1 where it has AVX-512's conversion to bfloat16: of that type's kernels
//                           alone, the others are those of avx512
// All other headers come before the pragma: their inline functions are shared with code for any
// CPU.
#include "kernels/cpu/column_statistics-inl.h"
#include "kernels/cpu/columns-inl.h"
#include "kernels/cpu/rows_backward-inl.h"
#include "kernels/cpu/rows_forward-inl.h"
#include "kernels/cpu/short_backward-inl.h"
#include "kernels/cpu/short_forward-inl.h"
#include "kernels/cpu/simd-inl.h"

namespace nv_norms {
namespace cpu {
namespace NV_NORMS_TARGET {
namespace {

template <typename From, typename To>
void Convert(const From* from, int64_t count, To* to) {
  using A = ComputedIn<To>;
  StoreAll<false>(
      to, count, [](int64_t) {},
      [&](int64_t i) __attribute__((always_inline)) { return Load(from + i); },
      [&](int64_t i, int64_t rest)
          __attribute__((always_inline)) { return LoadPart(from + i, rest, A(0)); });
}

// Without AVX2 there are no permutations, and whole vectors of one row are faster: float32 in the
// L2 cache, one thread, picoseconds an element, many rows at a time and one by one: 12 columns 1960
// and 2410, 16 columns 1680 and 1770, 48 columns 1420 and 920; but 3, 15 and 47 columns 3250 and
// 83000, 1870 and 16100, 1560 and 5570 (on a busy machine). Rows with a parameter each, forward:
// 15 columns 2290 and 2220, 25 columns 2090 and 1390; bfloat16, which is converted a block at a
// time, 49 columns 2240 and 2490, 81 columns 2130 and 2030.
template <typename T>
bool TakesShort(const RowLayout& rows, const ShortColumns& most) {
  if (!AreShort(rows, most)) return false;
  if (NV_NORMS_VECTOR_BYTES > 16) return true;
  constexpr int64_t lanes = kLanes<ComputedIn<T>>;
  constexpr int64_t most_by_row = std::is_same_v<T, ComputedIn<T>> ? 16 : 64;
  const bool whole = rows.cols % lanes == 0 && rows.cols > 3 * lanes;
  return !whole && (rows.by_column() || rows.cols <= most_by_row);
}

template <typename T>
void ForwardRows(const RowForward<T>& task, int64_t begin, int64_t end) {
  if (TakesShort<T>(task.layout, kShortForward)) {
    ForwardShortRowBlocks(task, begin, end);
  } else if (task.stream) {
    ForwardRowsAs<true>(task, begin, end);
  } else {
    ForwardRowsAs<false>(task, begin, end);
  }
  if (task.stream) FinishStreams();
}

template <typename T>
void BackwardRows(const RowBackward<T>& task, int64_t begin, int64_t end, double* dgamma,
                  double* dbeta) {
  // Of rows with a parameter each, the sums of dy * x are not those of dy * (x - mean).
  const bool sums_fit = task.layout.by_column() || task.formula != Formula::kScaleOnly;
  if (sums_fit && TakesShort<T>(task.layout, kShortBackward)) {
    BackwardShortRowBlocks(task, begin, end, dgamma, dbeta);
  } else if (task.stream) {
    BackwardRowsAs<true>(task, begin, end, dgamma, dbeta);
  } else {
    BackwardRowsAs<false>(task, begin, end, dgamma, dbeta);
  }
  if (task.stream) FinishStreams();
}

template <typename T>
constexpr Kernels<T> MakeKernels() {
  Kernels<T> out{};
  out.moments = MomentsOfRun<T>;
  out.normalize = Normalize<T>;
  out.forward_rows = ForwardRows<T>;
  out.gradient_sums = SumsOfRun<T>;
  out.backward_run = BackwardRun<T>;
  out.backward_rows = BackwardRows<T>;
  out.tile_moments = TileMoments<T>;
  out.tile_normalize = TileNormalize<T>;
  out.tile_gradient_sums = TileGradientSums<T>;
  out.tile_input_gradient = TileInputGradient<T>;
  out.finish_columns = FinishColumns<ComputedIn<T>>;
  out.finish_column_gradients = FinishColumnGradients<ComputedIn<T>>;
  out.load = Convert<T, ComputedIn<T>>;
  out.store = Convert<ComputedIn<T>, T>;
  return out;
}

}  // namespace

const KernelTables& Tables() {
#if NV_NORMS_BFLOAT16
  static const KernelTables tables = {avx512::Tables().half, MakeKernels<Bfloat16>(),
                                      avx512::Tables().single, avx512::Tables().wide};
#else
  static constexpr KernelTables tables = {MakeKernels<Half>(), MakeKernels<Bfloat16>(),
                                          MakeKernels<float>(), MakeKernels<double>()};
#endif
  return tables;
}

}  // namespace NV_NORMS_TARGET
}  // namespace cpu
}  // namespace nv_norms
