// Gradients of instance and group norm of NC..., of any types, alignment and size. Kernels: sums of
// each piece of each segment; the terms of each row; dgamma and dbeta; dx. x and dy are read twice.
#include "kernels/cuda/columns_held.h"
#include "kernels/cuda/held.h"
#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/segments_sums.cuh"

namespace nv_norms {
namespace cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kVector = 4;
constexpr int kUnroll = 4;              // vectors that a thread loads before it uses the first
constexpr int64_t kPieceLength = 4096;  // numbers of a segment to a warp; not tuned yet

struct Arguments {
  DType dy;
  DType x;
  DType param;
  DType dx;
  DType stat;
  Formula formula;
  SegmentLayout layout;
  int64_t pieces;  // of a segment
  int lanes;       // of a warp, to a piece
  BackwardBuffers buffers;
};

// Where a group of lanes is: some of a warp's, or a warp.
struct Piece {
  bool live;
  int lane;
  int64_t index;
  int64_t row;
  int64_t segment;
  int64_t begin;
  int64_t end;

  // Of block `block`.
  __device__ __forceinline__ Piece(const Arguments& args, int64_t block) {
    const SegmentLayout& layout = args.layout;
    lane = threadIdx.x & (args.lanes - 1);
    index = block * (kThreads / args.lanes) + threadIdx.x / args.lanes;
    live = index < layout.rows * layout.segments * args.pieces;
    const int64_t at = index / args.pieces;
    const int64_t piece = index - at * args.pieces;
    row = at / layout.segments;
    segment = at - row * layout.segments;
    begin = at * layout.length + piece * kPieceLength;
    end = live ? min(begin + kPieceLength, (at + 1) * layout.length) : begin;
  }
};

// Calls use(x, dy, at, count) for this lane's numbers of a piece, of which the first `count` exist.
// Vectors are aligned wherever the piece begins; its ends are taken one by one.
template <typename A, int VEC, typename How, typename F>
__device__ __forceinline__ void ForNumbers(const Arguments& args, const Piece& piece,
                                           const F& use) {
  const void* const x = args.buffers.x;
  const void* const dy = args.buffers.dy;
  const auto one = [&](int64_t at) {
    const A x_one[1] = {LoadOne<A, How>(args.x, x, at)};
    const A dy_one[1] = {LoadOne<A, How>(args.dy, dy, at)};
    use(x_one, dy_one, at);
  };
  int64_t first = piece.begin;
  int64_t last = piece.end;
  if (VEC > 1) {
    first = min((piece.begin + VEC - 1) / VEC * VEC, piece.end);
    last = max(piece.end / VEC * VEC, first);
    const int64_t step = args.lanes * VEC;
    for (int64_t at = first + piece.lane * VEC; at < last; at += kUnroll * step) {
      A x_some[kUnroll][VEC];
      A dy_some[kUnroll][VEC];
#pragma unroll
      for (int j = 0; j < kUnroll; ++j) {
        if (at + j * step < last) {
          LoadVector<A, VEC, How>(args.x, x, at + j * step, x_some[j]);
          LoadVector<A, VEC, How>(args.dy, dy, at + j * step, dy_some[j]);
        }
      }
#pragma unroll
      for (int j = 0; j < kUnroll; ++j) {
        if (at + j * step < last) use(x_some[j], dy_some[j], at + j * step);
      }
    }
    for (int64_t at = piece.begin + piece.lane; at < first; at += args.lanes) one(at);
    for (int64_t at = last + piece.lane; at < piece.end; at += args.lanes) one(at);
  } else {
#pragma unroll 4
    for (int64_t at = first + piece.lane; at < last; at += args.lanes) one(at);
  }
}

template <typename A, int VEC, typename How>
__global__ void __launch_bounds__(kThreads)
    SumsKernel(const __grid_constant__ Arguments args, A* e_sums, SegmentSums<A>* sums) {
  const Piece piece(args, blockIdx.x);
  const A mean = piece.live ? StoredMean<A>(args.buffers, args.stat, piece.row) : A(0);
  A mine[3] = {0, 0, 0};
  ForNumbers<A, VEC, How>(args, piece, [&](const auto& x, const auto& dy, int64_t) {
#pragma unroll
    for (int v = 0; v < static_cast<int>(sizeof(x) / sizeof(A)); ++v) {
      const A e = x[v] - mean;
      mine[0] += e;
      mine[1] += dy[v];
      mine[2] += dy[v] * e;
    }
  });
  WarpSum(mine, args.lanes);
  if (!piece.live || piece.lane != 0) return;
  e_sums[piece.index] = mine[0];
  sums[piece.index] = {mine[1], mine[2]};
}

// The sums of `lanes` threads: of a part of a warp, or of the block.
template <int N>
__device__ __forceinline__ void LanesSum(double (&values)[N], int lanes,
                                         BlockStorage<N, double>* storage) {
  if (lanes <= 32) {
    WarpSum(values, lanes);
  } else {
    BlockSum(values, storage);
  }
}

// The terms of a row, by `lanes` threads.
template <typename A>
__global__ void __launch_bounds__(kThreads)
    TermsKernel(const __grid_constant__ Arguments args, int lanes, const A* e_sums,
                const SegmentSums<A>* sums, GradientTerms<A>* terms, XhatLine<A>* lines) {
  __shared__ BlockStorage<3, double> storage;
  const SegmentLayout& layout = args.layout;
  const int lane = threadIdx.x & (lanes - 1);
  const int64_t row = blockIdx.x * static_cast<int64_t>(kThreads / lanes) + threadIdx.x / lanes;
  const int64_t count = row < layout.rows ? layout.segments * args.pieces : 0;
  const int64_t base = row * layout.segments * args.pieces;
  double mine[3] = {0, 0, 0};
  for (int64_t i = lane; i < count; i += lanes) {
    const double gamma =
        ParamOr<A>(args.param, args.buffers.gamma, layout.ParamOf(row, i / args.pieces), 1);
    mine[0] += e_sums[base + i];
    mine[1] += gamma * sums[base + i].dy;
    mine[2] += gamma * sums[base + i].dy_e;
  }
  LanesSum(mine, lanes, &storage);
  if (row >= layout.rows || lane != 0) return;
  const A mean = StoredMean<A>(args.buffers, args.stat, row);
  const A rstd = LoadOne<A>(args.stat, args.buffers.rstd, row);
  const double numbers = static_cast<double>(layout.segments) * layout.length;
  const GradientTerms<A> t =
      TermsOf<A, double>(args.formula, mean, rstd, mine[0], mine[1], mine[2], numbers);
  terms[row] = t;
  lines[row] = XhatLineOf(t);
}

template <typename A>
__global__ void __launch_bounds__(kThreads)
    ParamsKernel(const SegmentLayout layout, int64_t pieces, int lanes, DType type,
                 const SegmentSums<A>* sums, const XhatLine<A>* lines, void* dgamma, void* dbeta) {
  __shared__ BlockStorage<2, double> storage;
  const int lane = threadIdx.x & (lanes - 1);
  const int64_t param = blockIdx.x * static_cast<int64_t>(kThreads / lanes) + threadIdx.x / lanes;
  const bool live = param < layout.modulus * layout.segments;
  const int64_t first = param / layout.segments;  // row
  const int64_t segment = param % layout.segments;
  const int64_t count = live ? layout.rows / layout.modulus * pieces : 0;
  double mine[2] = {0, 0};
  WaitForKernelBefore();
#pragma unroll 4
  for (int64_t i = lane; i < count; i += lanes) {
    const int64_t n = i / pieces;
    const int64_t row = n * layout.modulus + first;
    const SegmentSums<A> at = sums[(row * layout.segments + segment) * pieces + (i - n * pieces)];
    const XhatLine<A> line = lines != nullptr ? lines[row] : XhatLine<A>{1, 0};
    mine[0] += static_cast<double>(line.rstd) * at.dy_e + static_cast<double>(line.offset) * at.dy;
    mine[1] += at.dy;
  }
  LanesSum(mine, lanes, &storage);
  if (!live || lane != 0) return;
  const int64_t to = layout.ParamOf(first, segment);
  if (dgamma != nullptr) StoreOne<double>(type, dgamma, to, mine[0]);
  if (dbeta != nullptr) StoreOne<double>(type, dbeta, to, mine[1]);
}

// Pieces in the opposite order: what was read last may still be in the L2 cache.
template <typename A, int VEC, typename How>
__global__ void __launch_bounds__(kThreads)
    ApplyKernel(const __grid_constant__ Arguments args, const GradientTerms<A>* terms) {
  const Piece piece(args, gridDim.x - 1 - blockIdx.x);
  if (!piece.live) return;
  const GradientTerms<A> t = terms[piece.row];
  const A gamma =
      ParamOr<A>(args.param, args.buffers.gamma, args.layout.ParamOf(piece.row, piece.segment), 1);
  ForNumbers<A, VEC, How>(args, piece, [&](const auto& x, const auto& dy, int64_t at) {
    constexpr int kCount = static_cast<int>(sizeof(x) / sizeof(A));
    A dx[kCount];
#pragma unroll
    for (int v = 0; v < kCount; ++v) {
      dx[v] = t.rstd * (dy[v] * gamma - t.w_mean - ((x[v] - t.high) - t.low) * t.slope);
    }
    StoreVector<A, kCount, How>(args.dx, args.buffers.dx, at, dx);
  });
}

// Threads to so many numbers: a power of two up to 32, or a block's.
int LanesFor(int64_t numbers) {
  return numbers > 256 ? kThreads : PowerOfTwo(std::min<int64_t>(32, numbers));
}

template <typename A>
struct Kernels {
  void (*sums)(Arguments, A*, SegmentSums<A>*);
  void (*apply)(Arguments, const GradientTerms<A>*);
};

template <typename A, typename How>
Kernels<A> KernelsOf(bool vectors) {
  if (vectors) return {SumsKernel<A, kVector, How>, ApplyKernel<A, kVector, How>};
  return {SumsKernel<A, 1, How>, ApplyKernel<A, 1, How>};
}

template <typename A>
Kernels<A> KernelsFor(const BackwardProblem& problem, bool vectors) {
  if constexpr (sizeof(A) == 4) {
    if (problem.dy == problem.x && problem.dx == problem.x) {
      if (problem.x == DType::kFloat) return KernelsOf<A, Fixed<float>>(vectors);
      if (problem.x == DType::kHalf) return KernelsOf<A, Fixed<__half>>(vectors);
      return KernelsOf<A, Fixed<__nv_bfloat16>>(vectors);
    }
  }
  return KernelsOf<A, Any<A>>(vectors);
}

int64_t PiecesOf(const SegmentLayout& layout) { return CeilDiv(layout.length, kPieceLength); }

// Sums that a block of 256 threads adds up one after the other where it has so many of them take
// longer than all else: general layouts' kernels, random shapes on an H200, are 1.2 to 9 times as
// fast, at a quarter as many 0.3 to 1. Segments of one number ([n, channels]) have kernels that are
// 1.4 to 3 times as fast as those, whatever their number.
constexpr int64_t kMostSums = int64_t{1} << 18;
bool GeneralSuitsParams(const SegmentLayout& layout) {
  return layout.length > 1 && layout.rows / layout.modulus * PiecesOf(layout) >= kMostSums;
}
// The same of a row's segments, if no kernel on the chip takes it; and where a segment is one
// number, that is groups of [n, channels]: 1.1 to 3.3 times as fast from 512 on, less below.
bool GeneralSuitsRows(const SegmentLayout& layout) {
  return layout.segments * PiecesOf(layout) >= kMostSums ||
         (layout.length == 1 && layout.segments >= 512);
}

int LanesOf(const SegmentLayout& layout) {
  return PowerOfTwo(std::min<int64_t>(32, CeilDiv(layout.length, kVector)));
}

int64_t BlocksOf(const SegmentLayout& layout) {
  return CeilDiv(layout.rows * layout.segments * PiecesOf(layout), kThreads / LanesOf(layout));
}

// Where things lie in the workspace.
template <typename A>
struct Places {
  int64_t e_sums = 0;
  int64_t sums = 0;
  int64_t terms = 0;
  int64_t lines = 0;
  int64_t bytes = 0;

  explicit Places(const BackwardProblem& problem) {
    const SegmentLayout layout = SegmentLayout::Of(problem.geometry.rows);
    const int64_t pieces = PiecesOf(layout);
    const auto take = [&](int64_t count) {
      const int64_t at = bytes;
      bytes += Align16(count);
      return at;
    };
    e_sums = take(layout.rows * layout.segments * pieces * static_cast<int64_t>(sizeof(A)));
    sums = take(SumsBytes<A>(layout, pieces));
    terms = take(TermsBytes(problem));
    lines = take(XhatLineBytes(problem));
  }
};

template <typename A>
Status LaunchAs(const BackwardPlan& plan, const BackwardBuffers& buffers, void* workspace,
                void* stream) {
  const BackwardProblem& problem = plan.problem;
  const SegmentLayout layout = SegmentLayout::Of(problem.geometry.rows);
  const Places<A> places(problem);
  char* const base = static_cast<char*>(workspace);
  auto* const e_sums = reinterpret_cast<A*>(base + places.e_sums);
  auto* const sums = reinterpret_cast<SegmentSums<A>*>(base + places.sums);
  auto* const terms = reinterpret_cast<GradientTerms<A>*>(base + places.terms);
  auto* const lines = reinterpret_cast<XhatLine<A>*>(base + places.lines);
  Arguments args = {problem.dy,      problem.x, problem.param,    problem.dx,      problem.stat(),
                    problem.formula, layout,    PiecesOf(layout), LanesOf(layout), buffers};
  const bool vectors = VectorAligned(buffers.x, problem.x, kVector) &&
                       VectorAligned(buffers.dy, problem.dy, kVector) &&
                       VectorAligned(buffers.dx, problem.dx, kVector);
  const Kernels<A> kernels = KernelsFor<A>(problem, vectors);
  const unsigned blocks = static_cast<unsigned>(BlocksOf(layout));
  NV_NORMS_RETURN_IF_ERROR(LaunchKernel("gradient sums of segments", kernels.sums, blocks, kThreads,
                                        0, 1, stream, args, e_sums, sums));
  const int lanes = LanesFor(layout.segments * args.pieces);
  NV_NORMS_RETURN_IF_ERROR(
      LaunchKernel("gradient terms of rows of segments", TermsKernel<A>,
                   static_cast<unsigned>(CeilDiv(layout.rows, kThreads / lanes)), kThreads, 0, 1,
                   stream, args, lanes, e_sums, sums, terms, lines));
  if (buffers.dx != nullptr) {
    NV_NORMS_RETURN_IF_ERROR(LaunchKernel("normalization gradient of segments", kernels.apply,
                                          blocks, kThreads, 0, 1, stream, args, terms));
  }
  if (buffers.dgamma == nullptr && buffers.dbeta == nullptr) return Status();
  return LaunchSegmentParams<A>(layout, args.pieces, problem.dparam, sums, lines, buffers,
                                plan.device, stream);
}

}  // namespace

template <typename A>
Status LaunchSegmentParams(const SegmentLayout& layout, int64_t pieces, DType type,
                           const SegmentSums<A>* sums, const XhatLine<A>* lines,
                           const BackwardBuffers& buffers, const Device& device, void* stream) {
  LaunchAttributes attributes;
  attributes.early = device.capability >= 90;
  const int lanes = LanesFor(layout.rows / layout.modulus * pieces);
  const int64_t blocks = CeilDiv(layout.modulus * layout.segments, kThreads / lanes);
  return LaunchKernel("parameter gradients of segments", ParamsKernel<A>,
                      static_cast<unsigned>(blocks), kThreads, 0, attributes, stream, layout,
                      pieces, lanes, type, sums, lines, buffers.dgamma, buffers.dbeta);
}
template Status LaunchSegmentParams<float>(const SegmentLayout&, int64_t, DType,
                                           const SegmentSums<float>*, const XhatLine<float>*,
                                           const BackwardBuffers&, const Device&, void*);

void PlanBackwardSegments(BackwardPlan* plan) {
  const BackwardProblem& problem = plan->problem;
  const SegmentLayout layout = SegmentLayout::Of(problem.geometry.rows);
  if (BlocksOf(layout) >= kMostColumns || layout.rows >= kMostColumns ||
      GeneralSuitsParams(layout)) {
    plan->kernel = Kernel::kGeneral;
    return;
  }
  plan->kernel = Kernel::kRows;
  plan->workspace =
      problem.in_double() ? Places<double>(problem).bytes : Places<float>(problem).bytes;
  if (GeneralSuitsRows(layout)) {
    plan->workspace = std::max(plan->workspace, BackwardGeneralBytes(*plan));
  }
  PlanBackwardSegmentsResident(plan);
  PlanBackwardColumnsHeld(plan);
  PlanBackwardHeld(plan);
  PlanBackwardRowsTileOwn(plan);
  PlanBackwardRowsOwn(plan);
}

Status LaunchBackwardSegmentsOnChip(const BackwardPlan& plan, const BackwardBuffers& buffers,
                                    void* workspace, void* stream, bool* launched) {
  // Tiles of rows that are no whole vectors are faster than blocks that hold them: float16 60000 x
  // 134 0.58 and 0.27 of a copy's speed.
  const RowLayout& layout = plan.problem.geometry.rows;
  const bool odd = layout.cols * SizeOf(plan.problem.x) % kVectorBytes != 0;
  for (const auto launch :
       {LaunchBackwardColumnsHeld, odd ? LaunchBackwardRowsTileOwn : LaunchBackwardHeld,
        odd ? LaunchBackwardHeld : LaunchBackwardRowsTileOwn, LaunchBackwardRowsOwn}) {
    const Status status = launch(plan, buffers, workspace, stream, launched);
    if (*launched || !status.ok()) return status;
  }
  return LaunchBackwardSegmentsResident(plan, buffers, workspace, stream, launched);
}

Status LaunchBackwardSegments(const BackwardPlan& plan, const BackwardBuffers& buffers,
                              void* workspace, void* stream) {
  bool launched = false;
  NV_NORMS_RETURN_IF_ERROR(
      LaunchBackwardSegmentsOnChip(plan, buffers, workspace, stream, &launched));
  if (launched) return Status();
  if (GeneralSuitsRows(SegmentLayout::Of(plan.problem.geometry.rows))) {
    return LaunchBackwardGeneral(plan, buffers, workspace, stream);
  }
  return plan.problem.in_double() ? LaunchAs<double>(plan, buffers, workspace, stream)
                                  : LaunchAs<float>(plan, buffers, workspace, stream);
}

}  // namespace cuda
}  // namespace nv_norms
