// What the kernels of backward_columns_resident.cu and of backward_columns_rows.cu do: x and dy are
// read once where a strip of both fits into the shared memory of a group of blocks. See
// columns_resident.cuh.
#ifndef NV_NORMS_KERNELS_CUDA_BACKWARD_COLUMNS_RESIDENT_CUH_
#define NV_NORMS_KERNELS_CUDA_BACKWARD_COLUMNS_RESIDENT_CUH_

#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/columns_gradient_terms.cuh"
#include "kernels/cuda/columns_row_sums.cuh"

namespace nv_norms {
namespace cuda {

// Where a block's part of the gradient of the parameters goes, for another kernel to add up.
struct GradientOutputs {
  bool whole;              // nowhere: it is the whole gradient already
  ChannelSums* sums;       // [n, channels]
  XhatLine<float>* lines;  // [statistics]
  float* dgamma;           // [groups of blocks, rows], where parameters belong to rows
  float* dbeta;
};

#if __CUDA_ARCH__ >= 800

// ROWS: parameters belong to rows, and their gradients are wanted. ACTIVATED: a leaky relu is
// behind the norm. Its derivative is asked for where sums are taken, before the low part of the
// mean is known, and again for dx: both times of t = e * rstd * gamma + beta.
template <typename X, typename D, typename Y, bool ROWS, bool ACTIVATED>
struct BackwardBody {
  static constexpr int kVec = kVectorBytes / sizeof(X);
  static constexpr int kBeside = kVec * sizeof(D);
  static constexpr int kItems = TileItems(kBeside);

  // What one thread has of a column until all need it.
  struct Column {
    float gamma;
    float next_mean;
    float rstd;  // of statistic c
    float2 next_line;
  };

  const StripShape& shape;
  const StripPlace& place;
  const BackwardProblem& problem;
  const BackwardBuffers& buffers;
  GradientOutputs outputs;
  GradientScratch scratch;
  RowSums row_sums;  // where ROWS
  GroupExchange<kGradientNumbers, PlainSums> exchange;
  int64_t out;   // the thread's first element of the unit
  int step;      // elements
  int half = 0;  // of the means
  Column column;
  float first_mean;  // of column threadIdx.x, in the first unit
  float2 first_line;
  float high[kVec];  // the stored mean
  float e_sum[kVec];
  float dy_sum[kVec];
  float dy_e_sum[kVec];
  // dx = dy * scale - (x - high) * slope + shift
  float scale[kVec];
  float slope[kVec];
  float shift[kVec];
  float offset[ROWS ? kVec : 1];  // xhat = (x - high) * scale + offset, where ROWS
  float beta[ACTIVATED ? kVec : 1];

  __device__ __forceinline__ BackwardBody(const StripShape& shape, const StripPlace& place,
                                          const BackwardProblem& problem,
                                          const BackwardBuffers& buffers,
                                          const GradientOutputs& outputs, void* shared,
                                          void* workspace)
      : shape(shape),
        place(place),
        problem(problem),
        buffers(buffers),
        outputs(outputs),
        scratch(shape, static_cast<char*>(shared) + RowSumBytes(shape.row_items)),
        row_sums{static_cast<float2*>(shared)},
        exchange(shape, place, workspace) {
    step = shape.row_step * shape.width * kVec;
  }

  __device__ __forceinline__ int64_t FirstStat(const StripUnit& at) const {
    return at.n * shape.norm_groups + static_cast<int64_t>(at.strip) * shape.stats();
  }

  __device__ __forceinline__ float LoadMean(int unit, int c) const {
    if (buffers.mean == nullptr || unit >= shape.units) return 0;
    return static_cast<const float*>(
        buffers.mean)[FirstStat(StripUnit(shape, unit)) + StatOf(shape, c)];
  }

  // rstd * gamma and beta.
  __device__ __forceinline__ float2 LoadLine(int unit, int c) const {
    if (unit >= shape.units) return make_float2(0, 0);
    const StripUnit at(shape, unit);
    const int64_t param = shape.ParamOf(at.n, ChannelOf(shape, at.strip, c));
    const float rstd = static_cast<const float*>(buffers.rstd)[FirstStat(at) + StatOf(shape, c)];
    return make_float2(rstd * ParamOr<float>(problem.param, buffers.gamma, param, 1),
                       ParamOr<float>(problem.param, buffers.beta, param, 0));
  }

  __device__ __forceinline__ Column LoadColumn(int unit, int c) const {
    const StripUnit at(shape, unit);
    Column out = {1, LoadMean(unit + shape.groups, c), 0};
    if (shape.s_stride == 0) {
      const int64_t param = shape.ParamOf(at.n, ChannelOf(shape, at.strip, c));
      out.gamma = ParamOr<float>(problem.param, buffers.gamma, param, 1);
    }
    if (c < shape.stats()) {
      out.rstd = static_cast<const float*>(buffers.rstd)[FirstStat(at) + c];
    }
    if constexpr (ACTIVATED) out.next_line = LoadLine(unit + shape.groups, c);
    return out;
  }

  __device__ __forceinline__ float* Means(int half) const {
    return scratch.means + half * shape.columns;
  }

  __device__ __forceinline__ void PutLine(int c, float2 line) const {
    float* const lines = scratch.Lines(shape);
    lines[c] = line.x;
    lines[shape.columns + c] = line.y;
  }

  __device__ __forceinline__ void PutColumns(int unit) const {
    Column put = column;
    __syncthreads();  // the last unit's are read no more
#pragma unroll 1
    for (int c = threadIdx.x; c < shape.columns; c += kResidentThreads) {
      if (c >= kResidentThreads) put = LoadColumn(unit, c);
      scratch.gammas[c] = put.gamma;
      Means(half ^ 1)[c] = put.next_mean;
      if constexpr (ACTIVATED) PutLine(c, put.next_line);
      if (c < shape.stats()) scratch.rstds[c] = put.rstd;
    }
  }

  __device__ __forceinline__ void Start() {
    first_mean = threadIdx.x < shape.columns ? LoadMean(place.group, threadIdx.x) : 0.0f;
    if constexpr (ACTIVATED) {
      if (threadIdx.x < shape.columns) first_line = LoadLine(place.group, threadIdx.x);
    }
    if constexpr (ROWS) row_sums.Clear(shape);
    exchange.Clear();
  }

  __device__ __forceinline__ void Ready() {
#pragma unroll 1
    for (int c = threadIdx.x; c < shape.columns; c += kResidentThreads) {
      Means(0)[c] = c < kResidentThreads ? first_mean : LoadMean(place.group, c);
      if constexpr (ACTIVATED) {
        PutLine(c, c < kResidentThreads ? first_line : LoadLine(place.group, c));
      }
    }
    __syncthreads();
  }

  __device__ __forceinline__ void Begin(int unit) {
    if (threadIdx.x < shape.columns) column = LoadColumn(unit, threadIdx.x);
#pragma unroll
    for (int v = 0; v < kVec; ++v) {
      e_sum[v] = dy_sum[v] = dy_e_sum[v] = 0;
      high[v] = place.active ? Means(half)[place.vector * kVec + v] : 0.0f;
      if constexpr (ACTIVATED) {
        const float* const lines = scratch.Lines(shape) + place.vector * kVec + v;
        scale[v] = place.active ? lines[0] : 0.0f;
        beta[v] = place.active ? lines[shape.columns] : 0.0f;
      }
    }
    out = (StripUnit(shape, unit).Base(shape) +
           static_cast<int64_t>(place.begin + place.row) * shape.width + place.vector) *
          kVec;
  }

  // gamma of a tile's rows, where it belongs to rows.
  __device__ __forceinline__ void LoadGammas(int tile, int items, float (&to)[kItems]) const {
    if (shape.s_stride == 0) return;
    LoadRows<kItems>(shape, place, problem.param, buffers.gamma, tile, items, 1, to);
  }

  // Item j of a tile: x - mean, and dy, or where ACTIVATED the gradient of t.
  __device__ __forceinline__ void Take(const uint4* from, int j, float (&e)[kVec],
                                       float (&w)[kVec]) const {
    using Layout = SlotLayout<kBeside>;
    using C = Chunk<kBeside>;
    uint32_t x[4];
    uint32_t dy[4];
    Chunk<16>::Split(*Layout::X(from, j), x);
    C::Split(*reinterpret_cast<const typename C::Type*>(Layout::Beside(from, j)), dy);
#pragma unroll
    for (int v = 0; v < kVec; ++v) {
      e[v] = To<float>::Of(Word<X>::Get(x, v)) - high[v];
      w[v] = To<float>::Of(Word<D>::Get(dy, v));
    }
    if constexpr (ACTIVATED) {
      float t[kVec];
#pragma unroll
      for (int v = 0; v < kVec; ++v) t[v] = fmaf(e[v], scale[v], beta[v]);
      Activator<float>(problem.activation).Derive(t, w);
    }
  }

  // dy * gamma, where gamma belongs to rows.
  __device__ __forceinline__ void Weigh(const float (&gammas)[kItems], int j,
                                        float (&w)[kVec]) const {
    if (shape.s_stride == 0) return;
#pragma unroll
    for (int v = 0; v < kVec; ++v) w[v] *= gammas[j];
  }

  template <bool FULL>
  __device__ __forceinline__ void Sum(const uint4* from, int tile, int items) {
    float gammas[kItems];
    LoadGammas(tile, items, gammas);
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
      if (!FULL && j >= items) break;
      float e[kVec];
      float w[kVec];
      Take(from, j, e, w);
      Weigh(gammas, j, w);
#pragma unroll
      for (int v = 0; v < kVec; ++v) {
        e_sum[v] += e[v];
        dy_sum[v] += w[v];
        dy_e_sum[v] += w[v] * e[v];
      }
    }
  }

  __device__ __forceinline__ void PutEntries() {
    if (shape.merge_lanes) {
#pragma unroll 1
      for (int lanes = shape.vectors; lanes < 32; lanes *= 2) {
#pragma unroll
        for (int v = 0; v < kVec; ++v) {
          e_sum[v] += __shfl_xor_sync(0xffffffffu, e_sum[v], lanes);
          dy_sum[v] += __shfl_xor_sync(0xffffffffu, dy_sum[v], lanes);
          dy_e_sum[v] += __shfl_xor_sync(0xffffffffu, dy_e_sum[v], lanes);
        }
      }
    }
    const int entry = shape.merge_lanes ? threadIdx.x / 32 : place.row;
    if (shape.merge_lanes ? threadIdx.x % 32 < shape.vectors : place.active) {
      float* to = scratch.entries + entry * kGradientNumbers * shape.columns + place.vector;
#pragma unroll
      for (int v = 0; v < kVec; ++v) {
        to[v * shape.vectors] = e_sum[v];
        to[v * shape.vectors + shape.columns] = dy_sum[v];
        to[v * shape.vectors + 2 * shape.columns] = dy_e_sum[v];
      }
    }
    __syncthreads();
  }

  __device__ __forceinline__ void Send(int unit) {
    PutColumns(unit);
    PutEntries();
    ColumnSums<kGradientNumbers>(
        shape, shape.entries, scratch.sums,
        [&](int reader, int count, int column, double (&sums)[kGradientNumbers]) {
          const float* const from = scratch.entries + SpreadColumn<kVec>(shape, column);
#pragma unroll 4
          for (int row = reader; row < count; row += shape.readers) {
            const float* at = from + row * kGradientNumbers * shape.columns;
#pragma unroll
            for (int k = 0; k < kGradientNumbers; ++k) sums[k] += at[k * shape.columns];
          }
        });
    if (shape.blocks > 1) exchange.Send(scratch.sums);
  }

  __device__ __forceinline__ void Receive(int unit) {
    if (shape.blocks > 1) exchange.Receive(scratch.sums);
    __syncthreads();
    const StripUnit at(shape, unit);
    TermsOfColumns(shape, problem.formula, scratch, Means(half), FirstStat(at),
                   place.rank == 0 ? outputs.lines : nullptr);
    if (place.rank == 0 && outputs.sums != nullptr) StoreSums(at);
    __syncthreads();
    if (place.rank == 0 && outputs.whole) StoreParams(at);
    TakeTerms();
    half ^= 1;
  }

  // Calls use(c, sums) for every channel c of the strip with its sums: over its columns, where
  // several rows are taken as one.
  template <typename F>
  __device__ __forceinline__ void ForChannels(const F& use) const {
#pragma unroll 1
    for (int c = threadIdx.x; c < shape.columns / shape.fold; c += kResidentThreads) {
      ChannelSums sums = {0, 0, 0};
#pragma unroll 1
      for (int column = c; column < shape.columns; column += shape.columns / shape.fold) {
        sums.e += scratch.sums[kGradientNumbers * column];
        sums.dy += scratch.sums[kGradientNumbers * column + 1];
        sums.dy_e += scratch.sums[kGradientNumbers * column + 2];
      }
      use(c, sums);
    }
  }

  __device__ __forceinline__ void StoreSums(const StripUnit& at) const {
    ChannelSums* to = outputs.sums + at.n * shape.channels;
    ForChannels([&](int c, const ChannelSums& sums) { to[ChannelOf(shape, at.strip, c)] = sums; });
  }

  __device__ __forceinline__ void StoreParams(const StripUnit& at) const {
    ForChannels([&](int c, const ChannelSums& sums) {
      const XhatLine<float> line = XhatLineOf(scratch.stats[c / shape.depth]);
      const double dgamma = line.rstd * sums.dy_e + line.offset * sums.dy;
      const int64_t param = shape.ParamOf(at.n, ChannelOf(shape, at.strip, c));
      if (buffers.dgamma != nullptr) {
        StoreOne<double>(problem.dparam, buffers.dgamma, param, dgamma);
      }
      if (buffers.dbeta != nullptr) {
        StoreOne<double>(problem.dparam, buffers.dbeta, param, sums.dy);
      }
    });
  }

  __device__ __forceinline__ void TakeTerms() {
    if (!place.active) return;
    const int column = place.vector * kVec;
    if constexpr (!ACTIVATED) LoadColumns(scratch.gammas + column, scale);
    StatsOfNeighbours of(shape, column);
#pragma unroll
    for (int v = 0; v < kVec; ++v) {
      const GradientTerms<float> terms = scratch.stats[of.stat];
      of.Advance(shape);
      if constexpr (!ACTIVATED) scale[v] *= terms.rstd;
      slope[v] = terms.rstd * terms.slope;
      shift[v] = terms.low * slope[v] - terms.rstd * terms.w_mean;
      if constexpr (ROWS) {
        offset[v] = ((terms.high - terms.xhat_high) - terms.xhat_low) * terms.rstd;
      }
    }
  }

  template <bool FULL>
  __device__ __forceinline__ void Apply(const uint4* from, int tile, int items) {
    int64_t to = out + int64_t{kItems} * tile * step;
    float gammas[kItems];
    LoadGammas(tile, items, gammas);
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
      if (!FULL && j >= items) break;
      float e[kVec];
      float dx[kVec];
      Take(from, j, e, dx);
      if constexpr (ROWS) row_sums.Add(tile * kItems + j, e, dx, scale, offset);
      Weigh(gammas, j, dx);
#pragma unroll
      for (int v = 0; v < kVec; ++v) dx[v] = dx[v] * scale[v] - (e[v] * slope[v] - shift[v]);
      StoreStrip<Y>(problem.dx, buffers.dx, to, dx, shape.small_output);
      to += step;
    }
  }
};

#endif  // __CUDA_ARCH__ >= 800

template <typename X, typename D, typename Y, bool STREAMING, bool ROWS, bool ACTIVATED>
__global__ void __launch_bounds__(kResidentThreads, kResidentBlocks)
    BackwardResidentKernel(const __grid_constant__ StripShape shape,
                           const __grid_constant__ BackwardProblem problem,
                           const BackwardBuffers buffers, const GradientOutputs outputs,
                           void* workspace) {
#if __CUDA_ARCH__ >= 800
  extern __shared__ uint4 tiles[];
  const StripPlace place(shape);
  using Body = BackwardBody<X, D, Y, ROWS, ACTIVATED>;
  using Tiles = StripTiles<Body::kBeside>;
  uint4* scratch = tiles + shape.slots * (TileBytes(Body::kBeside) / kVectorBytes);
  Body body(shape, place, problem, buffers, outputs, scratch, workspace);
  const Tiles strip(shape, place, tiles, buffers.x, buffers.dy);
  Walk<Tiles, Body> walk(strip, body);
  walk.template Run<STREAMING, false>();
  if constexpr (ROWS) body.row_sums.Store(shape, place, outputs.dgamma, outputs.dbeta);
#endif
}

using BackwardKernel = void (*)(StripShape, BackwardProblem, BackwardBuffers, GradientOutputs,
                                void*);

// The kernels with ROWS and with ACTIVATED, of a dx in x's type.
BackwardKernel RowSumsKernelFor(const BackwardProblem& problem, bool streaming);
BackwardKernel ActivatedKernelFor(const BackwardProblem& problem, bool streaming);

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_BACKWARD_COLUMNS_RESIDENT_CUH_
