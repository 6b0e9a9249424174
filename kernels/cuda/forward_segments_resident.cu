// Instance and group norm of NC...: x is read once where a row fits into the shared memory of the
// blocks of a team. See segments.cuh. Statistics need no segments: a row is cut as one, and which
// parameters a vector has is found out when the output is written.
#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/resident.cuh"
#include "kernels/cuda/segments.cuh"

namespace nv_norms {
namespace cuda {
namespace {

#if __CUDA_ARCH__ >= 800

template <typename X, typename Y, bool WARPS, bool ACTIVATED>
struct ForwardBody {
  static constexpr int kVec = kVectorBytes / sizeof(X);
  using Tiles = SegmentTiles<0, WARPS>;

  struct Storage {
    TeamStorage<1, double> means;
    TeamStorage<1, double> team_means;
    TeamStorage<1, float> squares;
    TeamStorage<1, float> team_squares;
  };

  // What a lane has of a row: the parameters of one of the segments that the block has part of.
  struct Params {
    float gamma;
    float beta;
  };
  // What is known of a row whose sums were taken. There may be two: of the row that waits for its
  // output, and of the next.
  struct Sent {
    int row = -1;
    Params params;
    double mean;  // of the block's part
    float m2;     // about it
  };

  const Tiles& tiles;
  const SegmentRuns& runs;
  const ForwardProblem& problem;
  const ForwardBuffers& buffers;
  Post* mail;
  EmptyMail empty;
  Storage* storage;
  int first;  // segment of the block
  int own;    // segments that it has part of
  int parity = 0;
  int team_parity = 0;
  int row;  // whose output is written
  Params params;
  Params next;   // of the row whose sums are taken
  Params later;  // of the one after it
  Sent older;
  Sent newer;
  float count;
  float reference;   // an x of the thread
  float sum[2];      // of x - reference
  float squares[2];  // of its square
  float high;
  float low;
  float rstd;

  __device__ __forceinline__ ForwardBody(const Tiles& tiles, const SegmentRuns& runs,
                                         const ForwardProblem& problem,
                                         const ForwardBuffers& buffers, Post* mail,
                                         Storage* storage)
      : tiles(tiles), runs(runs), problem(problem), buffers(buffers), mail(mail), storage(storage) {
    first = runs.layout.segments == 1 ? 0 : runs.SegmentAt(First());
    own = runs.layout.segments == 1 ? 1 : runs.SegmentAt(First() + tiles.length - 1) - first + 1;
  }

  // The block's first vector of a row.
  __device__ __forceinline__ int First() const {
    return static_cast<int>(tiles.begin) - static_cast<int>(threadIdx.x) % Tiles::kLanes;
  }

  __device__ __forceinline__ Params Load(int at, int segment) const {
    const int64_t param = runs.ParamOf(at, segment);
    return {ParamOr<float>(problem.param, buffers.gamma, param, 1),
            ParamOr<float>(problem.param, buffers.beta, param, 0)};
  }

  __device__ __forceinline__ void Prefetch(int at) {
    if (own > 32 || at >= tiles.units()) return;
    later = Load(at, first + min(static_cast<int>(threadIdx.x) % 32, own - 1));
  }

  // The parameters of one of the block's segments, any to a lane. All lanes of a warp ask together.
  __device__ __forceinline__ Params ParamsOf(int segment) const {
    if (own == 1) return params;
    if (own > 32) return Load(row, segment);
    return {__shfl_sync(0xffffffffu, params.gamma, segment - first),
            __shfl_sync(0xffffffffu, params.beta, segment - first)};
  }

  __device__ __forceinline__ void Start() {
    if (!WARPS && tiles.shape.blocks > 1) empty.Begin(mail, tiles.shape.posts());
  }
  __device__ __forceinline__ void Ready() { Prefetch(tiles.team); }

  __device__ __forceinline__ void Begin(int unit) {
    next = later;
    Prefetch(unit + tiles.shape.teams);
    count = reference = 0;
    sum[0] = sum[1] = squares[0] = squares[1] = 0;
  }

  static __device__ __forceinline__ float FirstOf(const uint4* from, int j) {
    float x[kVec];
    Unpack<X>(Tiles::X(from, j), x);
    return x[0];
  }

  // Each thread sums about the median of its own first three elements, as in
  // forward_columns_resident.cu, or of its first three vectors': neighbours may be far together.
  template <bool FULL>
  __device__ __forceinline__ void Sum(const uint4* from, int, int items) {
#pragma unroll
    for (int j = 0; j < Tiles::kItems; ++j) {
      if (!FULL && j >= items) break;
      float x[kVec];
      Unpack<X>(Tiles::X(from, j), x);
      if (j == 0 && count == 0 && problem.formula != Formula::kRms) {
        reference = FULL || items >= 3 ? MedianOfThree(x[0], FirstOf(from, 1), FirstOf(from, 2))
                                       : MedianOfThree(x[0], x[1], x[2]);
      }
#pragma unroll
      for (int v = 0; v < kVec; ++v) {
        const float e = x[v] - reference;
        sum[v % 2] += e;
        squares[v % 2] += e * e;
      }
    }
    count += static_cast<float>(items * kVec);
  }

  __device__ __forceinline__ void Send(int unit) {
    const bool rms = problem.formula == Formula::kRms;
    older = newer;
    newer.row = unit;
    newer.params = next;
    const float all = sum[0] + sum[1];
    double total[1] = {static_cast<double>(reference) * count + all};
    TeamSum<WARPS>(total, &storage->means, parity);
    newer.mean = rms ? 0.0 : total[0] / (static_cast<double>(tiles.length) * kVec);
    float about[1] = {squares[0] + squares[1]};
    if (!rms && count > 0) {
      const float own = all / count;
      const float step = static_cast<float>(reference - newer.mean) + own;
      about[0] += count * step * step - all * own;
    }
    TeamSum<WARPS>(about, &storage->squares, parity);
    newer.m2 = about[0];
    parity ^= 1;
    if (WARPS || tiles.shape.blocks == 1) return;
    empty.End();
    if (threadIdx.x == 0) {
      const float above = static_cast<float>(newer.mean);
      const float post[kPostNumbers] = {above, static_cast<float>(newer.mean - above), newer.m2};
      PostToGrid(mail + static_cast<int64_t>(unit) * tiles.shape.blocks + tiles.rank, post);
    }
  }

  // The mean and the sum of squares about it, of what a team has of a row: from those of blocks.
  __device__ __forceinline__ void Collect(double& mean, float& m2) {
    const SegmentShape& shape = tiles.shape;
    const Post* posts = mail + static_cast<int64_t>(row) * shape.blocks;
    const bool few = shape.blocks <= 32;  // every warp adds them up
    const int first = few ? threadIdx.x % 32 : threadIdx.x;
    double means[2] = {0, 0};
    float squares_of[2] = {0, 0};
    double counts[2] = {0, 0};
    double total[1] = {0};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int block = first + i * kResidentThreads;
      if (block >= shape.blocks) break;
      float post[kPostNumbers];
      while (!ReadPost(posts + block, post)) {
      }
      means[i] = static_cast<double>(post[0]) + post[1];
      squares_of[i] = post[2];
      counts[i] = static_cast<double>(shape.LengthOf(block)) * kVec;
      total[0] += counts[i] * means[i];
    }
    if (few) {
      WarpSum(total, 32);
    } else {
      TeamSum<false>(total, &storage->team_means, team_parity);
    }
    mean = problem.formula == Formula::kRms
               ? 0.0
               : total[0] / static_cast<double>(problem.geometry.reduced);
    float about[1] = {0};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float step = static_cast<float>(means[i] - mean);
      if (counts[i] > 0) about[0] += squares_of[i] + static_cast<float>(counts[i]) * step * step;
    }
    if (few) {
      WarpSum(about, 32);
    } else {
      TeamSum<false>(about, &storage->team_squares, team_parity);
      team_parity ^= 1;
    }
    m2 = about[0];
  }

  __device__ __forceinline__ void Receive(int unit) {
    const bool last = newer.row == unit;  // by value: a reference would put all in local memory
    row = unit;
    params.gamma = last ? newer.params.gamma : older.params.gamma;
    params.beta = last ? newer.params.beta : older.params.beta;
    double mean = last ? newer.mean : older.mean;
    float m2 = last ? newer.m2 : older.m2;
    if (!WARPS && tiles.shape.blocks > 1) Collect(mean, m2);
    m2 = m2 < 0 ? 0.0f : m2;  // keeps NaN
    rstd = static_cast<float>(
        rsqrt(m2 / static_cast<double>(problem.geometry.reduced) + problem.epsilon));
    if (tiles.rank == 0 && tiles.first_thread()) {
      if (buffers.mean != nullptr) static_cast<float*>(buffers.mean)[row] = mean;
      if (buffers.rstd != nullptr) static_cast<float*>(buffers.rstd)[row] = rstd;
    }
    if (problem.formula != Formula::kCenter) mean = 0;
    high = static_cast<float>(mean);
    low = static_cast<float>(mean - high);
  }

  __device__ __forceinline__ void Store(const uint4* from, int j, int64_t to,
                                        const Params& of) const {
    const float scale = rstd * of.gamma;
    const float shift = of.beta - low * scale;
    float x[kVec];
    Unpack<X>(Tiles::X(from, j), x);
#pragma unroll
    for (int v = 0; v < kVec; ++v) x[v] = (x[v] - high) * scale + shift;
    if constexpr (ACTIVATED) {
      const Activator<float> activator(problem.activation);
      activator.Apply(x);
    }
    StoreStrip<Y>(problem.y, buffers.y, to + j * Tiles::kLanes * kVec, x, tiles.shape.small_output);
  }

  template <bool FULL>
  __device__ __forceinline__ void Apply(const uint4* from, int tile, int items) {
    const int offset = tiles.OffsetOf(tile);
    const int64_t to = (tiles.Base(row) + tiles.begin + offset) * kVec;
    Params of = params;
    if (own > 1) {
      const int last = First() + tiles.length - 1;
      const int segment = runs.SegmentAt(First() + offset);
      if (segment != runs.SegmentAt(min(First() + offset + Tiles::kTileVectors - 1, last))) {
#pragma unroll 1
        for (int j = 0; j < Tiles::kItems; ++j) {
          const int at = static_cast<int>(tiles.begin) + offset + j * Tiles::kLanes;
          of = ParamsOf(runs.SegmentAt(min(at, last)));
          if (j < items) Store(from, j, to, of);
        }
        return;
      }
      of = ParamsOf(segment);
    }
#pragma unroll
    for (int j = 0; j < Tiles::kItems; ++j) {
      if (!FULL && j >= items) break;
      Store(from, j, to, of);
    }
  }
};

#endif  // __CUDA_ARCH__ >= 800

template <typename X, typename Y, bool WARPS, bool STREAMING, bool ACTIVATED>
__global__ void __launch_bounds__(kResidentThreads, kResidentBlocks)
    ForwardSegmentsKernel(const __grid_constant__ SegmentShape shape,
                          const __grid_constant__ SegmentRuns runs,
                          const __grid_constant__ ForwardProblem problem,
                          const ForwardBuffers buffers, Post* mail) {
#if __CUDA_ARCH__ >= 800
  extern __shared__ uint4 slots[];
  using Body = ForwardBody<X, Y, WARPS, ACTIVATED>;
  __shared__ typename Body::Storage storage;
  const typename Body::Tiles tiles(shape, slots, buffers.x, nullptr);
  Body body(tiles, runs, problem, buffers, mail, &storage);
  Walk<typename Body::Tiles, Body> walk(tiles, body);
  walk.template Run<STREAMING, true>();
#endif
}

using ForwardKernel = void (*)(SegmentShape, SegmentRuns, ForwardProblem, ForwardBuffers, Post*);

template <typename X, typename Y, bool ACTIVATED>
ForwardKernel KernelOf(bool warps, bool streaming) {
  if (warps) return ForwardSegmentsKernel<X, Y, true, false, ACTIVATED>;
  if (streaming) return ForwardSegmentsKernel<X, Y, false, true, ACTIVATED>;
  return ForwardSegmentsKernel<X, Y, false, false, ACTIVATED>;
}

ForwardKernel KernelFor(const ForwardProblem& problem, bool warps, bool streaming) {
  return ForwardKernelOf(problem.x, problem.y, [&](auto* x, auto* y) -> ForwardKernel {
    using X = std::remove_pointer_t<decltype(x)>;
    using Y = std::remove_pointer_t<decltype(y)>;
    if constexpr (!std::is_void_v<Y>) {
      if (ActivatedOnChip(problem)) return KernelOf<X, Y, true>(warps, streaming);
    }
    return KernelOf<X, Y, false>(warps, streaming);
  });
}

}  // namespace

void PlanForwardSegments(ForwardPlan* plan) {
  const ForwardProblem& problem = plan->problem;
  if (problem.in_double()) return;
  const SegmentLayout layout = SegmentLayout::Of(problem.geometry.rows).Whole();
  const int size = static_cast<int>(SizeOf(problem.x));
  if (problem.geometry.rows.col_divisor * size % kVectorBytes != 0) return;
  CutSegments(
      layout, plan->device, size, 0,
      [&](bool warps, bool streaming) {
        return reinterpret_cast<const void*>(KernelFor(problem, warps, streaming));
      },
      &plan->segments);
  if (plan->segments.blocks == 0) return;
  plan->workspace = std::max(plan->workspace, MailBytes(ShapeOf(layout, size, 0, plan->segments)));
}

Status LaunchForwardSegments(const ForwardPlan& plan, const ForwardBuffers& buffers,
                             void* workspace, void* stream, bool* launched) {
  const ForwardProblem& problem = plan.problem;
  *launched = plan.segments.blocks > 0 && AlignedTo(buffers.x, kVectorBytes) &&
              AlignedTo(buffers.y, kVectorBytes);
  if (!*launched) return Status();
  const SegmentLayout layout = SegmentLayout::Of(problem.geometry.rows);
  const int size = static_cast<int>(SizeOf(problem.x));
  const SegmentShape shape = ShapeOf(layout.Whole(), size, 0, plan.segments);
  return LaunchResident(
      "normalization of segments", KernelFor(problem, shape.warps, shape.streaming), shape.grid(),
      shape.blocks > 1, plan.segments.shared, stream, launched, shape,
      SegmentRuns::Of(layout, size), problem, buffers, static_cast<Post*>(workspace));
}

}  // namespace cuda
}  // namespace nv_norms
