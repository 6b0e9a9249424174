// x is [rows, cols]. A team of blocks anywhere on the GPU, all of them resident, has a row at a
// time, whose numbers wait in shared memory for what the clerks find out; x and dy are read once,
// and gamma and the columns' sums for dgamma and dbeta stay in registers.
#include "kernels/cuda/backward_ring.cuh"
#include "kernels/cuda/clerks.cuh"

namespace nv_norms {
namespace cuda {
namespace {

// The sums of what the team's blocks posted of a row, in one warp.
__device__ __forceinline__ float4 Collect(const BackwardRingArguments& args, int64_t row) {
  const int blocks = args.shape.blocks;
  float posts[kPostsOfLane][kPostNumbers];
  CollectPosts(args.mail + row * blocks, blocks, posts);
  float sums[kPostNumbers] = {0, 0, 0};
#pragma unroll
  for (int i = 0; i < kPostsOfLane; ++i) {
#pragma unroll
    for (int n = 0; n < kPostNumbers; ++n) sums[n] += posts[i][n];
  }
  WarpSum(sums, 32);
  return make_float4(sums[0], sums[1], sums[2], 0);
}

// D: of dy.
template <typename T, typename D, int VEC, int NUMBERS, bool BY_ROW>
__global__ void __launch_bounds__(kTeamThreads<NUMBERS>, 1)
    TeamKernel(const __grid_constant__ BackwardRingArguments args) {
  LetNextKernelStart();
  extern __shared__ uint4 ring[];  // [stages][x, dy][share], [lag + 1][threads] of float4
  __shared__ TeamDesk desk;
  constexpr int kItems = NUMBERS / VEC;
  constexpr int kBytes = VEC * sizeof(T);
  constexpr int kBeside = VEC * sizeof(D);
  using Params = GradientParams<BY_ROW, VEC, kItems>;
  const RingShape& shape = args.shape;
  const RingPlace place = PlaceOf<Team::kGrid, kItems>(shape, args.cols / VEC);
  const int x_bytes = StageXBytes<T, D, VEC>(shape);
  char* const stages = reinterpret_cast<char*>(ring);
  float4* const desk_sums =
      reinterpret_cast<float4*>(stages + StageAt<T, D>(shape.stages, x_bytes));
  const T* x = static_cast<const T*>(args.buffers.x) + place.begin * VEC;
  const D* dy = static_cast<const D*>(args.buffers.dy) + place.begin * VEC;
  T* dx = static_cast<T*>(args.buffers.dx) + place.begin * VEC;
  const float* means = static_cast<const float*>(args.buffers.mean);
  const float* rstds = static_cast<const float*>(args.buffers.rstd);

  EmptyMail empty;
  if (shape.blocks > 1) empty.Begin(args.mail, args.rows * shape.blocks);
  // Row `step` of the team.
  const auto copy = [&](int step, int stage) {
    const int64_t row = RowOf(place, step);
    if (row < args.rows) {
      const T* from_x = x + row * args.cols;
      const D* from_dy = dy + row * args.cols;
      char* to = stages + StageAt<T, D>(stage, x_bytes);
      ForItems<kItems>(place, shape.items, [&](int, int i, bool) {
        CopyAsync<kBytes>(to + i * kBytes, from_x + i * VEC);
        CopyAsync<kBeside>(to + x_bytes + i * kBeside, from_dy + i * VEC);
      });
    }
    CommitCopies();
  };
  for (int s = 0; s < shape.stages; ++s) copy(s, s);
  if (threadIdx.x == 0) OpenDesk(shape, &desk);
  empty.End();
  __syncthreads();
  const auto mean_of = [&](int64_t row) {
    return means != nullptr && row < args.rows ? means[row] : 0.0f;
  };

  if (IsClerk(shape)) {
    const float inverse = 1.0f / static_cast<float>(args.cols);
    Serve(
        shape, place, args.rows,
        [&](const Turn& turn) {
          float4 parts[kMostWorkerWarps];
          ReadSums(shape, desk, desk_sums, turn, parts);
          float sums[kPostNumbers] = {0, 0, 0};
#pragma unroll
          for (int w = 0; w < kMostWorkerWarps; ++w) {
            sums[0] += parts[w].x;
            sums[1] += parts[w].y;
            sums[2] += parts[w].z;
          }
          WarpSum(sums, 32);
          return make_float4(sums[0], sums[1], sums[2], 0);
        },
        [&](int64_t row, const float4& sums) {
          const float post[kPostNumbers] = {sums.x, sums.y, sums.z};
          if (threadIdx.x % 32 == 0) PostToGrid(args.mail + row * shape.blocks + place.rank, post);
        },
        [&](int64_t row) { return Collect(args, row); },
        [&](int64_t row, int slot, const auto& of) {
          const float mean = mean_of(row);
          const float rstd = rstds[row];
          const typename Params::Row own = Params::Of(args, row);
          const float4 of_row = of();
          const float sums[kPostNumbers] = {of_row.x, of_row.y, of_row.z};
          const GradientLine line = Params::Line(args, row, mean, rstd, own, sums, inverse,
                                                 place.rank == 0 && threadIdx.x % 32 == 0);
          float4 second = make_float4(Params::Scale(rstd, own), 0, 0, 0);
          if constexpr (BY_ROW) second.y = own.beta;
          LeaveLine(&desk, slot,
                    {make_float4(line.offset, line.slope, line.xhat_offset, mean), second});
        });
    WaitForCopies<0>();
    return;
  }

  Params params;
  params.Load(args, place);
  const auto load_of = [&](const char* from, float about) {
    return [&x_bytes, from, about](int, int i, const auto& use) {
      float e[VEC];
      float d[VEC];
      Unpack<T>(from + i * kBytes, e);
      Unpack<D>(from + x_bytes + i * kBeside, d);
#pragma unroll
      for (int v = 0; v < VEC; ++v) e[v] -= about;
      use(e, d);
    };
  };
  // Of a row's own parameters only an activation's gradient asks so early.
  const bool early = BY_ROW && !args.activation.none();
  float next_mean = mean_of(place.team);
  float next_scale = 0;
  typename Params::Row next_own = {};
  const auto ask = [&](int64_t row) {
    if (!early || row >= args.rows) return;
    next_own = Params::Of(args, row);
    next_scale = Params::Scale(rstds[row], next_own);
  };
  ask(place.team);
  Turn turn;
  Turn old_turn;  // of the row whose gradient is written
  int stage = 0;
  int old_stage = 0;
  const int steps = StepsOf(place, args.rows);
  for (int step = 0; step < steps + shape.lag; ++step) {
    if (step < steps) {
      const float mean = next_mean;
      const float scale = next_scale;
      const typename Params::Row own = next_own;
      next_mean = mean_of(RowOf(place, step + 1));
      ask(RowOf(place, step + 1));
      WaitForCopies(shape.stages - 1 - min(step, shape.lag));
      const char* from = stages + StageAt<T, D>(stage, x_bytes);
      float sums[3] = {0, 0, 0};
      params.Sum(args, place, scale, own, load_of(from, mean), sums);
      WriteSums(shape, &desk, desk_sums, turn, make_float4(sums[0], sums[1], sums[2], 0));
      turn.Next(shape.lag + 1);
      stage = stage + 1 == shape.stages ? 0 : stage + 1;
    }
    if (step < shape.lag) continue;
    const int old = step - shape.lag;
    WaitAt(desk.ready + old_turn.slot, old_turn.parity);
    const float4 left = desk.lines[old_turn.slot].first;  // offset, slope, xhat_offset, mean
    const float4 second = desk.lines[old_turn.slot].second;
    typename Params::Row own = {};
    if constexpr (BY_ROW) own.beta = second.y;
    const char* from = stages + StageAt<T, D>(old_stage, x_bytes);
    T* to = dx + RowOf(place, old) * args.cols;
    params.template Apply<true>(
        args, place, second.x, own, {left.x, left.y, left.z}, load_of(from, left.w),
        [&](int i, const float (&out)[VEC]) { StoreAs(to + i * VEC, out); });
    copy(old + shape.stages, old_stage);
    old_turn.Next(shape.lag + 1);
    old_stage = old_stage + 1 == shape.stages ? 0 : old_stage + 1;
  }
  WaitForCopies<0>();
  params.Store(args, place, SumsOfTeam(args, place, args.dgamma),
               SumsOfTeam(args, place, args.dbeta));
}

struct Kernels {
  template <typename T, typename D, bool BY_ROW>
  static BackwardRingPointer Wide(const RingShape& shape) {
    constexpr int kVector = kVectorOf<T>;
    if constexpr (BY_ROW) {
      if (shape.items * kVector == kTeamLeastNumbersActivated) {
        return TeamKernel<T, D, kVector, kTeamLeastNumbersActivated, true>;
      }
    }
    return shape.items * kVector == kTeamLeastNumbers
               ? TeamKernel<T, D, kVector, kTeamLeastNumbers, BY_ROW>
               : TeamKernel<T, D, kVector, kTeamNumbers, BY_ROW>;
  }
  template <typename T>
  static BackwardRingPointer Narrow() {
    return TeamKernel<T, T, 4 / sizeof(T), kTeamLeastNumbers, false>;
  }
};

}  // namespace

BackwardRingPointer BackwardTeamKernel(DType x, DType dy, bool by_row, const RingShape& shape) {
  return BackwardRingKernelFor<Kernels>(x, dy, by_row, shape);
}

}  // namespace cuda
}  // namespace nv_norms
