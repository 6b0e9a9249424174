// x is [rows, cols]. A team of blocks has a row at a time; x and dy are read once, and gamma and
// the columns' sums for dgamma and dbeta stay in registers.
#include "kernels/cuda/backward_ring.cuh"
#include "kernels/cuda/team.cuh"

namespace nv_norms {
namespace cuda {
namespace {

using Arguments = BackwardRingArguments;

// The sums of all posts of a row, in one warp.
__device__ __forceinline__ void Collect(const Arguments& args, int64_t row,
                                        float (&sums)[kPostNumbers]) {
  const int blocks = args.shape.blocks;
  float posts[kPostsOfLane][kPostNumbers];
  CollectPosts(args.mail + row * blocks, blocks, posts);
#pragma unroll
  for (int n = 0; n < kPostNumbers; ++n) {
    sums[n] = 0;
#pragma unroll
    for (int i = 0; i < kPostsOfLane; ++i) sums[n] += posts[i][n];
  }
  WarpSum(sums, 32);
}

// D: of dy.
template <typename T, typename D, int VEC, Team kTeam>
__global__ void __launch_bounds__(kRingThreads, 1)
    RingKernel(const __grid_constant__ Arguments args) {
  extern __shared__ uint4 ring[];  // [stages][x, dy][share]
  __shared__ BlockStorage<3, float> storage[2];
  __shared__ GradientLine lines[2];
  constexpr int kItems = kBackwardNumbers / VEC;
  constexpr int kBytes = VEC * sizeof(T);
  constexpr int kBeside = VEC * sizeof(D);
  constexpr int kDelay = kLag<kTeam>;
  const RingShape& shape = args.shape;
  const RingPlace place = PlaceOf<kTeam, kItems>(shape, args.cols / VEC);
  const int x_bytes = StageXBytes<T, D, VEC>(shape);
  char* const stages = reinterpret_cast<char*>(ring);
  const T* x = static_cast<const T*>(args.buffers.x) + place.begin * VEC;
  const D* dy = static_cast<const D*>(args.buffers.dy) + place.begin * VEC;
  T* dx = static_cast<T*>(args.buffers.dx) + place.begin * VEC;
  const float* means = static_cast<const float*>(args.buffers.mean);
  const float* rstds = static_cast<const float*>(args.buffers.rstd);

  const auto copy = [&](int64_t row, int slot) {
    if (row < args.rows) {
      const T* from_x = x + row * args.cols;
      const D* from_dy = dy + row * args.cols;
      char* to = stages + StageAt<T, D>(slot, x_bytes);
      ForItems<kItems>(place, shape.items, [&](int, int i) {
        CopyAsync<kBytes>(to + i * kBytes, from_x + i * VEC);
        CopyAsync<kBeside>(to + x_bytes + i * kBeside, from_dy + i * VEC);
      });
    }
    CommitCopies();
  };
  for (int s = 0; s < shape.stages; ++s) copy(place.team + s * place.teams, s);
  float gamma[kItems][VEC];
  float dgamma[kItems][VEC] = {};
  float dbeta[kItems][VEC] = {};
  LoadGamma(args, place, gamma);
  const float inverse = 1.0f / static_cast<float>(args.cols);
  const auto mean_of = [&](int64_t row) {
    return means != nullptr && row < args.rows ? means[row] : 0.0f;
  };
  const auto rstd_of = [&](int64_t row) { return row < args.rows ? rstds[row] : 0.0f; };
  float next_mean = mean_of(place.team);
  float next_rstd = rstd_of(place.team);
  float old_means[kDelay + 1] = {};  // of the rows that are not finished yet, the newest first
  float old_rstds[kDelay + 1] = {};
  int slot = 0;      // of `row`
  int old_slot = 0;  // of the row whose sums are collected
  int parity = 0;

  // value(k, i, e, d): e = x - mean and dy of item k, vector i.
  const auto apply = [&](int64_t row, const GradientLine& line, float rstd, auto&& value) {
    T* to = dx + row * args.cols;
    ForItems<kItems>(place, shape.items, [&](int k, int i) {
      float e[VEC];
      float d[VEC];
      value(k, i, e, d);
      float out[VEC];
#pragma unroll
      for (int v = 0; v < VEC; ++v) {
        const float w = d[v] * gamma[k][v];
        out[v] = w * rstd + (line.offset - e[v] * line.slope);
        dgamma[k][v] += d[v] * (e[v] * rstd + line.xhat_offset);
        dbeta[k][v] += d[v];
      }
      if (args.buffers.dx != nullptr) StoreAs(to + i * VEC, out);
    });
  };
  const auto finish = [&](int64_t row, int at) {
    const float mean = old_means[kDelay];
    const float rstd = old_rstds[kDelay];
    if (threadIdx.x < 32) {
      float sums[kPostNumbers];
      Collect(args, row, sums);
      if (threadIdx.x == 0) {
        lines[at] = LineOf(args.formula, mean, rstd, sums[0], sums[1], sums[2], inverse);
      }
    }
    __syncthreads();
  };
  const auto apply_staged = [&](int64_t row, int at) {
    const float mean = old_means[kDelay];
    const float rstd = old_rstds[kDelay];
    const char* from = stages + StageAt<T, D>(old_slot, x_bytes);
    apply(row, lines[at], rstd, [&](int, int i, float (&e)[VEC], float (&d)[VEC]) {
      Unpack<T>(from + i * kBytes, e);
      Unpack<D>(from + x_bytes + i * kBeside, d);
#pragma unroll
      for (int v = 0; v < VEC; ++v) e[v] -= mean;
    });
    copy(row + shape.stages * place.teams, old_slot);
    old_slot = old_slot + 1 == shape.stages ? 0 : old_slot + 1;
  };
  const auto age = [&]() {
#pragma unroll
    for (int i = kDelay; i > 0; --i) {
      old_means[i] = old_means[i - 1];
      old_rstds[i] = old_rstds[i - 1];
    }
  };

  int64_t row = place.team;
  for (int step = 0; row < args.rows; ++step, row += place.teams) {
    const float mean = next_mean;
    const float rstd = next_rstd;
    age();
    old_means[0] = mean;
    old_rstds[0] = rstd;
    next_mean = mean_of(row + place.teams);
    next_rstd = rstd_of(row + place.teams);
    WaitForCopies(shape.stages - 1 - kDelay);
    const char* from = stages + StageAt<T, D>(slot, x_bytes);
    // A block keeps the row in registers; in a team, which needs them otherwise, it stays staged.
    constexpr bool kKeep = kTeam == Team::kBlock;
    float e[kKeep ? kItems : 1][VEC];
    float d[kKeep ? kItems : 1][VEC];
    float sums[3] = {0, 0, 0};
    ForItems<kItems>(place, shape.items, [&](int k, int i) {
      const int at = kKeep ? k : 0;
      Unpack<T>(from + i * kBytes, e[at]);
      Unpack<D>(from + x_bytes + i * kBeside, d[at]);
#pragma unroll
      for (int v = 0; v < VEC; ++v) {
        e[at][v] -= mean;
        const float w = d[at][v] * gamma[k][v];
        sums[0] += e[at][v];
        sums[1] += w;
        sums[2] += w * e[at][v];
      }
    });
    if constexpr (kKeep) copy(row + shape.stages * place.teams, slot);
    slot = slot + 1 == shape.stages ? 0 : slot + 1;
    // Two storages by turns: a thread may still read one when another is a row ahead.
    ShortBlockSum(sums, &storage[parity]);
    if constexpr (kTeam == Team::kBlock) {
      const GradientLine line =
          LineOf(args.formula, mean, rstd, sums[0], sums[1], sums[2], inverse);
      apply(row, line, rstd, [&](int k, int, float (&to_e)[VEC], float (&to_d)[VEC]) {
#pragma unroll
        for (int v = 0; v < VEC; ++v) {
          to_e[v] = e[k][v];
          to_d[v] = d[k][v];
        }
      });
    } else {
      if (threadIdx.x == 0) {
        PostToGrid(args.mail + row * shape.blocks + place.rank, sums);
      }
      if (step >= kDelay) {
        const int64_t old = row - kDelay * place.teams;
        finish(old, parity);
        apply_staged(old, parity);
      }
    }
    parity ^= 1;
  }
  if constexpr (kTeam == Team::kGrid) {
    for (int64_t old = row - kDelay * place.teams; old < row; old += place.teams) {
      age();
      if (old >= place.team) {
        finish(old, parity);
        apply_staged(old, parity);
      }
      parity ^= 1;
    }
  }
  WaitForCopies<0>();
  StoreSums(args, place, dgamma, args.dgamma);
  StoreSums(args, place, dbeta, args.dbeta);
}

template <typename T, typename D, int VEC>
BackwardRingPointer KernelFor(Team team) {
  return team == Team::kBlock ? RingKernel<T, D, VEC, Team::kBlock>
                              : RingKernel<T, D, VEC, Team::kGrid>;
}

template <typename T>
BackwardRingPointer KernelFor(const RingShape& shape) {
  return shape.vector == kVectorOf<T> ? KernelFor<T, T, kVectorOf<T>>(shape.team)
                                      : KernelFor<T, T, 4 / sizeof(T)>(shape.team);
}

BackwardRingPointer KernelFor(DType x, DType dy, const RingShape& shape) {
  if (shape.team == Team::kCluster) return BackwardClusterKernel(x, dy, shape);
  if (x != dy) {
    return dy == DType::kHalf ? KernelFor<float, __half, 4>(shape.team)
                              : KernelFor<float, __nv_bfloat16, 4>(shape.team);
  }
  if (x == DType::kFloat) return KernelFor<float>(shape);
  return x == DType::kHalf ? KernelFor<__half>(shape) : KernelFor<__nv_bfloat16>(shape);
}

RingShape ShapeOf(const BackwardPlan& plan, int64_t bytes) {
  const RowLayout& layout = plan.problem.geometry.rows;
  const int64_t size = SizeOf(plan.problem.x);
  return RingShapeOf(layout.rows, layout.cols,
                     {size, SizeOf(plan.problem.dy), SizeOf(plan.problem.dx)}, bytes / size,
                     {kBackwardNumbers, kBackwardNumbers,
                      bytes == 16 ? kBackwardClusterNumbers : kBackwardNumbers},
                     plan.device);
}

}  // namespace

RingShape BackwardRingShape(const BackwardPlan& plan) {
  const BackwardProblem& problem = plan.problem;
  const RowLayout& layout = problem.geometry.rows;
  const int64_t row_bytes = layout.cols * SizeOf(problem.x);
  RingShape none;
  none.blocks = 0;
  const bool mixed = MixedGradient(problem);
  if (problem.in_double() || problem.dx != problem.x || (problem.dy != problem.x && !mixed) ||
      row_bytes % (mixed ? 16 : 4) != 0) {
    return none;
  }
  RingShape out = ShapeOf(plan, row_bytes % 16 == 0 ? 16 : 4);
  if (out.blocks != 0 && out.team == Team::kCluster) {
    const BackwardRingPointer kernel = KernelFor(problem.x, problem.dy, out);
    const int64_t fit = ClustersThatFit(reinterpret_cast<const void*>(kernel), out);
    if (fit == 0) return none;
    out.teams = std::min(layout.rows, fit);
  }
  return out;
}

Status LaunchBackwardRowsRing(const BackwardPlan& plan, const RingShape& shape,
                              const BackwardBuffers& buffers, float* dgamma, float* dbeta,
                              void* mail, void* stream, bool* launched) {
  const BackwardProblem& problem = plan.problem;
  const RowLayout& layout = problem.geometry.rows;
  const int64_t bytes = shape.vector * SizeOf(problem.x);
  *launched = shape.blocks != 0 && AlignedTo(buffers.x, bytes) && AlignedTo(buffers.dy, bytes) &&
              AlignedTo(buffers.dx, bytes) && AlignedTo(buffers.gamma, bytes);
  if (!*launched) return Status();
  Arguments args = {};
  args.param = problem.param;
  args.formula = problem.formula;
  args.rows = layout.rows;
  args.cols = static_cast<int>(layout.cols);
  args.shape = shape;
  args.buffers = buffers;
  args.dgamma = dgamma;
  args.dbeta = dbeta;
  args.mail = static_cast<Post*>(mail);
  return LaunchRing("normalization gradient of long rows", KernelFor(problem.x, problem.dy, shape),
                    shape, layout.rows, mail, stream, args);
}

}  // namespace cuda
}  // namespace nv_norms
