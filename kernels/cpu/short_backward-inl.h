// Short rows, backward (short_lanes-inl.h).
#ifndef NV_NORMS_KERNELS_CPU_SHORT_BACKWARD_INL_H_
#define NV_NORMS_KERNELS_CPU_SHORT_BACKWARD_INL_H_

#include "kernels/cpu/rows_backward-inl.h"
#include "kernels/cpu/short_lanes-inl.h"
#include "kernels/cpu/simd-inl.h"

namespace nv_norms {
namespace cpu {
namespace NV_NORMS_TARGET {
namespace {

// A number of each of kLanes<A> rows for each of these.
template <typename A>
struct ShortTerms {
  Vec<A> high;
  Vec<A> low;
  Vec<A> rstd;
  Vec<A> w_mean;
  Vec<A> slope;
  Vec<A> xhat_offset;
  // Of rows that have a parameter each:
  RowParams<A> params;
  Vec<A> gamma;
  Wide<A> dgamma;
  Wide<A> dbeta;
};

// As kByColumnForward: 429 and 444 at 9 columns, 413 and 408 at 10; 742 and 792 at 6, 739 and 730
// at 7; 799 and 956 at 4, 847 and 818 at 5; 2424 and 2823 at 11, 2435 and 2150 at 13.
template <typename A>
constexpr int64_t kByColumnBackward = NV_NORMS_VECTOR_BYTES == 64   ? (kLanes<A> == 16 ? 9 : 6)
                                      : NV_NORMS_VECTOR_BYTES == 32 ? 4
                                                                    : 11;

// With e = x - mean, w = dy * gamma: the sums of e, of w and of w * e of each row of a block. Where
// rows have a parameter each (by_row), w = dy.
template <bool by_row, typename A>
NV_NORMS_INLINE void SumGradients(const A* x, const A* dy, const A* gamma, int64_t cols,
                                  Vec<A> mean, Vec<A>* sums) {
  constexpr int64_t lanes = kLanes<A>;
  if (cols <= kByColumnBackward<A>) {
    GradientVectors<A> v;
    v.Clear();
    const Index<A> starts = RowStarts<A>(cols);
    ForColumns(cols, [&](int u, int64_t c) __attribute__((always_inline)) {
      Vec<A> numbers[2];  // of x and of dy
      LoadColumn({x, dy}, cols, starts, c, numbers);
      v.Add(u, numbers[0] - mean, by_row ? numbers[1] : numbers[1] * gamma[c]);
    });
    sums[0] = Sum(v.e);
    sums[1] = Sum(v.w);
    sums[2] = Sum(v.we);
    return;
  }
  alignas(NV_NORMS_VECTOR_BYTES) A shifts[lanes];
  Store(mean, shifts);
  Vec<A> rows[3][lanes];
  for (int64_t r = 0; r < lanes; ++r, x += cols, dy += cols) {
    const Vec<A> s = Splat(shifts[r]);
    Vec<A> e_sum{};
    Vec<A> w_sum{};
    Vec<A> we_sum{};
    const auto add = [&](Vec<A> v, Vec<A> w) __attribute__((always_inline)) {
      const Vec<A> e = v - s;
      e_sum += e;
      w_sum += w;
      we_sum += w * e;
    };
    int64_t c = 0;
    for (; c + lanes <= cols; c += lanes) {
      add(Load(x + c), by_row ? Load(dy + c) : Load(dy + c) * Load(gamma + c));
    }
    if (c < cols) {
      const int64_t rest = cols - c;
      const Vec<A> d = LoadPart(dy + c, rest, A(0));
      add(LoadPart(x + c, rest, shifts[r]), by_row ? d : d * LoadPart(gamma + c, rest, A(0)));
    }
    rows[0][r] = e_sum;
    rows[1][r] = w_sum;
    rows[2][r] = we_sum;
  }
  for (int i = 0; i < 3; ++i) sums[i] = SumOfEach<A>(rows[i]);
}

// As SumsOf and TermsOf.
template <bool by_row, typename T, typename A>
NV_NORMS_INLINE ShortTerms<A> ShortTermsOf(const RowBackward<T>& task, const A* x, const A* dy,
                                           int64_t row, int64_t rows) {
  const int64_t cols = task.layout.cols;
  const double by_count = 1.0 / static_cast<double>(cols);
  Wide<A> mean{};
  if (task.formula != Formula::kRms) mean = LoadStatistics<A>(task.stat, task.mean, row, rows);
  const Wide<A> rstd = LoadStatistics<A>(task.stat, task.rstd, row, rows);
  ShortTerms<A> out;
  out.high = FromWide(mean);
  out.rstd = FromWide(rstd);
  Vec<A> sums[3];
  SumGradients<by_row>(x, dy, task.gamma, cols, out.high, sums);
  const Wide<A> e = ToWide(sums[0]);
  Wide<A> w = ToWide(sums[1]);
  Wide<A> gamma{};
  if (by_row) {
    out.params.Find(task.layout, row);
    out.gamma = out.params.Of(task.gamma, A(1));
    gamma = ToWide(out.gamma);
  }
  const Wide<A> we = ToWide(sums[2]);
  Wide<A> low{};
  Wide<A> w_mean{};
  Wide<A> slope;
  Wide<A> xhat_offset{};
  for (int p = 0; p < Lanes<A>::kWide; ++p) {
    if (task.formula != Formula::kRms) low.part[p] = e.part[p] * by_count;
    Vec<double> w_xhat = we.part[p];
    if (task.formula == Formula::kCenter) w_xhat -= low.part[p] * w.part[p];
    if (task.formula == Formula::kScaleOnly) w_xhat += mean.part[p] * w.part[p];
    if (by_row) {
      // A sum of dy that is infinite is so in dgamma, too: not less itself.
      const auto finite = w.part[p] - w.part[p] == 0.0;
      out.dgamma.part[p] = rstd.part[p] * (finite ? w_xhat : we.part[p]);
      out.dbeta.part[p] = w.part[p];
      w_xhat *= gamma.part[p];
      w.part[p] *= gamma.part[p];
    }
    slope.part[p] = rstd.part[p] * rstd.part[p] * (w_xhat * by_count);
    if (task.formula == Formula::kCenter) w_mean.part[p] = w.part[p] * by_count;
    if (task.formula == Formula::kScaleOnly) {
      xhat_offset.part[p] = (mean.part[p] + low.part[p]) * rstd.part[p];
    }
  }
  out.low = FromWide(low);
  out.w_mean = FromWide(w_mean);
  out.slope = FromWide(slope);
  out.xhat_offset = FromWide(xhat_offset);
  return out;
}

// Sums of dy * xhat and of dy for each place of a block.
template <typename A>
struct ShortParamSums {
  alignas(NV_NORMS_VECTOR_BYTES) double gamma[kShortBackward.most() * kLanes<A>];
  alignas(NV_NORMS_VECTOR_BYTES) double beta[kShortBackward.most() * kLanes<A>];
};

// Blocks whose terms of dgamma and dbeta are added before they go to doubles.
constexpr int kShortTogether = 4;

// Where prefetches delay what comes from the L2 cache (PrefetchesAtStores) those of four blocks are
// too many at once, unless sums are by columns or numbers converted. AMD EPYC (family 26), float32,
// one thread, picoseconds an element, four blocks and one: by columns, of 400 MB, 915 and 1003 at
// 3; by rows, of 100 MB, 577 and 526 at 10, 531 and 480 at 11, 588 and 471 at 12; of 400 MB, 478
// and 343 at 16, 565 and 316 at 32; at 63 555, 432 and, further ahead, 355.
template <typename T>
bool ByOneBlock(int64_t cols) {
  return PrefetchesAtStores() && cols > kByColumnBackward<ComputedIn<T>> &&
         sizeof(T) >= sizeof(float);
}

// `together` blocks, at once. dx_step: from one block's dx to the next one's, 0 if nobody wants dx.
// sums: where columns have parameters; dgamma, dbeta: where rows have one each (by_row).
template <bool stream, bool by_row, int together, typename T>
__attribute__((noinline)) void BackwardShortBlocks(
    const RowBackward<T>& task, const ShortRowTables<ComputedIn<T>, kShortBackward.most()>& tables,
    int64_t row, int64_t rows, const T* x, const T* dy, T* dx, int64_t dx_step,
    ShortParamSums<ComputedIn<T>>* sums, double* dgammas, double* dbetas) {
  using A = ComputedIn<T>;
  constexpr int64_t lanes = kLanes<A>;
  constexpr int64_t room = std::is_same_v<T, A> ? 1 : kShortBackward.most() * lanes;
  const int64_t size = task.layout.cols * lanes;
  alignas(NV_NORMS_VECTOR_BYTES) A x_rooms[together][room];
  alignas(NV_NORMS_VECTOR_BYTES) A dy_rooms[together][room];
  const A* x_wide[together];
  const A* dy_wide[together];
  ShortTerms<A> terms[together];
  for (int b = 0; b < together; ++b) {
    x_wide[b] = AsComputed(x + b * size, size, x_rooms[b]);
    dy_wide[b] = AsComputed(dy + b * size, size, dy_rooms[b]);
    terms[b] = ShortTermsOf<by_row>(task, x_wide[b], dy_wide[b], row + b * lanes, rows);
    if (by_row) {
      terms[b].params.Add(terms[b].dgamma, rows, dgammas);
      terms[b].params.Add(terms[b].dbeta, rows, dbetas);
    }
  }
  const int64_t ahead = std::max(
      together * size, (together == 1 ? 2 : 1) * kAheadBytes / static_cast<int64_t>(sizeof(T)));
  for (int64_t i = 0; i < size; i += lanes) {
    const Index<A> at = tables.Row(i);
    const Vec<A> g = Load(tables.gamma + i);
    Vec<A> dgamma{};
    Vec<A> dbeta{};
#pragma GCC unroll 4
    for (int b = 0; b < together; ++b) {
      if (stream) {
        Prefetch(x + ahead + b * size + i);
        Prefetch(dy + ahead + b * size + i);
      }
      const ShortTerms<A>& t = terms[b];
      const Vec<A> d = Load(dy_wide[b] + i);
      const Vec<A> rstd = Permute<A>(t.rstd, at);
      const Vec<A> e = (Load(x_wide[b] + i) - Permute<A>(t.high, at)) - Permute<A>(t.low, at);
      if (!by_row) {
        dgamma += d * (e * rstd + Permute<A>(t.xhat_offset, at));
        dbeta += d;
      }
      const Vec<A> w = d * (by_row ? Permute<A>(t.gamma, at) : g);
      const Vec<A> out = ((w - Permute<A>(t.w_mean, at)) - e * Permute<A>(t.slope, at)) * rstd;
      if (stream) {
        Stream(out, dx + b * dx_step + i);
      } else {
        Store(out, dx + b * dx_step + i);
      }
    }
    if (!by_row && sums != nullptr) {
      AddTo(dgamma, sums->gamma + i);
      AddTo(dbeta, sums->beta + i);
    }
  }
}

template <bool stream, bool by_row, typename T>
void BackwardShortRowBlocksAs(const RowBackward<T>& task, int64_t begin, int64_t end,
                              double* dgamma, double* dbeta) {
  using A = ComputedIn<T>;
  constexpr int64_t lanes = kLanes<A>;
  const int64_t cols = task.layout.cols;
  const int64_t size = cols * lanes;
  ShortRowTables<A, kShortBackward.most()> tables;
  const A* none = nullptr;
  tables.Fill(cols, by_row ? none : task.gamma, none);
  ShortParamSums<A> all;
  ShortParamSums<A>* sums = by_row || (dgamma == nullptr && dbeta == nullptr) ? nullptr : &all;
  for (int64_t i = 0; sums != nullptr && i < size; ++i) all.gamma[i] = all.beta[i] = 0;
  T unwanted[kShortBackward.most() * lanes];
  const T* x = task.x + (begin - task.first_row) * cols;
  const T* dy = task.dy + (begin - task.first_row) * cols;
  const bool wanted = task.dx_step != 0;
  const int64_t dx_step = wanted ? size : 0;
  T* dx = wanted ? task.dx + (begin - task.first_row) * cols : unwanted;
  int64_t row = begin;
  const bool alone = stream && ByOneBlock<T>(cols);
  for (; !alone && row + kShortTogether * lanes <= end; row += kShortTogether * lanes) {
    BackwardShortBlocks<stream, by_row, kShortTogether>(task, tables, row, lanes, x, dy, dx,
                                                        dx_step, sums, dgamma, dbeta);
    x += kShortTogether * size;
    dy += kShortTogether * size;
    dx += kShortTogether * dx_step;
  }
  T x_rest[kShortBackward.most() * lanes] = {};
  T dy_rest[kShortBackward.most() * lanes] = {};
  alignas(NV_NORMS_VECTOR_BYTES) T dx_rest[kShortBackward.most() * lanes];
  for (; row < end; row += lanes, x += size, dy += size, dx += dx_step) {
    if (row + lanes <= end) {
      BackwardShortBlocks<stream, by_row, 1>(task, tables, row, lanes, x, dy, dx, dx_step, sums,
                                             dgamma, dbeta);
      continue;
    }
    const int64_t bytes = (end - row) * cols * static_cast<int64_t>(sizeof(T));
    std::memcpy(x_rest, x, bytes);
    std::memcpy(dy_rest, dy, bytes);
    BackwardShortBlocks<stream, by_row, 1>(task, tables, row, end - row, x_rest, dy_rest, dx_rest,
                                           0, sums, dgamma, dbeta);
    FinishStreams();
    if (wanted) std::memcpy(dx, dx_rest, bytes);
  }
  for (int64_t i = 0; sums != nullptr && i < size; ++i) {
    if (dgamma != nullptr) dgamma[i % cols] += all.gamma[i];
    if (dbeta != nullptr) dbeta[i % cols] += all.beta[i];
  }
}

template <typename T>
void BackwardShortRowBlocks(const RowBackward<T>& task, int64_t begin, int64_t end, double* dgamma,
                            double* dbeta) {
  const T* dx = task.dx + (begin - task.first_row) * task.dx_step;
  constexpr uintptr_t vector = kLanes<ComputedIn<T>> * sizeof(T);
  const bool stream = task.stream && reinterpret_cast<uintptr_t>(dx) % vector == 0;
  if (ParamByColumn(task.layout)) {
    stream ? BackwardShortRowBlocksAs<true, false>(task, begin, end, dgamma, dbeta)
           : BackwardShortRowBlocksAs<false, false>(task, begin, end, dgamma, dbeta);
  } else {
    stream ? BackwardShortRowBlocksAs<true, true>(task, begin, end, dgamma, dbeta)
           : BackwardShortRowBlocksAs<false, true>(task, begin, end, dgamma, dbeta);
  }
}

}  // namespace
}  // namespace NV_NORMS_TARGET
}  // namespace cpu
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CPU_SHORT_BACKWARD_INL_H_
