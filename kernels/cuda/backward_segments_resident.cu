// Gradients of forward_segments_resident.cu's norms: x and dy are read once where a row of both
// fits into the shared memory of the blocks of a team. See segments.cuh.
#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/resident.cuh"
#include "kernels/cuda/segments.cuh"
#include "kernels/cuda/segments_sums.cuh"

namespace nv_norms {
namespace cuda {
namespace {

// For the gradients of the parameters; null where they are not wanted.
struct Outputs {
  SegmentSums<float>* sums;  // [rows, segments, pieces]
  XhatLine<float>* lines;    // [rows]
};

#if __CUDA_ARCH__ >= 800

// ACTIVATED: a leaky relu is behind the norm, see backward_columns_resident.cuh.
template <typename X, typename D, typename Y, bool WARPS, bool ACTIVATED>
struct BackwardBody {
  static constexpr int kVec = kVectorBytes / sizeof(X);
  using Tiles = SegmentTiles<kVec * sizeof(D), WARPS>;

  struct Storage {
    TeamStorage<3, float> sums;
    TeamStorage<3, float> team_sums;
  };

  // What is loaded of a row, one ahead.
  struct Nothing {};
  struct Beta {
    float beta;  // as gamma
  };
  struct Row : std::conditional_t<ACTIVATED, Beta, Nothing> {
    float mean;
    float rstd;
    float gamma;  // a lane's: of one of the block's segments
  };
  // What is known of a row whose sums were taken. There may be two: of the row that waits for its
  // output, and of the next.
  struct Sent {
    int unit = -1;
    Row row;
    float sums[3];
  };

  const Tiles& tiles;
  const BackwardProblem& problem;
  const BackwardBuffers& buffers;
  Outputs outputs;
  Post* mail;
  EmptyMail empty;
  Storage* storage;
  float inverse;  // 1 / numbers of a row
  int parity = 0;
  int team_parity = 0;
  int unit;  // whose output is written
  Row row;
  int next_unit;  // whose sums are taken
  Row next;
  Row later;  // of the one after it
  Sent older;
  Sent newer;
  float e[2];  // sums of the segment so far
  float dy[2];
  float dy_e[2];
  float all[3];  // of the row, weighted with gamma: where a block has several segments
  GradientLine line;

  __device__ __forceinline__ BackwardBody(const Tiles& tiles, const BackwardProblem& problem,
                                          const BackwardBuffers& buffers, const Outputs& outputs,
                                          Post* mail, Storage* storage)
      : tiles(tiles),
        problem(problem),
        buffers(buffers),
        outputs(outputs),
        mail(mail),
        storage(storage),
        inverse(1.0f / static_cast<float>(problem.geometry.reduced)) {}

  __device__ __forceinline__ float LoadGamma(int64_t at, int segment) const {
    return ParamOr<float>(problem.param, buffers.gamma,
                          tiles.shape.layout.ParamOf(at, tiles.first + segment), 1);
  }

  __device__ __forceinline__ float LoadBeta(int64_t at, int segment) const {
    return ParamOr<float>(problem.param, buffers.beta,
                          tiles.shape.layout.ParamOf(at, tiles.first + segment), 0);
  }

  __device__ __forceinline__ void Prefetch(int at) {
    if (at >= tiles.units()) return;
    later.mean = buffers.mean == nullptr ? 0.0f : static_cast<const float*>(buffers.mean)[at];
    later.rstd = static_cast<const float*>(buffers.rstd)[at];
    if (tiles.shape.own <= 32) later.gamma = LoadGamma(at, tiles.LanesSegment());
    if constexpr (ACTIVATED) {
      if (tiles.shape.own <= 32) later.beta = LoadBeta(at, tiles.LanesSegment());
    }
  }

  // Of one of the block's segments.
  __device__ __forceinline__ float GammaOf(const Row& of, int at, int segment) const {
    if (tiles.shape.own == 1) return of.gamma;
    if (tiles.shape.own > 32) return LoadGamma(at, segment);
    return __shfl_sync(0xffffffffu, of.gamma, segment);
  }

  __device__ __forceinline__ float BetaOf(const Row& of, int at, int segment) const {
    if (tiles.shape.own == 1) return of.beta;
    if (tiles.shape.own > 32) return LoadBeta(at, segment);
    return __shfl_sync(0xffffffffu, of.beta, segment);
  }

  // The gradient of t of a vector of x and dy: dy.
  __device__ __forceinline__ void Activate(const float (&x)[kVec], float mean, float scale,
                                           float beta, float (&d)[kVec]) const {
    float t[kVec];
#pragma unroll
    for (int v = 0; v < kVec; ++v) t[v] = fmaf(x[v] - mean, scale, beta);
    Activator<float>(problem.activation).Derive(t, d);
  }

  __device__ __forceinline__ void Start() {
    if (!WARPS && tiles.shape.blocks > 1) empty.Begin(mail, tiles.shape.posts());
  }
  __device__ __forceinline__ void Ready() { Prefetch(tiles.team); }

  __device__ __forceinline__ void Begin(int at) {
    next_unit = at;
    next = later;
    Prefetch(at + tiles.shape.teams);
    all[0] = all[1] = all[2] = 0;
    Clear();
  }

  __device__ __forceinline__ void Clear() { e[0] = e[1] = dy[0] = dy[1] = dy_e[0] = dy_e[1] = 0; }

  template <bool FULL>
  __device__ __forceinline__ void Sum(const uint4* from, int tile, int items) {
    float scale = 0;
    float beta = 0;
    if constexpr (ACTIVATED) {
      scale = next.rstd * GammaOf(next, next_unit, tiles.SegmentOf(tile));
      beta = BetaOf(next, next_unit, tiles.SegmentOf(tile));
    }
#pragma unroll
    for (int j = 0; j < Tiles::kItems; ++j) {
      if (!FULL && j >= items) break;
      float x[kVec];
      float d[kVec];
      Unpack<X>(Tiles::X(from, j), x);
      Unpack<D>(Tiles::Beside(from, j), d);
      if constexpr (ACTIVATED) Activate(x, next.mean, scale, beta, d);
#pragma unroll
      for (int v = 0; v < kVec; ++v) {
        const float about = x[v] - next.mean;
        e[v % 2] += about;
        dy[v % 2] += d[v];
        dy_e[v % 2] += d[v] * about;
      }
    }
    if (tiles.shape.own == 1) return;
    const int segment = tiles.SegmentOf(tile);
    if (tiles.InSegment(tile, segment) + 1 == tiles.segment_tiles) EndSegment(segment);
  }

  // Of several segments of a block.
  __device__ __forceinline__ void EndSegment(int segment) {
    const float gamma = GammaOf(next, next_unit, segment);
    float sums[2] = {dy[0] + dy[1], dy_e[0] + dy_e[1]};
    all[0] += e[0] + e[1];
    all[1] += gamma * sums[0];
    all[2] += gamma * sums[1];
    Clear();
    if (outputs.sums == nullptr) return;
    WarpSum(sums, 32);
    if (threadIdx.x % 32 == 0) StoreSums(segment, WARPS ? 0 : threadIdx.x / 32, sums[0], sums[1]);
  }

  __device__ __forceinline__ void StoreSums(int segment, int piece, float of_dy, float of_dy_e) {
    const SegmentShape& shape = tiles.shape;
    const int64_t at = static_cast<int64_t>(next_unit) * shape.segments + tiles.first + segment;
    outputs.sums[at * shape.pieces() + piece] = {of_dy, of_dy_e};
  }

  __device__ __forceinline__ void Send(int) {
    const bool several = tiles.shape.own > 1;
    float sums[3] = {several ? all[0] : e[0] + e[1], several ? all[1] : dy[0] + dy[1],
                     several ? all[2] : dy_e[0] + dy_e[1]};
    TeamSum<WARPS>(sums, &storage->sums, parity);
    parity ^= 1;
    if (!several) {
      if (outputs.sums != nullptr && tiles.first_thread()) {
        StoreSums(0, tiles.part, sums[1], sums[2]);
      }
      sums[1] *= next.gamma;
      sums[2] *= next.gamma;
    }
    if (!WARPS && tiles.shape.blocks > 1) {
      empty.End();
      if (threadIdx.x == 0) {
        PostToGrid(mail + static_cast<int64_t>(next_unit) * tiles.shape.blocks + tiles.rank, sums);
      }
    }
    older = newer;
    newer.unit = next_unit;
    newer.row = next;
#pragma unroll
    for (int n = 0; n < 3; ++n) newer.sums[n] = sums[n];
  }

  // The sums of all blocks of the team.
  __device__ __forceinline__ void Collect(float (&sums)[3]) {
    const int blocks = tiles.shape.blocks;
    const Post* posts = mail + static_cast<int64_t>(unit) * blocks;
    sums[0] = sums[1] = sums[2] = 0;
    const bool few = blocks <= 32;  // every warp adds them up
    for (int block = few ? threadIdx.x % 32 : threadIdx.x; block < blocks;
         block += kResidentThreads) {
      float post[kPostNumbers];
      while (!ReadPost(posts + block, post)) {
      }
#pragma unroll
      for (int n = 0; n < 3; ++n) sums[n] += post[n];
    }
    if (few) {
      __syncwarp();
      WarpSum(sums, 32);
    } else {
      TeamSum<false>(sums, &storage->team_sums, team_parity);
      team_parity ^= 1;
    }
  }

  __device__ __forceinline__ void Receive(int at) {
    const bool last = newer.unit == at;  // by value: a reference would put all in local memory
    unit = at;
    row.mean = last ? newer.row.mean : older.row.mean;
    row.rstd = last ? newer.row.rstd : older.row.rstd;
    row.gamma = last ? newer.row.gamma : older.row.gamma;
    if constexpr (ACTIVATED) row.beta = last ? newer.row.beta : older.row.beta;
    float sums[3];
#pragma unroll
    for (int n = 0; n < 3; ++n) sums[n] = last ? newer.sums[n] : older.sums[n];
    if (!WARPS && tiles.shape.blocks > 1) Collect(sums);
    line = LineOf(problem.formula, row.mean, row.rstd, sums[0], sums[1], sums[2], inverse);
    if (outputs.lines != nullptr && tiles.rank == 0 && tiles.first_thread()) {
      outputs.lines[unit] = {row.rstd, line.xhat_offset};
    }
  }

  template <bool FULL>
  __device__ __forceinline__ void Apply(const uint4* from, int tile, int items) {
    const float scale = row.rstd * GammaOf(row, unit, tiles.SegmentOf(tile));
    float beta = 0;
    if constexpr (ACTIVATED) beta = BetaOf(row, unit, tiles.SegmentOf(tile));
    const int64_t to = (tiles.Base(unit) + tiles.begin + tiles.OffsetOf(tile)) * kVec;
#pragma unroll
    for (int j = 0; j < Tiles::kItems; ++j) {
      if (!FULL && j >= items) break;
      float x[kVec];
      float d[kVec];
      Unpack<X>(Tiles::X(from, j), x);
      Unpack<D>(Tiles::Beside(from, j), d);
      if constexpr (ACTIVATED) Activate(x, row.mean, scale, beta, d);
#pragma unroll
      for (int v = 0; v < kVec; ++v) {
        d[v] = d[v] * scale + (line.offset - (x[v] - row.mean) * line.slope);
      }
      StoreStrip<Y>(problem.dx, buffers.dx, to + j * Tiles::kLanes * kVec, d,
                    tiles.shape.small_output);
    }
  }
};

#endif  // __CUDA_ARCH__ >= 800

template <typename X, typename D, typename Y, bool WARPS, bool STREAMING, bool ACTIVATED>
__global__ void __launch_bounds__(kResidentThreads, kResidentBlocks)
    BackwardSegmentsKernel(const __grid_constant__ SegmentShape shape,
                           const __grid_constant__ BackwardProblem problem,
                           const BackwardBuffers buffers, const Outputs outputs, Post* mail) {
#if __CUDA_ARCH__ >= 800
  LetNextKernelStart();
  extern __shared__ uint4 slots[];
  using Body = BackwardBody<X, D, Y, WARPS, ACTIVATED>;
  __shared__ typename Body::Storage storage;
  const typename Body::Tiles tiles(shape, slots, buffers.x, buffers.dy);
  Body body(tiles, problem, buffers, outputs, mail, &storage);
  Walk<typename Body::Tiles, Body> walk(tiles, body);
  walk.template Run<STREAMING, true>();
#endif
}

using BackwardKernel = void (*)(SegmentShape, BackwardProblem, BackwardBuffers, Outputs, Post*);

template <typename X, typename D, typename Y, bool ACTIVATED>
BackwardKernel KernelOf(bool warps, bool streaming) {
  if (warps) return BackwardSegmentsKernel<X, D, Y, true, false, ACTIVATED>;
  if (streaming) return BackwardSegmentsKernel<X, D, Y, false, true, ACTIVATED>;
  return BackwardSegmentsKernel<X, D, Y, false, false, ACTIVATED>;
}

BackwardKernel KernelFor(const BackwardProblem& problem, bool warps, bool streaming) {
  return BackwardKernelOf(problem, [&](auto* x, auto* dy, auto* dx) -> BackwardKernel {
    using X = std::remove_pointer_t<decltype(x)>;
    using D = std::remove_pointer_t<decltype(dy)>;
    using Y = std::remove_pointer_t<decltype(dx)>;
    if constexpr (!std::is_void_v<Y>) {
      if (ActivatedOnChip(problem)) return KernelOf<X, D, Y, true>(warps, streaming);
    }
    return KernelOf<X, D, Y, false>(warps, streaming);
  });
}

SegmentShape ShapeOf(const BackwardPlan& plan) {
  return ShapeOf(SegmentLayout::Of(plan.problem.geometry.rows),
                 static_cast<int>(SizeOf(plan.problem.x)), BesideOf(plan.problem), plan.segments);
}

}  // namespace

void PlanBackwardSegmentsResident(BackwardPlan* plan) {
  const BackwardProblem& problem = plan->problem;
  if (!HasGradientKernel(problem) || !plan->want_dx) return;
  CutSegments(
      SegmentLayout::Of(problem.geometry.rows), plan->device, static_cast<int>(SizeOf(problem.x)),
      BesideOf(problem),
      [&](bool warps, bool streaming) {
        return reinterpret_cast<const void*>(KernelFor(problem, warps, streaming));
      },
      &plan->segments);
  if (plan->segments.blocks == 0) return;
  const SegmentShape shape = ShapeOf(*plan);
  plan->workspace = std::max(
      plan->workspace, MailBytes(shape) + Align16(SumsBytes<float>(shape.layout, shape.pieces())) +
                           Align16(XhatLineBytes(problem)));
}

Status LaunchBackwardSegmentsResident(const BackwardPlan& plan, const BackwardBuffers& buffers,
                                      void* workspace, void* stream, bool* launched) {
  const BackwardProblem& problem = plan.problem;
  *launched = plan.segments.blocks > 0 && buffers.dx != nullptr &&
              AlignedTo(buffers.x, kVectorBytes) && AlignedTo(buffers.dy, kVectorBytes) &&
              AlignedTo(buffers.dx, kVectorBytes);
  if (!*launched) return Status();
  const SegmentShape shape = ShapeOf(plan);
  char* behind = static_cast<char*>(workspace) + MailBytes(shape);
  const bool params = buffers.dgamma != nullptr || buffers.dbeta != nullptr;
  Outputs outputs = {nullptr, nullptr};
  if (params) {
    outputs.sums = reinterpret_cast<SegmentSums<float>*>(behind);
    outputs.lines = reinterpret_cast<XhatLine<float>*>(
        behind + Align16(SumsBytes<float>(shape.layout, shape.pieces())));
  }
  NV_NORMS_RETURN_IF_ERROR(LaunchResident("normalization gradient of resident segments",
                                          KernelFor(problem, shape.warps, shape.streaming),
                                          shape.grid(), shape.blocks > 1, plan.segments.shared,
                                          stream, launched, shape, problem, buffers, outputs,
                                          static_cast<Post*>(workspace)));
  if (!*launched || !params) return Status();
  return LaunchSegmentParams<float>(shape.layout, shape.pieces(), problem.dparam, outputs.sums,
                                    outputs.lines, buffers, plan.device, stream);
}

}  // namespace cuda
}  // namespace nv_norms
