// x is [rows, cols]. A block has a row at a time; x and dy are read once, and gamma and the
// columns' sums for dgamma and dbeta stay in registers. Teams of blocks are launched from here,
// too.
#include "kernels/cuda/backward_ring.cuh"
#include "kernels/cuda/warp_copies.cuh"

namespace nv_norms {
namespace cuda {
namespace {

using Arguments = BackwardRingArguments;

// D: of dy. RIM: see rim.cuh.
template <typename T, typename D, int VEC, bool BY_ROW, bool RIM>
__global__ void __launch_bounds__(kRingThreads, 1)
    RingKernel(const __grid_constant__ Arguments args) {
  LetNextKernelStart();
  extern __shared__ uint4 ring[];  // [stages][x, dy][share]
  __shared__ BlockStorage<3, float> storage[2];
  constexpr int kItems = kBackwardNumbers / VEC;
  constexpr int kBytes = VEC * sizeof(T);
  constexpr int kBeside = VEC * sizeof(D);
  const RingShape& shape = args.shape;
  const RowRim<RIM, VEC> rim(args.cols, 1);
  const RingPlace place = PlaceOf<Team::kBlock, kItems>(shape, rim.Vectors(args.cols));
  const int x_bytes = StageXBytes<T, D, VEC>(shape);
  char* const stages = reinterpret_cast<char*>(ring);
  const T* x = static_cast<const T*>(args.buffers.x) + rim.head;
  const D* dy = static_cast<const D*>(args.buffers.dy) + rim.head;
  T* dx = static_cast<T*>(args.buffers.dx) + rim.head;
  const float* means = static_cast<const float*>(args.buffers.mean);
  const float* rstds = static_cast<const float*>(args.buffers.rstd);

  // 16 bits are copied thread by thread: 65536 x 2560 bfloat16 took 256 us so, 272 at once.
  constexpr bool kBulk = kBulkCopies && kBytes == 16 && std::is_same_v<T, float> && kBeside == 16;
  using Copies = WarpCopies<kBulk, kItems>;
  __shared__ uint64_t gates[Copies::kGates];
  const Copies copies(gates);
  RingTurn turn;
  // The next row of the turn.
  const auto copy = [&](int64_t row) {
    if (row < args.rows) {
      char* to = stages + StageAt<T, D>(turn.Stage(), x_bytes);
      const RowCopy<kBytes> of_x = {to, x + row * args.cols};
      const RowCopy<kBeside> of_dy = {to + x_bytes, dy + row * args.cols};
      copies.Start(shape, place, turn.Stage(), of_x, of_dy);
    }
    copies.End();
    ++turn.rows;
  };
  for (int s = 0; s < kBlockStages; ++s) copy(place.team + s * place.teams);
  turn.rows = 0;
  using Params = GradientParams<BY_ROW, VEC, kItems>;
  Params params;
  params.template Load<!RIM>(args, place, rim.head);
  RimGradient<T, D, RowRim<RIM, VEC>> of_rim(args, rim);
  const float inverse = 1.0f / static_cast<float>(args.cols);
  const auto mean_of = [&](int64_t row) {
    return means != nullptr && row < args.rows ? means[row] : 0.0f;
  };
  const auto rstd_of = [&](int64_t row) { return row < args.rows ? rstds[row] : 0.0f; };
  float next_mean = mean_of(place.team);
  float next_rstd = rstd_of(place.team);
  typename Params::Row next_own = Params::Of(args, place.team);
  const auto ask_rim = [&](int64_t row) {
    of_rim.Ask(x + row * args.cols, dy + row * args.cols, row < args.rows);
  };
  ask_rim(place.team);
  for (int64_t row = place.team; row < args.rows; row += place.teams) {
    const float mean = next_mean;
    const float rstd = next_rstd;
    const typename Params::Row own = next_own;
    next_mean = mean_of(row + place.teams);
    next_rstd = rstd_of(row + place.teams);
    next_own = Params::Of(args, row + place.teams);
    of_rim.Take(mean);
    ask_rim(row + place.teams);
    const float scale = Params::Scale(rstd, own);
    copies.Wait(turn.Stage(), turn.Parity());
    const char* from = stages + StageAt<T, D>(turn.Stage(), x_bytes);
    float e[kItems][VEC];
    float d[kItems][VEC];
    float sums[3] = {0, 0, 0};
    const auto load = [&](int k, int i, const auto& use) {
      Unpack<T>(from + i * kBytes, e[k]);
      Unpack<D>(from + x_bytes + i * kBeside, d[k]);
#pragma unroll
      for (int v = 0; v < VEC; ++v) e[k][v] -= mean;
      use(e[k], d[k]);
    };
    params.Sum(args, place, scale, own, load, sums);
    of_rim.Sum(sums);
    copy(row + kBlockStages * place.teams);
    // Two storages by turns: a thread may still read one when another is a row ahead.
    ShortBlockSum(sums, &storage[turn.Stage()]);
    const GradientLine line =
        Params::Line(args, row, mean, rstd, own, sums, inverse, threadIdx.x == 0);
    T* to = dx + row * args.cols;
    const auto kept = [&](int k, int, const auto& use) { use(e[k], d[k]); };
    params.template Apply<false>(
        args, place, scale, own, line, kept,
        [&](int i, const float (&out)[VEC]) { StoreAs(to + i * VEC, out); });
    of_rim.Apply(rstd, line, args.buffers.dx != nullptr, to);
  }
  WaitForCopies<0>();
  const int64_t sums_at = place.team / shape.allies * args.cols;
  float* const dgamma = args.dgamma == nullptr ? nullptr : args.dgamma + sums_at;
  float* const dbeta = args.dbeta == nullptr ? nullptr : args.dbeta + sums_at;
  if (shape.allies == 1) {
    params.template Store<!RIM>(args, place, dgamma, dbeta, rim.head);
    of_rim.Store(dgamma, dbeta);
  } else if constexpr (!BY_ROW && !RIM) {
    __syncthreads();  // other threads' copies lie where these sums go
    float* const sums = reinterpret_cast<float*>(ring);
    params.Store(args, place, sums, sums + args.cols);
    AddAllies(sums, args.cols, dgamma, dbeta);
  }
}

struct Kernels {
  template <typename T, typename D>
  static BackwardRingPointer Rim(const RingShape&) {
    return RingKernel<T, D, kVectorOf<T>, false, true>;
  }
  template <typename T, typename D, bool BY_ROW>
  static BackwardRingPointer Wide(const RingShape&) {
    return RingKernel<T, D, kVectorOf<T>, BY_ROW, false>;
  }
  template <typename T>
  static BackwardRingPointer Narrow() {
    return RingKernel<T, T, 4 / sizeof(T), false, false>;
  }
};

BackwardRingPointer KernelFor(DType x, DType dy, bool by_row, const RingShape& shape) {
  if (shape.team == Team::kCluster) return BackwardClusterKernel(x, dy, by_row, shape);
  if (shape.team == Team::kGrid) return BackwardTeamKernel(x, dy, by_row, shape);
  return shape.rim ? RimKernelFor<BackwardRingPointer, Kernels>(x, dy, shape)
                   : BackwardRingKernelFor<Kernels>(x, dy, by_row, shape);
}

RingShape RimShapeOf(const BackwardPlan& plan) {
  const BackwardProblem& problem = plan.problem;
  const RowLayout& layout = problem.geometry.rows;
  const int64_t size = SizeOf(problem.x);
  return RingShapeOf(
      layout.rows, layout.cols, {size, SizeOf(problem.dy), SizeOf(problem.dx)}, 16 / size,
      {kBackwardNumbers, kBackwardNumbers, kBackwardClusterNumbers, 0, 0, false, true},
      plan.device);
}

RingShape ShapeOf(const BackwardPlan& plan, int64_t bytes) {
  const RowLayout& layout = plan.problem.geometry.rows;
  const int64_t size = SizeOf(plan.problem.x);
  return RingShapeOf(
      layout.rows, layout.cols, {size, SizeOf(plan.problem.dy), SizeOf(plan.problem.dx)},
      bytes / size,
      {kBackwardNumbers, kBackwardNumbers, bytes == 16 ? kBackwardClusterNumbers : kBackwardNumbers,
       layout.by_row() && !plan.problem.activation.none() ? kTeamLeastNumbersActivated
                                                          : kTeamLeastNumbers,
       kTeamNumbers, layout.by_row()},
      plan.device);
}

// Partial sums of columns, one to a block, are as much data as a few rows to a block. Microseconds
// of a gradient with one ally and with four: float32 2048 x 768 17.6, 16.5, 4096 x 1024 26.5, 24.7,
// 16384 x 1024 64.9, 62.4, bfloat16 4096 x 1024 21.2, 19.0, 8192 x 4096 66.3, 65.1; with two or
// eight in between. One row to a block, 512 x 768: 10.9, 11.8. A block to a multiprocessor, where
// clusters leave some of them idle: 8192 x 5120 136, 142. Many rows: float32 32768 x 768 (31 to a
// block) 88.8, 87.2, but bfloat16 the same 53.5, 53.6 and 65536 x 768 93, 96.
constexpr int64_t kMostRowsAllied16 = 28;  // to a block, of dy in 16 bits

bool AlliesAreFaster(const BackwardPlan& plan, const RingShape& shape) {
  const RowLayout& layout = plan.problem.geometry.rows;
  if (shape.team != Team::kBlock || shape.rim || layout.by_row() || plan.device.capability < 90)
    return false;
  if (SizeOf(plan.problem.dy) == 2 && layout.rows > kMostRowsAllied16 * shape.teams) return false;
  return shape.teams < layout.rows && shape.teams >= 2 * plan.device.multiprocessors;
}

}  // namespace

RingShape BackwardRingShape(const BackwardPlan& plan) {
  const BackwardProblem& problem = plan.problem;
  const RowLayout& layout = problem.geometry.rows;
  const int64_t row_bytes = layout.cols * SizeOf(problem.x);
  RingShape none;
  none.blocks = 0;
  const bool mixed = MixedGradient(problem);
  const bool by_row = layout.by_row();
  if (by_row && !ByRowFits(layout, SizeOf(problem.x))) return none;
  if (problem.in_double() || problem.dx != problem.x || (problem.dy != problem.x && !mixed)) {
    return none;
  }
  RingShape out = none;
  if (row_bytes % 16 != 0) out = RimShapeOf(plan);
  if (out.blocks == 0 && row_bytes % (mixed ? 16 : 4) == 0) {
    out = ShapeOf(plan, row_bytes % 16 == 0 ? 16 : 4);
  }
  if (out.blocks == 0) return none;
  const auto* kernel = reinterpret_cast<const void*>(KernelFor(problem.x, problem.dy, by_row, out));
  if (out.team == Team::kCluster) {
    const int64_t fit = ClustersThatFit(kernel, out);
    out.teams = std::min(layout.rows, fit);
    if (out.rim) out.teams = RimTeams(out.teams, layout.cols, out.vector);
    if (out.teams == 0) return none;
  }
  if (plan.want_params && AlliesAreFaster(plan, out)) {
    out.allies = kAllies;
    const int64_t fit = ClustersThatFit(kernel, out);
    if (fit == 0) {
      out.allies = 1;
    } else {
      out.teams = std::min(out.teams / kAllies, fit) * kAllies;
    }
  }
  return out;
}

Status LaunchBackwardRowsRing(const BackwardPlan& plan, const RingShape& shape,
                              const BackwardBuffers& buffers, const RingSums& sums, void* mail,
                              void* stream, bool* launched) {
  const BackwardProblem& problem = plan.problem;
  const RowLayout& layout = problem.geometry.rows;
  const int64_t bytes = shape.vector * SizeOf(problem.x);
  *launched =
      shape.blocks != 0 && AlignedTo(buffers.x, bytes) && AlignedTo(buffers.dy, bytes) &&
      AlignedTo(buffers.dx, bytes) &&
      (layout.by_row() || shape.rim || VectorAligned(buffers.gamma, problem.param, shape.vector));
  if (!*launched) return Status();
  Arguments args = {};
  args.param = problem.param;
  args.formula = problem.formula;
  args.activation = problem.activation;
  args.own = RowsOwn::Of(layout);
  args.rows = layout.rows;
  args.cols = static_cast<int>(layout.cols);
  args.shape = shape;
  args.buffers = buffers;
  args.dgamma = sums.dgamma;
  args.dbeta = sums.dbeta;
  args.row_sums = sums.rows;
  args.row_lines = sums.lines;
  args.mail = static_cast<Post*>(mail);
  return LaunchRing("normalization gradient of long rows",
                    KernelFor(problem.x, problem.dy, layout.by_row(), shape), shape, stream,
                    launched, args);
}

}  // namespace cuda
}  // namespace nv_norms
