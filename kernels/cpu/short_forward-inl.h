// Short rows, forward (short_lanes-inl.h).
#ifndef NV_NORMS_KERNELS_CPU_SHORT_FORWARD_INL_H_
#define NV_NORMS_KERNELS_CPU_SHORT_FORWARD_INL_H_

#include "kernels/cpu/rows_forward-inl.h"
#include "kernels/cpu/short_lanes-inl.h"
#include "kernels/cpu/simd-inl.h"

namespace nv_norms {
namespace cpu {
namespace NV_NORMS_TARGET {
namespace {

template <typename A>
struct ShortScaling {
  Vec<A> high;
  Vec<A> low;
  Vec<A> rstd;
  Vec<A> gamma;  // of rows that have one each
  Vec<A> beta;
};

// Rows of more columns are summed row by row, not a row to a lane by columns. AMD EPYC (family 26),
// in the L2 cache, one thread, picoseconds an element, by columns and by rows: AVX-512, float32,
// 369 and 404 at 12 columns, 403 and 375 at 13; float64, 658 and 662 at 11, 645 and 629 at 12;
// AVX2, 814 and 874 at 6, 851 and 779 at 7; 16 bytes, 1115 and 1261 at 15.
template <typename A>
constexpr int64_t kByColumnForward = NV_NORMS_VECTOR_BYTES == 64   ? (kLanes<A> == 16 ? 12 : 11)
                                     : NV_NORMS_VECTOR_BYTES == 32 ? 6
                                                                   : 15;

// Adds up a row's numbers less `shift`, and if wanted their squares, lane by lane.
template <bool squared, typename A>
NV_NORMS_INLINE void SumRow(const A* x, int64_t cols, A shift, Vec<A>* sum, Vec<A>* squares) {
  constexpr int64_t lanes = kLanes<A>;
  const Vec<A> s = Splat(shift);
  Vec<A> first{};
  Vec<A> second{};
  const auto add = [&](Vec<A> v) __attribute__((always_inline)) {
    const Vec<A> e = v - s;
    first += e;
    if (squared) second += e * e;
  };
  int64_t c = 0;
  for (; c + lanes <= cols; c += lanes) add(Load(x + c));
  if (c < cols) add(LoadPart(x + c, cols - c, shift));
  *sum = first;
  if (squared) *squares = second;
}

// So many blocks are brought closer ahead, or kAheadBytes. AMD EPYC (family 26), float32, 400 MB,
// one thread, picoseconds an element, one block (of 112 columns: 4 KB), two and four: 234, 204 and
// 186 at 48 columns, 236, 183 and 172 at 64, 256, 168 and 171 at 96, 249, 196 and 209 at 112.
constexpr int64_t kBlocksAhead = 2;

// Blocks of rows of more columns are brought closer in all passes, not while an output is streamed
// alone: as above, that alone and so, 173 and 180 at 64 columns, 189 and 178 at 96, 237 and 189 at
// 112; two threads 175 and 187, 179 and 162, 190 and 167.
constexpr int64_t kStoresSuffice = 64;

// Brings [begin, end) of `from` closer.
template <typename T>
NV_NORMS_INLINE void PrefetchPart(const T* from, int64_t begin, int64_t end) {
  constexpr int64_t line = 64 / sizeof(T);
  for (int64_t i = (begin + line - 1) / line * line; i < end; i += line) Prefetch(from + i);
}

// The sums of a block's rows, by columns, whose vectors are kept in `columns`, or by rows: of what
// is left of them less their first number. A quarter of the block `next` is brought closer if
// `ahead`.
template <bool ahead, typename A, typename T>
NV_NORMS_INLINE Vec<A> SumsAboutFirst(const A* x, int64_t cols, bool is_rms, const T* next,
                                      Vec<A>* columns) {
  if (cols <= kByColumnForward<A>) {
    Vec<A> sum[kUnroll];
    Clear(sum);
    const Index<A> starts = RowStarts<A>(cols);
    columns[0] = LoadColumn(x, cols, starts, 0);
    const Vec<A> first = is_rms ? Vec<A>{} : columns[0];
    ForColumns(cols - 1, [&](int u, int64_t c) __attribute__((always_inline)) {
      columns[c + 1] = LoadColumn(x, cols, starts, c + 1);
      sum[u] += columns[c + 1] - first;
    });
    return Sum(sum);
  }
  columns[0] = Strided(x, cols);
  if (is_rms) return Vec<A>{};
  Vec<A> sums[kLanes<A>];
  for (int64_t r = 0; r < kLanes<A>; ++r) {
    if (ahead) PrefetchPart(next, r * cols / 4, (r + 1) * cols / 4);
    SumRow<false>(x + r * cols, cols, x[r * cols], sums + r, sums);
  }
  return SumOfEach<A>(sums);
}
// Of what is left of them less `about`, and of its squares. The next quarter.
template <bool ahead, typename A, typename T>
NV_NORMS_INLINE void SumsAbout(const A* x, int64_t cols, Vec<A> about, const Vec<A>* columns,
                               const T* next, Vec<A>* sum, Vec<A>* squares) {
  if (cols <= kByColumnForward<A>) {
    Vec<A> first[kUnroll];
    Vec<A> second[kUnroll];
    Clear(first);
    Clear(second);
    ForColumns(cols, [&](int u, int64_t c) __attribute__((always_inline)) {
      const Vec<A> e = columns[c] - about;
      first[u] += e;
      second[u] += e * e;
    });
    *sum = Sum(first);
    *squares = Sum(second);
    return;
  }
  constexpr int64_t lanes = kLanes<A>;
  alignas(NV_NORMS_VECTOR_BYTES) A shifts[lanes];
  Store(about, shifts);
  Vec<A> sums[lanes];
  Vec<A> of_squares[lanes];
  const int64_t quarter = cols * lanes / 4;
  for (int64_t r = 0; r < lanes; ++r) {
    if (ahead) PrefetchPart(next, quarter + r * cols / 4, quarter + (r + 1) * cols / 4);
    SumRow<true>(x + r * cols, cols, shifts[r], sums + r, of_squares + r);
  }
  *sum = SumOfEach<A>(sums);
  *squares = SumOfEach<A>(of_squares);
}

// The statistics of a block: two passes, shifted, as of longer rows (MeanOf, MomentsAbout). No lane
// adds up more than a few numbers before they go to double. Meanwhile the first half of a block
// `next` is brought closer if `ahead`.
template <bool ahead, typename T, typename A>
NV_NORMS_INLINE ShortScaling<A> ShortStatistics(const RowForward<T>& task, const A* x, int64_t row,
                                                int64_t rows, const T* next) {
  const int64_t cols = task.layout.cols;
  const double by_count = 1.0 / static_cast<double>(cols);
  const bool is_rms = task.formula == Formula::kRms;
  Vec<A> columns[kByColumnForward<A>];
  const Wide<A> shifted = ToWide(SumsAboutFirst<ahead>(x, cols, is_rms, next, columns));
  Wide<A> mean = ToWide(columns[0]);
  for (int p = 0; p < Lanes<A>::kWide; ++p) {
    mean.part[p] = is_rms ? Vec<double>{} : mean.part[p] + shifted.part[p] * by_count;
  }
  const Vec<A> about = FromWide(mean);
  Vec<A> sum;
  Vec<A> squares;
  SumsAbout<ahead>(x, cols, about, columns, next, &sum, &squares);
  const Wide<A> e = ToWide(sum);
  const Wide<A> ee = ToWide(squares);
  mean = ToWide(about);
  Wide<A> rstd;
  for (int p = 0; p < Lanes<A>::kWide; ++p) {
    const Vec<double> low = is_rms ? Vec<double>{} : e.part[p] * by_count;
    // Not e * 0 for RMS: e may be infinite.
    Vec<double> m2 = is_rms ? ee.part[p] : ee.part[p] - e.part[p] * low;
    m2 = m2 < 0.0 ? Vec<double>{} : m2;  // keeps NaN
    mean.part[p] += low;
    rstd.part[p] = ReciprocalRoot<A>(m2 * by_count + task.epsilon);
  }
  if (task.mean != nullptr) StoreStatistics(mean, task.stat, row, rows, task.mean);
  if (task.rstd != nullptr) StoreStatistics(rstd, task.stat, row, rows, task.rstd);
  ShortScaling<A> out;
  out.high = out.low = Vec<A>{};
  if (task.formula == Formula::kCenter) {
    out.high = FromWide(mean);
    const Wide<A> high = ToWide(out.high);
    for (int p = 0; p < Lanes<A>::kWide; ++p) mean.part[p] -= high.part[p];
    out.low = FromWide(mean);
  }
  out.rstd = FromWide(rstd);
  return out;
}

// `blocks` blocks; `rows` rows of each have statistics. The statistics of a block are computed
// before the output of the block before it, so that neither waits for the other. Not inlined: each
// row is computed by the same code, wherever it is.
template <bool stream, bool in_all_passes, bool by_row, typename T>
__attribute__((noinline)) void ForwardShortBlocksAs(
    const RowForward<T>& task, const ShortRowTables<ComputedIn<T>, kShortForward.most()>& tables,
    int64_t row, int64_t blocks, int64_t rows, const T* x, T* y) {
  using A = ComputedIn<T>;
  constexpr int64_t lanes = kLanes<A>;
  const int64_t size = task.layout.cols * lanes;
  const int64_t far = std::max(kBlocksAhead * size, kAheadBytes / static_cast<int64_t>(sizeof(T)));
  alignas(NV_NORMS_VECTOR_BYTES)
      A rooms[2][std::is_same_v<T, A> ? 1 : kShortForward.most() * lanes];
  const A* wide = nullptr;
  ShortScaling<A> scaling{};
  for (int64_t b = 0; b <= blocks; ++b, x += size) {
    const ShortScaling<A> s = scaling;
    const A* now = wide;
    if (b < blocks) {
      wide = AsComputed(x, size, rooms[b % 2]);
      const int64_t first = row + b * lanes;
      scaling = ShortStatistics<in_all_passes>(task, wide, first, rows, x + far);
      if (by_row) {
        RowParams<A> params;
        params.Find(task.layout, first);
        scaling.gamma = params.Of(task.gamma, A(1));
        scaling.beta = params.Of(task.beta, A(0));
      }
    }
    if (b == 0) continue;
    const Ahead<T> ahead =
        in_all_passes ? Ahead<T>::SecondHalf(x + far, size) : Ahead<T>::All(x + far);
    for (int64_t i = 0; i < size; i += lanes) {
      if (stream) ahead(i);
      const Index<A> at = tables.Row(i);
      Vec<A> out = ((Load(now + i) - Permute<A>(s.high, at)) - Permute<A>(s.low, at)) *
                   Permute<A>(s.rstd, at);
      out = by_row ? out * Permute<A>(s.gamma, at) + Permute<A>(s.beta, at)
                   : out * Load(tables.gamma + i) + Load(tables.beta + i);
      if (stream) {
        Stream(out, y + i);
      } else {
        Store(out, y + i);
      }
    }
    y += size;
  }
}

template <bool stream, bool by_row, typename T>
void ForwardShortBlocksOf(const RowForward<T>& task,
                          const ShortRowTables<ComputedIn<T>, kShortForward.most()>& tables,
                          int64_t row, int64_t blocks, int64_t rows, const T* x, T* y) {
  if (stream && task.layout.cols > kStoresSuffice) {
    ForwardShortBlocksAs<stream, stream, by_row>(task, tables, row, blocks, rows, x, y);
  } else {
    ForwardShortBlocksAs<stream, false, by_row>(task, tables, row, blocks, rows, x, y);
  }
}

template <bool stream, typename T>
void ForwardShortBlocks(const RowForward<T>& task,
                        const ShortRowTables<ComputedIn<T>, kShortForward.most()>& tables,
                        int64_t row, int64_t blocks, int64_t rows, const T* x, T* y) {
  if (ParamByColumn(task.layout)) {
    ForwardShortBlocksOf<stream, false>(task, tables, row, blocks, rows, x, y);
  } else {
    ForwardShortBlocksOf<stream, true>(task, tables, row, blocks, rows, x, y);
  }
}

// Rows [begin, end).
template <typename T>
void ForwardShortRowBlocks(const RowForward<T>& task, int64_t begin, int64_t end) {
  using A = ComputedIn<T>;
  constexpr int64_t lanes = kLanes<A>;
  const int64_t cols = task.layout.cols;
  ShortRowTables<A, kShortForward.most()> tables;
  const A* none = nullptr;
  const bool by_column = ParamByColumn(task.layout);
  tables.Fill(cols, by_column ? task.gamma : none, by_column ? task.beta : none);
  const T* x = task.x + (begin - task.first_row) * cols;
  T* y = task.y + (begin - task.first_row) * cols;
  const int64_t blocks = (end - begin) / lanes;
  if (blocks > 0) {
    if (task.stream && reinterpret_cast<uintptr_t>(y) % (lanes * sizeof(T)) == 0) {
      ForwardShortBlocks<true>(task, tables, begin, blocks, lanes, x, y);
    } else {
      ForwardShortBlocks<false>(task, tables, begin, blocks, lanes, x, y);
    }
  }
  const int64_t done = blocks * lanes;
  const int64_t rest = end - begin - done;
  if (rest == 0) return;
  T x_rest[kShortForward.most() * lanes] = {};
  T y_rest[kShortForward.most() * lanes];
  std::memcpy(x_rest, x + done * cols, rest * cols * sizeof(T));
  // As the blocks before, by the same code.
  if (task.stream) {
    alignas(NV_NORMS_VECTOR_BYTES) T streamed[kShortForward.most() * lanes];
    ForwardShortBlocks<true>(task, tables, begin + done, 1, rest, x_rest, streamed);
    FinishStreams();
    std::memcpy(y_rest, streamed, sizeof y_rest);
  } else {
    ForwardShortBlocks<false>(task, tables, begin + done, 1, rest, x_rest, y_rest);
  }
  std::memcpy(y + done * cols, y_rest, rest * cols * sizeof(T));
}

}  // namespace
}  // namespace NV_NORMS_TARGET
}  // namespace cpu
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CPU_SHORT_FORWARD_INL_H_
