// The inner loops, compiled once for each instruction set (targets_*.cc) and reached through a
// table for each element type.
#ifndef NV_NORMS_KERNELS_CPU_KERNELS_H_
#define NV_NORMS_KERNELS_CPU_KERNELS_H_

#include <cstdint>

#include "kernels/cpu/gradient_sums.h"
#include "kernels/cpu/moments.h"
#include "kernels/cpu/types.h"
#include "kernels/geometry.h"
#include "kernels/problem.h"

namespace nv_norms {
namespace cpu {

// Rows of x, from `first_row` on. gamma and beta: null where there are none. stream: y goes past
// the cache.
template <typename T>
struct RowForward {
  using A = ComputedIn<T>;
  RowLayout layout;
  Formula formula = Formula::kCenter;
  double epsilon = 0;
  DType stat = DType::kFloat;
  const A* gamma = nullptr;
  const A* beta = nullptr;
  void* mean = nullptr;
  void* rstd = nullptr;
  int64_t first_row = 0;
  const T* x = nullptr;
  T* y = nullptr;
  bool stream = false;
};

// gamma: never null where a column has a parameter of its own. dx: rows are dx_step apart, 0 if all
// go to the same place because nobody wants them. partial: 2 * Padded(cols) zeros, which
// backward_rows leaves as zeros, where columns have parameters whose gradients are wanted.
template <typename T>
struct RowBackward {
  using A = ComputedIn<T>;
  RowLayout layout;
  Formula formula = Formula::kCenter;
  DType stat = DType::kFloat;
  const A* gamma = nullptr;
  const void* mean = nullptr;
  const void* rstd = nullptr;
  int64_t first_row = 0;
  const T* x = nullptr;
  const T* dy = nullptr;
  T* dx = nullptr;
  int64_t dx_step = 0;
  A* partial = nullptr;
  bool stream = false;
};

// `rows` rows of `width` columns, `step` elements apart. next: how far from x (and dy) the elements
// lie that should come to the core's cache while an output is stored past it. packed: where the
// rows are to be copied one behind the other while they are summed, or null.
template <typename T>
struct ColumnTile {
  const T* x = nullptr;
  T* packed = nullptr;
  int64_t rows = 0;
  int64_t width = 0;
  int64_t step = 0;
  int64_t next = 0;
};

// y = ((x - high) - low) * slope + beta, each of a column; where row_gamma is not null
// y = ((x - high) - low) * slope * row_gamma[row] + row_beta[row].
template <typename A>
struct ColumnScaling {
  const A* high = nullptr;
  const A* low = nullptr;
  const A* slope = nullptr;
  const A* beta = nullptr;
  const A* row_gamma = nullptr;
  const A* row_beta = nullptr;
};

// dx = rstd * (dy * gamma - w_mean - ((x - high) - low) * slope), with row_gamma[row] for gamma
// where that is not null; xhat = ((x - high) - low) * rstd + xhat_offset. row_dgamma[row] +=
// sum(dy * xhat) and row_dbeta[row] += sum(dy) where they are not null.
template <typename A>
struct ColumnGradient {
  const A* high = nullptr;
  const A* low = nullptr;
  const A* rstd = nullptr;
  const A* gamma = nullptr;
  const A* w_mean = nullptr;
  const A* slope = nullptr;
  const A* xhat_offset = nullptr;
  const A* row_gamma = nullptr;
  double* row_dgamma = nullptr;
  double* row_dbeta = nullptr;
};

// A part of a sample whose columns have moments of their own: where these begin, and its rows.
struct ColumnPart {
  int64_t at = 0;
  double rows = 0;
};

// Columns that are a statistic each: of parts, the means and squares about them. What normalizes
// them (ColumnScaling; gamma: 1 where null), and where mean (unless null) and rstd are stored.
template <typename A>
struct ColumnStatistics {
  Formula formula = Formula::kCenter;
  double epsilon = 0;
  double elements = 0;  // of a statistic
  int64_t columns = 0;
  const ColumnPart* parts = nullptr;
  int64_t count = 0;  // of them
  const double* mean = nullptr;
  const double* m2 = nullptr;
  const A* gamma = nullptr;
  A* high = nullptr;
  A* low = nullptr;
  A* slope = nullptr;
  A* stored_mean = nullptr;
  A* stored_rstd = nullptr;
};

// The same for the gradient: of sums of e, dy and dy * e (GradientSums), what dx needs
// (GradientTerms).
template <typename A>
struct ColumnGradientStatistics {
  Formula formula = Formula::kCenter;
  double elements = 0;
  int64_t columns = 0;
  const double* e = nullptr;
  const double* dy = nullptr;
  const double* dy_e = nullptr;
  const A* gamma = nullptr;
  const A* mean = nullptr;
  const A* stored_rstd = nullptr;
  A* high = nullptr;
  A* low = nullptr;
  A* rstd = nullptr;
  A* w_mean = nullptr;
  A* slope = nullptr;
  A* xhat_offset = nullptr;
};

// Room for sums of `width` columns, for the widest vectors.
inline int64_t Padded(int64_t width) { return (width + 15) / 16 * 16; }

template <typename T>
struct Kernels {
  using A = ComputedIn<T>;

  // Of x[0, count).
  Moments (*moments)(Formula formula, const T* x, int64_t count);
  // Columns [begin, end) of a row; x and y point at column `begin`.
  void (*normalize)(const RowForward<T>& task, const Scaling<A>& scaling, int64_t row,
                    int64_t begin, int64_t end, const T* x, T* y);
  // Rows [begin, end), statistics included.
  void (*forward_rows)(const RowForward<T>& task, int64_t begin, int64_t end);

  // Columns [begin, end) of a row; x and dy point at column `begin`.
  GradientSums (*gradient_sums)(const RowBackward<T>& task, int64_t row, int64_t begin, int64_t end,
                                const T* x, const T* dy);
  // dx, and adds to dgamma and dbeta, which may be null, for columns [begin, end) of a row. They
  // point at the first parameter that these columns have.
  void (*backward_run)(const RowBackward<T>& task, const GradientTerms<A>& terms, int64_t row,
                       int64_t begin, int64_t end, const T* x, const T* dy, T* dx, double* dgamma,
                       double* dbeta);
  // Rows [begin, end); dgamma and dbeta point at the first parameter.
  void (*backward_rows)(const RowBackward<T>& task, int64_t begin, int64_t end, double* dgamma,
                        double* dbeta);

  // Of each column. scratch: 3 * Padded(width) numbers. kRms: mean is 0, m2 the sum of squares.
  void (*tile_moments)(Formula formula, const ColumnTile<T>& tile, A* scratch, double* mean,
                       double* m2);
  void (*tile_normalize)(const ColumnTile<T>& tile, const ColumnScaling<A>& scaling, bool stream,
                         T* y, int64_t y_step);
  // Of each column, with e = x - about, w = dy * row_gamma (dy where that is null): sums[0] =
  // sum(e), sums[width] = sum(w), sums[2 * width] = sum(w * e). scratch: 3 * Padded(width) numbers.
  // dy_packed: as tile.packed.
  void (*tile_gradient_sums)(const ColumnTile<T>& tile, const T* dy, int64_t dy_step, T* dy_packed,
                             const A* about, const A* row_gamma, A* scratch, double* sums);
  // dx_step = 0: nobody wants dx.
  void (*tile_input_gradient)(const ColumnTile<T>& tile, const T* dy, int64_t dy_step,
                              const ColumnGradient<A>& gradient, bool stream, T* dx,
                              int64_t dx_step);

  void (*finish_columns)(const ColumnStatistics<A>& task);
  void (*finish_column_gradients)(const ColumnGradientStatistics<A>& task);

  void (*load)(const T* from, int64_t count, A* to);
  void (*store)(const A* from, int64_t count, T* to);
};

struct KernelTables {
  Kernels<Half> half;
  Kernels<Bfloat16> bfloat16;
  Kernels<float> single;
  Kernels<double> wide;
};

// The table of the instruction set in use (targets.h).
template <typename T>
const Kernels<T>& KernelsFor();

}  // namespace cpu
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CPU_KERNELS_H_
