// x is [rows, cols]. A team of blocks anywhere on the GPU, all of them resident, has a row at a
// time, whose numbers wait in shared memory for what the clerks find out; x is read once, gamma and
// beta stay in registers, or are the row's.
#include "kernels/cuda/clerks.cuh"
#include "kernels/cuda/forward_ring.cuh"
#include "kernels/cuda/warp_copies.cuh"

namespace nv_norms {
namespace cuda {
namespace {

// Parts of a row, N to a lane: the mean of each in two parts (x, y), the sum of squares about it
// (z), and how many numbers it has (w). The same of all together, in a warp; inverse = 1 / how many
// these are.
template <int N>
__device__ __forceinline__ float4 MergeParts(const float4 (&parts)[N], float inverse) {
  const float pivot = __shfl_sync(0xffffffffu, parts[0].x, 0);
  float mean[1] = {0};
#pragma unroll
  for (int i = 0; i < N; ++i) {
    mean[0] += parts[i].w == 0 ? 0.0f : parts[i].w * ((parts[i].x - pivot) + parts[i].y);
  }
  WarpSum(mean, 32);
  // The first part may be far from the mean, which is corrected.
  const float shift = pivot + mean[0] * inverse;
  float sums[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float step = (parts[i].x - shift) + parts[i].y;
    const float weighted = parts[i].w == 0 ? 0.0f : parts[i].w * step;
    sums[0] += weighted;
    sums[1] += parts[i].w == 0 ? 0.0f : parts[i].z + weighted * step;
  }
  WarpSum(sums, 32);
  const float low = sums[0] * inverse;
  const float m2 = sums[1] - sums[0] * low;
  return make_float4(shift, low, m2 < 0 ? 0.0f : m2, 0);  // keeps NaN
}

// What the team's blocks posted of a row, put together.
__device__ __forceinline__ float4 Collect(const ForwardRingArguments& args, int64_t row, int share,
                                          float inverse) {
  const int blocks = args.shape.blocks;
  float posts[kPostsOfLane][kPostNumbers];
  CollectPosts(args.mail + row * blocks, blocks, posts);
  float4 parts[kPostsOfLane];
#pragma unroll
  for (int i = 0; i < kPostsOfLane; ++i) {
    const int block = i * 32 + static_cast<int>(threadIdx.x) % 32;
    const int count = block < blocks ? max(0, min(share, args.cols - block * share)) : 0;
    parts[i] = make_float4(posts[i][0], posts[i][1], posts[i][2], static_cast<float>(count));
  }
  return MergeParts(parts, inverse);
}

// BULK: a warp's columns come in one copy, last to leave the L2 cache.
template <typename T, typename Y, int VEC, int NUMBERS, bool BY_ROW, bool BULK>
__global__ void __launch_bounds__(kTeamThreads<NUMBERS>, 1)
    TeamKernel(const __grid_constant__ ForwardRingArguments args) {
  extern __shared__ uint4 ring[];  // [stages][share], [lag + 1][threads] of float4
  __shared__ TeamDesk desk;
  constexpr int kItems = NUMBERS / VEC;
  constexpr int kBytes = VEC * sizeof(T);
  // Of 16 bits the sum of a thread's numbers is exact where their mean is large, and with it what
  // is lost when their mean is rounded. That of float32 is taken of x - pivot, so that equal
  // numbers have just this mean, and corrected.
  constexpr bool kPivot = sizeof(T) == 4;
  using Params = ForwardParams<BY_ROW, VEC, kItems>;
  const RingShape& shape = args.shape;
  const RingPlace place = PlaceOf<Team::kGrid, kItems>(shape, args.cols / VEC);
  const int stage_bytes = (shape.share * kBytes + 15) / 16 * 16;
  char* const stages = reinterpret_cast<char*>(ring);
  float4* const desk_sums = reinterpret_cast<float4*>(stages + shape.stages * stage_bytes);
  const T* x = static_cast<const T*>(args.buffers.x) + place.begin * VEC;
  Y* y = static_cast<Y*>(args.buffers.y) + place.begin * VEC;

  EmptyMail empty;
  if (shape.blocks > 1) empty.Begin(args.mail, args.rows * shape.blocks);
  using Copies = WarpCopies<kBulkCopies && BULK, kItems, kMostTeamStages>;
  __shared__ uint64_t gates[Copies::kGates];
  const bool clerk = IsClerk(shape);
  const Copies copies(gates, !clerk);
  // Row `step` of the team.
  const auto copy = [&](int step, int stage) {
    const int64_t row = RowOf(place, step);
    if (!clerk && row < args.rows) {
      const RowCopy<kBytes> source = {stages + stage * stage_bytes, x + row * args.cols};
      copies.Start(shape, place, stage, source);
    }
    copies.End();
  };
  for (int s = 0; s < shape.stages; ++s) copy(s, s);
  if (threadIdx.x == 0) OpenDesk(shape, &desk);
  empty.End();
  __syncthreads();

  if (clerk) {
    const float inverse = place.count > 0 ? 1.0f / static_cast<float>(place.count * VEC) : 0.0f;
    const float row_inverse = 1.0f / static_cast<float>(args.cols);
    Serve(
        shape, place, args.rows,
        [&](const Turn& turn) {
          float4 parts[kMostWorkerWarps];
          ReadSums(shape, desk, desk_sums, turn, parts);
          return MergeParts(parts, inverse);
        },
        [&](int64_t row, const float4& sums) {
          const float post[kPostNumbers] = {sums.x, sums.y, sums.z};
          if (threadIdx.x % 32 == 0) PostToGrid(args.mail + row * shape.blocks + place.rank, post);
        },
        [&](int64_t row) { return Collect(args, row, shape.share * VEC, row_inverse); },
        [&](int64_t row, int slot, const auto& of) {
          const typename Params::Row own = Params::Of(args, row);
          const float4 sums = of();
          const ForwardLine line =
              Params::Scaled(LineOf(args, row, sums.x, sums.y, sums.z * row_inverse,
                                    place.rank == 0 && threadIdx.x % 32 == 0),
                             own);
          LeaveLine(&desk, slot, {make_float4(line.shift, line.rstd, line.offset, 0), {}});
        });
    WaitForCopies<0>();
    return;
  }

  Params params;
  params.Load(args, place);
  const bool center = args.formula != Formula::kRms;  // the statistics, at least
  const int items = max(0, min(shape.items, (place.count - place.first + 31) / 32));
  const float numbers = static_cast<float>(items * VEC);
  const float inverse = items > 0 ? 1.0f / numbers : 0.0f;
  Turn turn;
  Turn stage;
  const int steps = StepsOf(place, args.rows);
  for (int step = 0; step < steps + shape.lag; ++step) {
    if (step < steps) {
      copies.Wait(stage.slot, stage.parity, shape.stages - 1 - min(step, shape.lag));
      const char* from = stages + stage.slot * stage_bytes;
      float values[kItems][VEC];
      ForItems<kItems>(place, shape.items,
                       [&](int k, int i, bool) { Unpack<T>(from + i * kBytes, values[k]); });
      float shift = 0;
      float sum = 0;
      if (center) {
        const float pivot = kPivot && items > 0 ? values[0][0] : 0.0f;
        float parts[4] = {0, 0, 0, 0};
        ForItems<kItems>(place, shape.items, [&](int k, int, bool) {
#pragma unroll
          for (int j = 0; j < VEC; ++j) {
            parts[(k * VEC + j) % 4] += kPivot ? values[k][j] - pivot : values[k][j];
          }
        });
        sum = (parts[0] + parts[1]) + (parts[2] + parts[3]);
        // Nothing is divided. Of a copy's speed, with a division and no `low`, and so: bfloat16
        // 1000 x 100000 0.87, 0.90, 4096 x 50000 0.82, 0.85, but 2048 x 131072 0.88, 0.86;
        // float16 the same, 0.89 at the last.
        shift = pivot + sum * inverse;
      }
      float parts[4] = {0, 0, 0, 0};
      ForItems<kItems>(place, shape.items, [&](int k, int, bool) {
#pragma unroll
        for (int j = 0; j < VEC; ++j) {
          const float v = values[k][j] - shift;
          if (kPivot) parts[(k * VEC + j) % 2] += v;
          parts[2 + (k * VEC + j) % 2] += v * v;
        }
      });
      float low = 0;
      float m2 = parts[2] + parts[3];
      // Times the inverse of a power of two is exact.
      if (center && (kPivot || !place.full || NUMBERS != 16)) {
        low = (kPivot ? parts[0] + parts[1] : fmaf(-numbers, shift, sum)) * inverse;
        m2 -= numbers * low * low;
      }
      WriteSums(shape, &desk, desk_sums, turn,
                make_float4(shift, low, m2 < 0 ? 0.0f : m2, numbers));  // keeps NaN
    }
    if (step >= shape.lag) {  // the row `lag` before is written
      const int old = step - shape.lag;
      Turn old_turn = turn;
      old_turn.Next(shape.lag + 1);  // the slot after this one's is the oldest
      WaitAt(desk.ready + old_turn.slot, old_turn.parity ^ 1);
      const float4 left = desk.lines[old_turn.slot].first;
      const ForwardLine line = {left.x, left.y, left.z};
      const int old_stage = stage.slot - shape.lag + (stage.slot < shape.lag ? shape.stages : 0);
      const char* from = stages + old_stage * stage_bytes;
      Y* to = y + RowOf(place, old) * args.cols;
      params.ForOutput(args, place, line, [&](int, int i, bool, const auto& apply) {
        float v[VEC];
        Unpack<T>(from + i * kBytes, v);
        apply(v);
        StoreAs(to + i * VEC, v);
      });
      copy(old + shape.stages, old_stage);
    }
    turn.Next(shape.lag + 1);
    stage.Next(shape.stages);
  }
  WaitForCopies<0>();
}

// Where bulk copies are faster. Of a copy's speed on an H200, without and with: bfloat16 10000 x
// 10000 0.91, 0.95, 1000 x 100000 0.85, 0.87, 2048 x 131072 0.87, 0.89; float32 2684 x 100000 0.92,
// 0.96, 13107 x 20480 0.91, 0.93, but 4096 x 5120, a block to a row, 0.94, 0.93; to bfloat16 10000
// x 10000 0.93, 0.96, but 1000 x 100000 0.94, 0.91.
template <typename T, typename Y>
bool InBulk(const RingShape& shape) {
  if (sizeof(T) == 2) return true;
  return (shape.blocks > 1) == std::is_same_v<T, Y>;
}

struct Kernels {
  template <typename T, typename Y, bool BY_ROW>
  static ForwardRingPointer Wide(const RingShape& shape) {
    return InBulk<T, Y>(shape) ? OfItems<T, Y, BY_ROW, true>(shape)
                               : OfItems<T, Y, BY_ROW, false>(shape);
  }
  template <typename T, typename Y, bool BY_ROW, bool BULK>
  static ForwardRingPointer OfItems(const RingShape& shape) {
    constexpr int kVector = kVectorOf<T>;
    if constexpr (BY_ROW) {
      if (shape.items * kVector == kTeamNumbersOwn) {
        return TeamKernel<T, Y, kVector, kTeamNumbersOwn, true, BULK>;
      }
    }
    return shape.items * kVector == 16 ? TeamKernel<T, Y, kVector, 16, BY_ROW, BULK>
                                       : TeamKernel<T, Y, kVector, kTeamNumbers, BY_ROW, BULK>;
  }
  template <typename T>
  static ForwardRingPointer Narrow() {
    return TeamKernel<T, T, 4 / sizeof(T), 16, false, false>;
  }
};

}  // namespace

ForwardRingPointer ForwardTeamKernel(DType x, DType y, bool by_row, const RingShape& shape) {
  return ForwardRingKernelFor<Kernels>(x, y, by_row, shape);
}

}  // namespace cuda
}  // namespace nv_norms
