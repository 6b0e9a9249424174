// x is [rows, cols]. A cluster of blocks has a row at a time, or one block whose warps work as
// those of a cluster do; x and dy are read once, and gamma and the columns' sums for dgamma and
// dbeta stay in registers.
#include "kernels/cuda/backward_ring.cuh"
#include "kernels/cuda/cluster_mail.cuh"

namespace nv_norms {
namespace cuda {
namespace {

// D: of dy.
template <typename T, typename D, int VEC, int NUMBERS, bool BY_ROW, bool RIM>
__global__ void __launch_bounds__(kRingThreads, 1)
    ClusterKernel(const __grid_constant__ BackwardRingArguments args) {
  LetNextKernelStart();
  extern __shared__ uint4 ring[];  // [stages][x, dy][share], posts
  __shared__ uint64_t barriers[kMailSlots];
  constexpr int kItems = NUMBERS / VEC;
  constexpr int kBytes = VEC * sizeof(T);
  constexpr int kBeside = VEC * sizeof(D);
  const RingShape& shape = args.shape;
  OpenMail(shape, barriers);
  const RowRim<RIM, VEC, VEC> rim(args.cols, shape.blocks);
  const RingPlace place = PlaceOf<Team::kCluster, kItems>(shape, rim.Vectors(args.cols));
  const int x_bytes = StageXBytes<T, D, VEC>(shape);
  char* const stages = reinterpret_cast<char*>(ring);
  const ClusterMail mail =
      MailOf(shape, place, stages + StageAt<T, D>(shape.stages, x_bytes), barriers);
  const T* x = static_cast<const T*>(args.buffers.x) + rim.head + place.begin * VEC;
  const D* dy = static_cast<const D*>(args.buffers.dy) + rim.head + place.begin * VEC;
  T* dx = static_cast<T*>(args.buffers.dx) + rim.head + place.begin * VEC;
  const float* means = static_cast<const float*>(args.buffers.mean);
  const float* rstds = static_cast<const float*>(args.buffers.rstd);

  const auto copy = [&](int64_t row, int slot) {
    if (row < args.rows) {
      const T* from_x = x + row * args.cols;
      const D* from_dy = dy + row * args.cols;
      char* to = stages + StageAt<T, D>(slot, x_bytes);
      ForItems<kItems>(place, shape.items, [&](int, int i, bool) {
        CopyAsync<kBytes>(to + i * kBytes, from_x + i * VEC);
        CopyAsync<kBeside>(to + x_bytes + i * kBeside, from_dy + i * VEC);
      });
    }
    CommitCopies();
  };
  for (int s = 0; s < shape.stages; ++s) copy(place.team + s * place.teams, s);
  using Params = GradientParams<BY_ROW, VEC, kItems>;
  Params params;
  params.template Load<!RIM>(args, place, rim.head);
  RimGradient<T, D, RowRim<RIM, VEC, VEC>> of_rim(args, rim);
  const auto ask_rim = [&](int64_t row) {
    of_rim.Ask(x + row * args.cols, dy + row * args.cols, row >= 0 && row < args.rows);
  };
  const float inverse = 1.0f / static_cast<float>(args.cols);
  const auto mean_of = [&](int64_t row) {
    return means != nullptr && row < args.rows ? means[row] : 0.0f;
  };
  const auto rstd_of = [&](int64_t row) { return row < args.rows ? rstds[row] : 0.0f; };
  float mean = mean_of(place.team);
  float rstd = rstd_of(place.team);
  typename Params::Row own = Params::Of(args, place.team);
  float old_mean = 0;  // of the row before
  float old_rstd = 0;
  typename Params::Row old_own = own;

  AwaitMail(shape);
  int slot = 0;  // of `row`
  int64_t row = place.team;
  for (unsigned step = 0;; ++step, row += place.teams) {
    const bool more = row < args.rows;
    const float next_mean = mean_of(row + place.teams);
    const float next_rstd = rstd_of(row + place.teams);
    const typename Params::Row next_own = Params::Of(args, row + place.teams);
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
    // Of e = x - mean, w = dy * gamma and w * e: of this warp's part of the row, and of all posts
    // of the row before. One round of shuffles adds up all six.
    float sums[6] = {0, 0, 0, 0, 0, 0};
    ask_rim(row);
    if (more) {
      WaitForCopies(shape.stages - 2);
      const char* from = stages + StageAt<T, D>(slot, x_bytes);
      params.Sum(args, place, Params::Scale(rstd, own), own, load_of(from, mean), sums);
      of_rim.Take(mean);
      of_rim.Sum(sums);
    }
    ask_rim(row - place.teams);
    if (step > 0) {
      WaitForPosts(mail, step - 1);
      const float4* posts = mail.Posts(step - 1);
      for (int i = static_cast<int>(threadIdx.x) % 32; i < mail.warps; i += 32) {
        const float4 post = posts[i];
        sums[3] += post.x;
        sums[4] += post.y;
        sums[5] += post.z;
      }
    }
    WarpSum(sums, 32);
    if (more) {
      // Float32 2048 x 131072 takes 0.85 ms if asked, 0.80 if not, beside a dy in bfloat16 0.85 and
      // 0.73; bfloat16 10000 x 10000 0.230 and 0.236.
      PostToCluster(mail, step, shape.blocks, sizeof(T) == 2 ? WarpOfTeam() : mail.own,
                    make_float4(sums[0], sums[1], sums[2], 0));
    }
    if (step > 0) {
      const int64_t old = row - place.teams;
      const int old_slot = slot == 0 ? shape.stages - 1 : slot - 1;
      const GradientLine line = Params::Line(args, old, old_mean, old_rstd, old_own, sums + 3,
                                             inverse, place.rank == 0 && threadIdx.x == 0);
      const char* from = stages + StageAt<T, D>(old_slot, x_bytes);
      T* to = dx + old * args.cols;
      params.template Apply<true>(
          args, place, Params::Scale(old_rstd, old_own), old_own, line, load_of(from, old_mean),
          [&](int i, const float (&out)[VEC]) { StoreAs(to + i * VEC, out); });
      of_rim.Take(old_mean);
      of_rim.Apply(old_rstd, line, args.buffers.dx != nullptr, to);
      copy(old + shape.stages * place.teams, old_slot);
    }
    if (!more) break;
    slot = slot + 1 == shape.stages ? 0 : slot + 1;
    old_mean = mean;
    old_rstd = rstd;
    old_own = own;
    mean = next_mean;
    rstd = next_rstd;
    own = next_own;
  }
  WaitForCopies<0>();
  float* const dgamma = SumsOfTeam(args, place, args.dgamma);
  float* const dbeta = SumsOfTeam(args, place, args.dbeta);
  params.template Store<!RIM>(args, place, dgamma, dbeta, rim.head);
  of_rim.Store(dgamma, dbeta);
}

struct Kernels {
  // 8192 x 16381 float32 reached 0.80 of a copy's speed with 24 numbers to a thread, 0.72 with 16.
  template <typename T, typename D>
  static BackwardRingPointer Rim(const RingShape&) {
    return ClusterKernel<T, D, kVectorOf<T>, kBackwardClusterNumbers, false, true>;
  }
  template <typename T, typename D, bool BY_ROW>
  static BackwardRingPointer Wide(const RingShape& shape) {
    constexpr int kVector = kVectorOf<T>;
    return shape.items * kVector == kBackwardNumbers
               ? ClusterKernel<T, D, kVector, kBackwardNumbers, BY_ROW, false>
               : ClusterKernel<T, D, kVector, kBackwardClusterNumbers, BY_ROW, false>;
  }
  template <typename T>
  static BackwardRingPointer Narrow() {
    return ClusterKernel<T, T, 4 / sizeof(T), kBackwardNumbers, false, false>;
  }
};

}  // namespace

BackwardRingPointer BackwardClusterKernel(DType x, DType dy, bool by_row, const RingShape& shape) {
  return shape.rim ? RimKernelFor<BackwardRingPointer, Kernels>(x, dy, shape)
                   : BackwardRingKernelFor<Kernels>(x, dy, by_row, shape);
}

}  // namespace cuda
}  // namespace nv_norms
