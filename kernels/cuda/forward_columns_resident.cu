// Instance and group norm, channels last, and layer norm over a middle axis: x is read once where a
// strip of a sample fits into the shared memory of a group of blocks. See columns_resident.cuh.
#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/columns_exchange.cuh"
#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/resident.cuh"

namespace nv_norms {
namespace cuda {
namespace {

constexpr int kNumbers = 2;  // that a column's moments take

// Where things are in shared memory, after the tiles.
struct Scratch {
  float2* entries;        // [entries, columns spread]: mean less reference, squares about it
  float* counts;          // [entries]
  double* sums;           // [readers, columns, 2]
  float* references;      // [columns]: what the means of blocks are about
  float* gammas;          // [columns]
  float* betas;           // [columns]
  Scaling<float>* stats;  // [stats]

  __device__ __forceinline__ Scratch(const StripShape& shape, void* at) {
    char* to = static_cast<char*>(at);
    entries = reinterpret_cast<float2*>(to);
    counts = reinterpret_cast<float*>(entries + shape.entries * shape.columns);
    to += (4 * shape.entries * (shape.columns * kNumbers + 1) + 15) / 16 * 16;
    sums = reinterpret_cast<double*>(to);
    to += 8 * shape.readers * shape.columns * kNumbers;
    references = reinterpret_cast<float*>(to);
    gammas = references + shape.columns;
    betas = gammas + shape.columns;
    to += (4 * kColumnNumbers * shape.columns + 15) / 16 * 16;
    stats = reinterpret_cast<Scaling<float>*>(to);
  }
};

// A column's moments: shifted sums of x and x^2 where they are added up, on their way between
// blocks the mean and the sum of squares about it.
struct MomentSums {
  __device__ __forceinline__ static void Encode(const double (&sums)[2], double inverse,
                                                float (&to)[2]) {
    const double mean = sums[0] * inverse;
    to[0] = static_cast<float>(mean);
    to[1] = static_cast<float>(sums[1] - sums[0] * mean);
  }
  __device__ __forceinline__ static void Add(const float (&from)[2], double count,
                                             double (&sums)[2]) {
    const double sum = count * from[0];
    sums[0] += sum;
    sums[1] += from[1] + sum * from[0];
  }
};

// With every column's sums over the group in scratch.sums: of x - reference, and of its square.
__device__ __forceinline__ void StatsOfColumns(const StripShape& shape,
                                               const ForwardProblem& problem,
                                               const ForwardBuffers& buffers,
                                               const Scratch& scratch, int64_t first_stat,
                                               bool store) {
  const double rows = shape.rows;
  const int members = shape.members();
  const double inverse = members == 1 ? shape.inverse_rows : 1.0 / (rows * members);
  const auto put = [&](int g, double mean, double m2) {
    const double rstd = rsqrt((m2 < 0 ? 0.0 : m2) * inverse + problem.epsilon);
    Scaling<float> out = {0, 0, static_cast<float>(rstd)};
    if (problem.formula == Formula::kCenter) {
      out.high = static_cast<float>(mean);
      out.low = static_cast<float>(mean - out.high);
    }
    scratch.stats[g] = out;
    if (!store) return;
    if (buffers.mean != nullptr) {
      static_cast<float*>(buffers.mean)[first_stat + g] = static_cast<float>(mean);
    }
    if (buffers.rstd != nullptr) static_cast<float*>(buffers.rstd)[first_stat + g] = out.rstd;
  };
  if (members == 1) {
#pragma unroll 1
    for (int g = threadIdx.x; g < shape.stats(); g += kResidentThreads) {
      const double mean = scratch.sums[2 * g] * inverse;
      put(g, scratch.references[g] + mean, scratch.sums[2 * g + 1] - scratch.sums[2 * g] * mean);
    }
    return;
  }
  const int lane = threadIdx.x % 32;
#pragma unroll 1
  for (int g = threadIdx.x / 32; g < shape.stats(); g += kResidentThreads / 32) {
    const double reference = scratch.references[g * shape.depth];
    double sums[2] = {0, 0};
#pragma unroll 1
    for (int m = lane; m < members; m += 32) {
      const int column = ColumnOfMember(shape, g, m);
      const double mean = scratch.sums[2 * column] * shape.inverse_rows;
      const double m2 = scratch.sums[2 * column + 1] - scratch.sums[2 * column] * mean;
      const double about = scratch.references[column] - reference + mean;
      sums[0] += rows * about;
      sums[1] += m2 + rows * about * about;
    }
    WarpSum(sums, 32);
    const double mean = sums[0] * inverse;
    if (lane == 0) put(g, reference + mean, sums[1] - sums[0] * mean);
  }
}

#if __CUDA_ARCH__ >= 800

template <typename X, typename Y, bool ACTIVATED>
struct ForwardBody {
  static constexpr int kVec = kVectorBytes / sizeof(X);
  static constexpr int kItems = TileItems(0);

  // What one thread has of a column until all need it.
  struct Column {
    float reference;
    float gamma;
    float beta;
  };

  const StripShape& shape;
  const StripPlace& place;
  const ForwardProblem& problem;
  const ForwardBuffers& buffers;
  Scratch scratch;
  GroupExchange<kNumbers, MomentSums> exchange;
  int64_t out;  // the thread's first element of the unit
  int step;     // elements
  float count;
  Column column;
  float reference[kVec];  // an x of the thread
  float sum[kVec];        // of x - reference
  float squares[kVec];    // of its square
  float high[kVec];
  float scale[kVec];
  float shift[kVec];

  __device__ __forceinline__ ForwardBody(const StripShape& shape, const StripPlace& place,
                                         const ForwardProblem& problem,
                                         const ForwardBuffers& buffers, void* shared,
                                         void* workspace)
      : shape(shape),
        place(place),
        problem(problem),
        buffers(buffers),
        scratch(shape, shared),
        exchange(shape, place, workspace) {
    step = shape.row_step * shape.width * kVec;
  }

  __device__ __forceinline__ static float Get(const uint32_t (&words)[4], int v) {
    return To<float>::Of(Word<X>::Get(words, v));
  }

  // The reference is the median of three of x's rows: near the mean even where one of them is far
  // from it.
  __device__ __forceinline__ Column LoadColumn(int unit, int c) const {
    const StripUnit at(shape, unit);
    Column out = {0, 1, 0};
    if (problem.formula != Formula::kRms) {
      const X* from = static_cast<const X*>(buffers.x) + at.Base(shape) * kVec + c;
      const int64_t row = static_cast<int64_t>(shape.width) * kVec;
      const float first = To<float>::Of(from[0]);
      const float middle = To<float>::Of(from[shape.rows / 2 * row]);
      const float last = To<float>::Of(from[(shape.rows - 1) * row]);
      out.reference = MedianOfThree(first, middle, last);
    }
    if (shape.s_stride == 0) {
      const int64_t param = shape.ParamOf(at.n, ChannelOf(shape, at.strip, c));
      out.gamma = ParamOr<float>(problem.param, buffers.gamma, param, 1);
      out.beta = ParamOr<float>(problem.param, buffers.beta, param, 0);
    }
    return out;
  }

  __device__ __forceinline__ void PutColumns(int unit) const {
    Column put = column;
    __syncthreads();  // the last unit's are read no more
#pragma unroll 1
    for (int c = threadIdx.x; c < shape.columns; c += kResidentThreads) {
      if (c >= kResidentThreads) put = LoadColumn(unit, c);
      scratch.references[c] = put.reference;
      scratch.gammas[c] = put.gamma;
      scratch.betas[c] = put.beta;
    }
    __syncthreads();
  }

  __device__ __forceinline__ void Start() { exchange.Clear(); }
  __device__ __forceinline__ void Ready() {}

  __device__ __forceinline__ void Begin(int unit) {
    if (threadIdx.x < shape.columns) column = LoadColumn(unit, threadIdx.x);
    count = 0;
#pragma unroll
    for (int v = 0; v < kVec; ++v) reference[v] = sum[v] = squares[v] = 0;
    out = (StripUnit(shape, unit).Base(shape) +
           static_cast<int64_t>(place.begin + place.row) * shape.width + place.vector) *
          kVec;
  }

  // Each thread sums about the mean of what it has seen.
  template <bool FULL>
  __device__ __forceinline__ void Sum(const uint4* from, int, int items) {
    uint32_t words[kItems][4];
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
      if (FULL || j < items) Chunk<16>::Split(from[j * kResidentThreads], words[j]);
    }
    if (count == 0 && items > 0 && problem.formula != Formula::kRms) {
#pragma unroll
      for (int v = 0; v < kVec; ++v) reference[v] = Get(words[0], v);
    }
    count += static_cast<float>(items);
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
      if (!FULL && j >= items) break;
#pragma unroll
      for (int v = 0; v < kVec; ++v) {
        const float x = Get(words[j], v) - reference[v];
        sum[v] += x;
        squares[v] += x * x;
      }
    }
    if (problem.formula != Formula::kRms && IsPowerOfTwo(count))
      Center(count, reference, sum, squares);
  }

  // From here on sum and squares are a mean, about the common reference, and squares about it.
  __device__ __forceinline__ void PutEntries() {
    float common[kVec];
    LoadColumns(scratch.references + place.vector * kVec, common);
    const bool about_mean = count > 0 && problem.formula != Formula::kRms;
    const float inverse = about_mean ? 1.0f / count : 0.0f;
#pragma unroll
    for (int v = 0; v < kVec; ++v) {
      if (!about_mean) sum[v] = 0;  // it may be infinite
      const float mean = sum[v] * inverse;
      squares[v] -= sum[v] * mean;
      sum[v] = about_mean ? (reference[v] - common[v]) + mean : 0.0f;
    }
    if (shape.merge_lanes) MergeLanes(shape.vectors, count, sum, squares);
    const int entry = shape.merge_lanes ? threadIdx.x / 32 : place.row;
    if (shape.merge_lanes ? threadIdx.x % 32 < shape.vectors : place.active) {
      float2* to = scratch.entries + entry * shape.columns + place.vector;
#pragma unroll
      for (int v = 0; v < kVec; ++v) to[v * shape.vectors] = make_float2(sum[v], squares[v]);
      if (place.vector == 0) scratch.counts[entry] = count;
    }
    __syncthreads();
  }

  __device__ __forceinline__ void Send(int unit) {
    PutColumns(unit);
    PutEntries();
    ColumnSums<kNumbers>(shape, shape.entries, scratch.sums,
                         [&](int reader, int count, int column, double (&sums)[kNumbers]) {
                           const float2* const from =
                               scratch.entries + SpreadColumn<kVec>(shape, column);
#pragma unroll 4
                           for (int row = reader; row < count; row += shape.readers) {
                             const float2 at = from[row * shape.columns];
                             const float numbers[kNumbers] = {at.x, at.y};
                             MomentSums::Add(numbers, scratch.counts[row], sums);
                           }
                         });
    if (shape.blocks > 1) exchange.Send(scratch.sums);
  }

  __device__ __forceinline__ void Receive(int unit) {
    if (shape.blocks > 1) exchange.Receive(scratch.sums);
    __syncthreads();
    const StripUnit at(shape, unit);
    const int64_t first_stat =
        at.n * shape.norm_groups + static_cast<int64_t>(at.strip) * shape.stats();
    StatsOfColumns(shape, problem, buffers, scratch, first_stat, place.rank == 0);
    __syncthreads();
    TakeScaling();
  }

  __device__ __forceinline__ void TakeScaling() {
    if (!place.active) return;
    const int column = place.vector * kVec;
    LoadColumns(scratch.gammas + column, scale);
    LoadColumns(scratch.betas + column, shift);
    StatsOfNeighbours of(shape, column);
#pragma unroll
    for (int v = 0; v < kVec; ++v) {
      const Scaling<float> stat = scratch.stats[of.stat];
      of.Advance(shape);
      high[v] = stat.high;
      scale[v] *= stat.rstd;
      shift[v] -= stat.low * scale[v];
    }
  }

  template <bool FULL>
  __device__ __forceinline__ void Apply(const uint4* from, int tile, int items) {
    int64_t to = out + int64_t{kItems} * tile * step;
    uint32_t words[kItems][4];
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
      if (FULL || j < items) Chunk<16>::Split(from[j * kResidentThreads], words[j]);
    }
    float gamma[kItems];
    float beta[kItems];
    if (shape.s_stride != 0) {
      LoadRows<kItems>(shape, place, problem.param, buffers.gamma, tile, items, 1, gamma);
      LoadRows<kItems>(shape, place, problem.param, buffers.beta, tile, items, 0, beta);
    }
    const Activator<float> activator(problem.activation);
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
      if (!FULL && j >= items) break;
      float y[kVec];
#pragma unroll
      for (int v = 0; v < kVec; ++v) y[v] = (Get(words[j], v) - high[v]) * scale[v] + shift[v];
      if (shape.s_stride != 0) {
#pragma unroll
        for (int v = 0; v < kVec; ++v) y[v] = y[v] * gamma[j] + beta[j];
      }
      if constexpr (ACTIVATED) {
        activator.Apply(y);
      }
      StoreStrip<Y>(problem.y, buffers.y, to, y, shape.small_output);
      to += step;
    }
  }
};

#endif  // __CUDA_ARCH__ >= 800

template <typename X, typename Y, bool STREAMING, bool ACTIVATED>
__global__ void __launch_bounds__(kResidentThreads, kResidentBlocks)
    ForwardResidentKernel(const __grid_constant__ StripShape shape,
                          const __grid_constant__ ForwardProblem problem,
                          const ForwardBuffers buffers, void* workspace) {
#if __CUDA_ARCH__ >= 800
  extern __shared__ uint4 tiles[];
  const StripPlace place(shape);
  uint4* scratch = tiles + shape.slots * (TileBytes(0) / kVectorBytes);
  using Body = ForwardBody<X, Y, ACTIVATED>;
  Body body(shape, place, problem, buffers, scratch, workspace);
  const StripTiles<0> strip(shape, place, tiles, buffers.x, nullptr);
  Walk<StripTiles<0>, Body> walk(strip, body);
  walk.template Run<STREAMING, false>();
#endif
}

using ForwardKernel = void (*)(StripShape, ForwardProblem, ForwardBuffers, void*);

ForwardKernel KernelFor(const ForwardProblem& problem, bool streaming) {
  const bool activated = ActivatedOnChip(problem);
  return ForwardKernelOf(problem.x, problem.y, [&](auto* x, auto* y) -> ForwardKernel {
    using X = std::remove_pointer_t<decltype(x)>;
    using Y = std::remove_pointer_t<decltype(y)>;
    if constexpr (!std::is_void_v<Y>) {
      if (activated && streaming) return ForwardResidentKernel<X, Y, true, true>;
      if (activated) return ForwardResidentKernel<X, Y, false, true>;
    }
    if (streaming) return ForwardResidentKernel<X, Y, true, false>;
    return ForwardResidentKernel<X, Y, false, false>;
  });
}

}  // namespace

void PlanForwardColumnsResident(ForwardPlan* plan) {
  const ForwardProblem& problem = plan->problem;
  if (problem.in_double()) return;
  const ColumnLayout& layout = problem.geometry.columns;
  const int size = static_cast<int>(SizeOf(problem.x));
  const auto kernel = [&](bool streaming) {
    return reinterpret_cast<const void*>(KernelFor(problem, streaming));
  };
  if (!CutStrips(layout, plan->device, size, 0, kNumbers, sizeof(Scaling<float>), false, kernel,
                 &plan->strips)) {
    return;
  }
  const StripShape shape = ShapeOf(layout, size, plan->strips);
  plan->workspace = std::max(plan->workspace, ExchangeBytes<kNumbers>(shape));
}

Status LaunchForwardColumnsResident(const ForwardPlan& plan, const ForwardBuffers& buffers,
                                    void* workspace, void* stream, bool* launched) {
  const ForwardProblem& problem = plan.problem;
  *launched = plan.strips.fold > 0 && AlignedTo(buffers.x, kVectorBytes) &&
              AlignedTo(buffers.y, kVectorBytes);
  if (!*launched) return Status();
  const int size = static_cast<int>(SizeOf(problem.x));
  const StripShape shape = ShapeOf(problem.geometry.columns, size, plan.strips);
  return LaunchResident("normalization of resident columns", KernelFor(problem, shape.streaming),
                        shape.blocks * shape.groups, shape.blocks > 1, plan.strips.shared, stream,
                        launched, shape, problem, buffers, workspace);
}

}  // namespace cuda
}  // namespace nv_norms
