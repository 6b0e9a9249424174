// x is [rows, cols]. A cluster of blocks has a row at a time, or one block whose warps work as
// those of a cluster do; x is read once, gamma and beta stay in registers, or are the row's.
#include "kernels/cuda/cluster_mail.cuh"
#include "kernels/cuda/forward_ring.cuh"
#include "kernels/cuda/warp_copies.cuh"

namespace nv_norms {
namespace cuda {
namespace {

// BULK: a warp's columns come in one copy, last to leave the L2 cache.
template <typename T, typename Y, int VEC, int NUMBERS, bool BY_ROW, bool BULK, bool RIM = false>
__global__ void __launch_bounds__(kRingThreads, 1)
    ClusterKernel(const __grid_constant__ ForwardRingArguments args) {
  extern __shared__ uint4 ring[];  // [stages][share], posts
  __shared__ uint64_t barriers[kMailSlots];
  constexpr int kItems = NUMBERS / VEC;
  constexpr int kBytes = VEC * sizeof(T);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  // The first sum is taken of x - pivot, so that equal numbers have just this mean. Sums of a few
  // thousand equal numbers of 16 bits are exact without.
  constexpr bool kPivot = sizeof(T) == 4;
  const RingShape& shape = args.shape;
  OpenMail(shape, barriers);
  const RowRim<RIM, VEC, VEC> rim(args.cols, shape.blocks);
  const RingPlace place = PlaceOf<Team::kCluster, kItems>(shape, rim.Vectors(args.cols));
  const int stage_bytes = (shape.share * kBytes + 15) / 16 * 16;
  char* const stages = reinterpret_cast<char*>(ring);
  const ClusterMail mail = MailOf(shape, place, stages + shape.stages * stage_bytes, barriers);
  const T* x = static_cast<const T*>(args.buffers.x) + rim.head + place.begin * VEC;
  Y* y = static_cast<Y*>(args.buffers.y) + rim.head + place.begin * VEC;

  using Copies = WarpCopies<kBulkCopies && BULK, kItems, kMostStages>;
  __shared__ uint64_t gates[Copies::kGates];
  const Copies copies(gates);
  const auto copy = [&](int64_t row, int slot) {
    if (row < args.rows) {
      const RowCopy<kBytes> source = {stages + slot * stage_bytes, x + row * args.cols};
      copies.Start(shape, place, slot, source);
    }
    copies.End();
  };
  for (int s = 0; s < shape.stages; ++s) copy(place.team + s * place.teams, s);
  using Params = ForwardParams<BY_ROW, VEC, kItems>;
  Params params;
  params.template Load<!RIM>(args, place, rim.head);
  const float rim_gamma = rim.LoadParam(args.param, args.buffers.gamma, 1);
  const float rim_beta = rim.LoadParam(args.param, args.buffers.beta, 0);
  const bool center = args.formula != Formula::kRms;  // the statistics, at least
  const int warp_first = place.first - lane;
  const int vectors = max(0, min(32 * shape.items, place.count - warp_first));
  // Of the warp's part of a row.
  const float numbers = static_cast<float>(vectors * VEC + rim.OfWarp());
  const float inverse = numbers > 0 ? 1.0f / numbers : 0.0f;
  const float row_inverse = 1.0f / static_cast<float>(args.cols);

  AwaitMail(shape);
  int slot = 0;  // of `row`
  unsigned parity = 0;
  int64_t row = place.team;
  for (unsigned step = 0;; ++step, row += place.teams) {
    const bool more = row < args.rows;
    const typename Params::Row own = Params::Of(args, step > 0 ? row - place.teams : row);
    // Of this row v - shift and its square; of the row before what the warps' means are from that
    // of the first. One round of shuffles adds up all three.
    float sums[3] = {0, 0, 0};
    float shift = 0;
    float rim_new[1];
    float rim_old[1];
    ConvertBits<T>(rim.Load(x + row * args.cols, more), rim_new);
    const Bits<float, 1> rim_bits = rim.Load(x + (row - place.teams) * args.cols, step > 0);
    if (more) {
      copies.Wait(slot, parity, shape.stages - 2);
      const char* from = stages + slot * stage_bytes;
      float values[kItems][VEC];
      values[0][0] = 0;  // of a warp without vectors
      ForItems<kItems>(place, shape.items,
                       [&](int k, int i, bool) { Unpack<T>(from + i * kBytes, values[k]); });
      if (center) {
        const float pivot = kPivot ? __shfl_sync(0xffffffffu, values[0][0], 0) : 0.0f;
        float parts[4] = {0, 0, 0, 0};
        ForItems<kItems>(place, shape.items, [&](int k, int, bool) {
#pragma unroll
          for (int j = 0; j < VEC; ++j) {
            parts[j % 4] += kPivot ? values[k][j] - pivot : values[k][j];
          }
        });
        if (rim.Has()) parts[0] += kPivot ? rim_new[0] - pivot : rim_new[0];
        float sum[1] = {(parts[0] + parts[1]) + (parts[2] + parts[3])};
        WarpSum(sum, 32);
        shift = kPivot ? pivot + sum[0] * inverse : (numbers > 0 ? sum[0] / numbers : 0.0f);
      }
      float parts[4] = {0, 0, 0, 0};
      ForItems<kItems>(place, shape.items, [&](int k, int, bool) {
#pragma unroll
        for (int j = 0; j < VEC; ++j) {
          const float v = values[k][j] - shift;
          parts[j % 2] += v;
          parts[2 + j % 2] += v * v;
        }
      });
      if (rim.Has()) {
        const float v = rim_new[0] - shift;
        parts[0] += v;
        parts[2] += v * v;
      }
      sums[0] = parts[0] + parts[1];
      sums[1] = parts[2] + parts[3];
    }
    const float4* posts = mail.Posts(step - 1);
    float first_mean = 0;
    if (step > 0) {
      WaitForPosts(mail, step - 1);
      first_mean = posts[0].x;
      for (int i = lane; i < mail.warps; i += 32) {
        const float4 post = posts[i];
        sums[2] += post.w * ((post.x - first_mean) + post.y);
      }
    }
    WarpSum(sums, 32);
    if (more) {
      // The warp's mean is shift + low.
      const float low = center ? sums[0] * inverse : 0.0f;
      const float m2 = center ? sums[1] - sums[0] * low : sums[1];
      // Float32 2048 x 131072 takes 0.54 ms if asked, 0.65 if not; bfloat16 0.39 and 0.37.
      PostToCluster(mail, step, shape.blocks, sizeof(T) == 4 ? WarpOfTeam() : mail.own,
                    make_float4(shift, low, m2 < 0 ? 0.0f : m2, numbers));  // keeps NaN
    }
    if (step > 0) {
      const int64_t old = row - place.teams;
      const int old_slot = slot == 0 ? shape.stages - 1 : slot - 1;
      const float mean = center ? sums[2] * row_inverse : 0.0f;  // from first_mean
      float m2[1] = {0};
      for (int i = lane; i < mail.warps; i += 32) {
        const float4 post = posts[i];
        const float away = ((post.x - first_mean) + post.y) - mean;
        m2[0] += post.z + post.w * away * away;
      }
      WarpSum(m2, 32);
      const float high = first_mean + mean;
      const ForwardLine line = LineOf(args, old, high, (first_mean - high) + mean,
                                      m2[0] * row_inverse, place.rank == 0 && threadIdx.x == 0);
      const char* from = stages + old_slot * stage_bytes;
      Y* to = y + old * args.cols;
      const auto store = [&](int, int i, bool, const auto& apply) {
        float v[VEC];
        Unpack<T>(from + i * kBytes, v);
        apply(v);
        StoreAs(to + i * VEC, v);
      };
      params.ForOutput(args, place, Params::Scaled(line, own), store);
      if (rim.Has()) {
        ConvertBits<T>(rim_bits, rim_old);
        rim_old[0] = ((rim_old[0] - line.shift) * line.rstd + line.offset) * rim_gamma + rim_beta;
        StoreAs(to + rim.at, rim_old);
      }
      copy(old + shape.stages * place.teams, old_slot);
    }
    if (!more) break;
    slot = slot + 1 == shape.stages ? 0 : slot + 1;
    parity ^= slot == 0 ? 1 : 0;
  }
  WaitForCopies<0>();
}

// Of rows of float32 that come in bulk. Of a copy's speed on an H200, without and with: 13107 x
// 20480 0.93, 0.94, 4096 x 24576 0.92, 0.94, but 4096 x 65536, eight blocks to a row, 0.92, 0.89,
// 2048 x 131072, sixteen, 0.95, 0.88; bfloat16 8192 x 32768 0.90, 0.74.
constexpr int kMostBulkBlocks = 4;

// Each number of items of usual types has a kernel of its own.
struct Kernels {
  template <typename T, typename Y>
  static ForwardRingPointer Rim(const RingShape&) {
    return ClusterKernel<T, Y, kVectorOf<T>, kForwardClusterRimNumbers, false, false, true>;
  }
  template <typename T, typename Y, bool BY_ROW>
  static ForwardRingPointer Wide(const RingShape& shape) {
    if constexpr (sizeof(T) == 4 && sizeof(Y) == 4) {
      if (shape.blocks <= kMostBulkBlocks) return OfItems<T, Y, BY_ROW, true>(shape);
    }
    return OfItems<T, Y, BY_ROW, false>(shape);
  }
  template <typename T, typename Y, bool BY_ROW, bool BULK>
  static ForwardRingPointer OfItems(const RingShape& shape) {
    constexpr int kVector = kVectorOf<T>;
    if constexpr (sizeof(Y) <= sizeof(T)) {
      if (shape.items * kVector == 16) return ClusterKernel<T, Y, kVector, 16, BY_ROW, BULK>;
      if (shape.items * kVector == 24) return ClusterKernel<T, Y, kVector, 24, BY_ROW, BULK>;
    }
    return ClusterKernel<T, Y, kVector, kForwardNumbers, BY_ROW, BULK>;
  }
  template <typename T>
  static ForwardRingPointer Narrow() {
    return ClusterKernel<T, T, 4 / sizeof(T), kForwardNarrowNumbers, false, false>;
  }
};

}  // namespace

ForwardRingPointer ForwardClusterKernel(DType x, DType y, bool by_row, const RingShape& shape) {
  return shape.rim ? RimKernelFor<ForwardRingPointer, Kernels>(x, y, shape)
                   : ForwardRingKernelFor<Kernels>(x, y, by_row, shape);
}

}  // namespace cuda
}  // namespace nv_norms
