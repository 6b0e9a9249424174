// x is [rows, cols]. A block has a row at a time; x is read once, gamma and beta stay in registers,
// or are the row's. Teams of blocks are launched from here, too.
#include "kernels/cuda/far.cuh"
#include "kernels/cuda/forward_ring.cuh"
#include "kernels/cuda/tickets.cuh"
#include "kernels/cuda/warp_copies.cuh"

namespace nv_norms {
namespace cuda {
namespace {

using Arguments = ForwardRingArguments;

// ONCE: both sums in one pass, for 16 bits. RIM: see rim.cuh.
template <typename T, typename Y, int VEC, int NUMBERS, bool BY_ROW, bool ONCE, bool DRAWN,
          bool RIM>
__global__ void __launch_bounds__(kRingThreads, 1)
    RingKernel(const __grid_constant__ Arguments args) {
  extern __shared__ uint4 ring[];  // [stages][share]
  __shared__ BlockStorage<1, float> first_storage;
  __shared__ BlockStorage<2, float> second_storage[2];
  __shared__ BlockStorage<2, float> third_storage;
  constexpr int kItems = NUMBERS / VEC;
  constexpr int kBytes = VEC * sizeof(T);
  // The first sum is taken of x - pivot, so that equal numbers have just this mean, about which
  // squares are summed then. Sums of a few thousand equal numbers of 16 bits are exact without. One
  // pass goes about the mean of a row's first numbers, and once more where that is far from its
  // mean.
  constexpr bool kPivot = ONCE || sizeof(T) == 4;
  constexpr int kSample = ONCE ? 2 : 1;
  // Of a copy's speed without masks and with them (ForItems): bfloat16 60000 x 2200 0.87, 0.92,
  // 130000 x 1032 0.785, 0.80, with a rim 32768 x 4097 0.755, 0.80; but float32 131072 x 1001 0.88,
  // 0.79. Kernels of 32 numbers without a rim would spill registers.
  constexpr bool kMasked = sizeof(T) == 2 && (RIM || NUMBERS < kForwardNumbers);
  const RingShape& shape = args.shape;
  const RowRim<RIM, VEC> rim(args.cols, 1);
  const RingPlace place = PlaceOf<Team::kBlock, kItems>(shape, rim.Vectors(args.cols));
  const int stage_bytes = (shape.share * kBytes + 15) / 16 * 16;
  char* const stages = reinterpret_cast<char*>(ring);
  const T* x = static_cast<const T*>(args.buffers.x);
  Y* y = static_cast<Y*>(args.buffers.y);
  // Where a row's first whole vector is.
  const auto begin = [&](int64_t row) { return row * args.cols + rim.head; };

  using Copies = WarpCopies<kBulkCopies && kBytes == 16, kItems>;
  __shared__ uint64_t gates[Copies::kGates];
  const Copies copies(gates);
  RingTurn turn;
  // The next row of the turn.
  const auto copy = [&](int64_t row) {
    if (row < args.rows) {
      const RowCopy<kBytes> source = {stages + turn.Stage() * stage_bytes, x + begin(row)};
      copies.Start(shape, place, turn.Stage(), source);
    }
    copies.End();
    ++turn.rows;
  };
  for (int s = 0; s < kBlockStages; ++s) copy(RowOfBlock(s));
  turn.rows = 0;
  __shared__ int64_t kept_rows[DRAWN ? kRowsKept : 1];
  BlockRows<DRAWN> rows(args.tickets, kept_rows);
  if constexpr (DRAWN) __syncthreads();
  using Params = ForwardParams<BY_ROW, VEC, kItems>;
  Params params;
  params.template Load<!RIM>(args, place, rim.head);
  const float rim_gamma = rim.LoadParam(args.param, args.buffers.gamma, 1);
  const float rim_beta = rim.LoadParam(args.param, args.buffers.beta, 0);
  const bool center = args.formula != Formula::kRms;  // the statistics, at least
  const int numbers = RIM ? args.cols : place.count * VEC;
  const float inverse = numbers > 0 ? 1.0f / static_cast<float>(numbers) : 0.0f;
  // To lane 0 alone: what all lanes ask for the compiler keeps in a uniform register, for which the
  // warp waits at once.
  Bits<float, kSample> sample = {};
  const auto ask_for_pivot = [&](int64_t row) {
    const bool ask = kPivot && center && row < args.rows && threadIdx.x % 32 == 0;
    if (ask) LoadBits(x + begin(row), &sample);
  };
  const auto pivot_of_sample = [&] {
    if (!kPivot) return 0.0f;
    float first[kSample];
    ConvertBits<T>(sample, first);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kSample; ++i) sum += first[i];
    return __shfl_sync(0xffffffffu, sum * (1.0f / kSample), 0);
  };
  ask_for_pivot(RowOfBlock(0));
  Bits<float, 1> rim_coming = rim.Load(x + begin(RowOfBlock(0)), RowOfBlock(0) < args.rows);
  for (; rows.Current() < args.rows; rows.Advance()) {
    const int64_t row = rows.Current();
    copies.Wait(turn.Stage(), turn.Parity());
    const char* from = stages + turn.Stage() * stage_bytes;
    float kept[kItems][VEC];
    const float pivot = pivot_of_sample();
    ForItems<kItems, kMasked>(place, shape.items, [&](int k, int i, bool has) {
      Unpack<T>(from + i * kBytes, kept[k]);
#pragma unroll
      for (int j = 0; j < VEC; ++j) kept[k][j] = has ? kept[k][j] : pivot;
    });
    const typename Params::Row own = Params::Of(args, row);
    ask_for_pivot(rows.Next());
    float rim_kept[1];
    ConvertBits<T>(rim_coming, rim_kept);
    rim_coming = rim.Load(x + begin(rows.Next()), rows.Next() < args.rows);
    copy(rows.Coming());
    // Calls use(n, v) for this thread's numbers v of the row.
    const auto for_each = [&](const auto& use) {
      ForItems<kItems, kMasked>(place, shape.items, [&](int k, int, bool has) {
#pragma unroll
        for (int j = 0; j < VEC; ++j) use(k * VEC + j, kept[k][j], has);
      });
      if (rim.Has()) use(0, rim_kept[0], true);
    };

    // Subtracts `by` from the numbers; their sum, and that of their squares.
    const auto shift_by = [&](float by, float (&sums)[2]) {
      float parts[4] = {0, 0, 0, 0};
      for_each([&](int n, float& v, bool has) {
        v = ONCE || has ? v - by : 0.0f;
        parts[n % 2] += v;
        parts[2 + n % 2] += v * v;
      });
      sums[0] = parts[0] + parts[1];
      sums[1] = parts[2] + parts[3];
    };
    float shift = pivot;
    if (!ONCE && center) {
      float parts[4] = {0, 0, 0, 0};
      for_each([&](int n, float& v, bool) { parts[n % 4] += kPivot ? v - pivot : v; });
      float sum[1] = {(parts[0] + parts[1]) + (parts[2] + parts[3])};
      ShortBlockSum(sum, &first_storage);
      shift = kPivot ? pivot + sum[0] * inverse : sum[0] / static_cast<float>(numbers);
    }
    float sums[2];
    shift_by(shift, sums);
    rows.Draw();
    // Two storages by turns: a thread may still read one when another is a row ahead.
    ShortBlockSum(sums, &second_storage[turn.Stage()]);
    float low = 0;
    float m2 = sums[1];
    if (center) {
      const auto correct = [&] {
        low = sums[0] * inverse;
        m2 = sums[1] - sums[0] * low;
        m2 = m2 < 0 ? 0.0f : m2;  // keeps NaN
      };
      correct();
      if (ONCE && IsFar(sums, low, m2)) {
        shift += low;
        ForItems<kItems, kMasked>(place, shape.items, [&](int k, int i, bool has) {
          Bits<float, VEC> again;
          LoadBits(x + begin(row) + i * VEC, &again);
          ConvertBits<T>(again, kept[k]);
#pragma unroll
          for (int j = 0; j < VEC; ++j) kept[k][j] = has ? kept[k][j] : shift;
        });
        ConvertBits<T>(rim.Load(x + begin(row), true), rim_kept);
        shift_by(shift, sums);
        ShortBlockSum(sums, &third_storage);
        correct();
      }
    }
    ForwardLine line = LineOf(args, row, shift, low, m2 * inverse, threadIdx.x == 0);
    line.shift = 0;  // subtracted above
    Y* to = y + begin(row);
    params.template ForOutput<kMasked>(args, place, Params::Scaled(line, own),
                                       [&](int k, int i, bool has, const auto& apply) {
                                         apply(kept[k]);
                                         if (has) StoreAs(to + i * VEC, kept[k]);
                                       });
    if (rim.Has()) {
      rim_kept[0] = (rim_kept[0] * line.rstd + line.offset) * rim_gamma + rim_beta;
      StoreAs(to + rim.at, rim_kept);
    }
  }
  WaitForCopies<0>();
}

// Whether rows of 16 bits have one pass. What it saves, a sum over the block, is little where a
// block has few warps, and the first numbers are one more load: of 2^28 and of 2^24 bfloat16
// numbers rows of 768 columns took 272 and 23.6 us with two passes, 274 and 24.5 with one; 1024
// 269, 22.4 and 271, 23.1; 2048 269, 22.9 and 270, 23.3; 4096 277, 22.8 and 277, 23.6; but 1280
// 308, 27.7 and 280, 26.2; 2304 295, 25.9 and 272, 24.7; 3072 282, 24.9 and 271, 24.0; 12288
// 346, 28.9 and 278, 25.7.
bool InOnePass(const RingShape& shape) {
  const bool long_chain =
      shape.threads > 128 || (shape.threads > 32 && shape.items * shape.vector < 32);
  return shape.drawn || long_chain;
}

// Each number of items of usual types has a kernel of its own. Drawn rows are of usual types.
struct Kernels {
  // Of rows with a rim; types that are not usual have none.
  template <typename T, typename Y>
  static ForwardRingPointer Rim(const RingShape& shape) {
    return OfItems<T, Y, false, sizeof(T) == 2, false, true>(shape);
  }
  template <typename T, typename Y, bool BY_ROW>
  static ForwardRingPointer Wide(const RingShape& shape) {
    constexpr bool kHalf = sizeof(T) == 2;
    if constexpr (sizeof(Y) <= sizeof(T) && !(BY_ROW && kHalf)) {
      if (shape.drawn) return OfItems<T, Y, BY_ROW, kHalf, true>(shape);
    }
    if constexpr (kHalf) {
      if (InOnePass(shape)) return OfItems<T, Y, BY_ROW, true, false>(shape);
    }
    return OfItems<T, Y, BY_ROW, false, false>(shape);
  }
  template <typename T, typename Y, bool BY_ROW, bool ONCE, bool DRAWN, bool RIM = false>
  static ForwardRingPointer OfItems(const RingShape& shape) {
    constexpr int kVector = kVectorOf<T>;
    if constexpr (sizeof(Y) <= sizeof(T)) {
      if (shape.items * kVector == 16) {
        return RingKernel<T, Y, kVector, 16, BY_ROW, ONCE, DRAWN, RIM>;
      }
      if (shape.items * kVector == 24) {
        return RingKernel<T, Y, kVector, 24, BY_ROW, ONCE, DRAWN, RIM>;
      }
    }
    return RingKernel<T, Y, kVector, kForwardNumbers, BY_ROW, ONCE, DRAWN, RIM>;
  }
  template <typename T>
  static ForwardRingPointer Narrow() {
    return RingKernel<T, T, 4 / sizeof(T), kForwardNarrowNumbers, false, false, false, false>;
  }
};

ForwardRingPointer KernelFor(DType x, DType y, bool by_row, const RingShape& shape) {
  if (x == DType::kDouble) return nullptr;
  if (shape.team == Team::kCluster) return ForwardClusterKernel(x, y, by_row, shape);
  if (shape.team == Team::kGrid) return ForwardTeamKernel(x, y, by_row, shape);
  return shape.rim ? RimKernelFor<ForwardRingPointer, Kernels>(x, y, shape)
                   : ForwardRingKernelFor<Kernels>(x, y, by_row, shape);
}

// Whether rows are as these kernels have them; parameters of their own only in vectors of 16 bytes.
bool Suits(const ForwardProblem& problem) {
  const RowLayout& layout = problem.geometry.rows;
  if (problem.in_double()) return false;
  return layout.by_column() || (layout.by_row() && ByRowFits(layout, SizeOf(problem.x)));
}

// With a rim, numbers to a thread: bfloat16 131072 x 1001 0.81 of a copy's speed with up to 24,
// 0.73 with up to 32, 16384 x 8191 0.71 and 0.81; float32 16384 x 8191 0.89 and 0.91.
RingShape RimShapeOf(const ForwardPlan& plan) {
  const ForwardProblem& problem = plan.problem;
  const RowLayout& layout = problem.geometry.rows;
  const int64_t size = SizeOf(problem.x);
  const int most = layout.cols > (size == 2 ? 3584 : 6144) ? kForwardNumbers : 24;
  return RingShapeOf(layout.rows, layout.cols, {size, 0, SizeOf(problem.y)}, 16 / size,
                     {kForwardLeastNumbers, most, kForwardClusterRimNumbers, 0, 0, false, true},
                     plan.device);
}

RingShape ShapeOf(const ForwardPlan& plan, bool wide) {
  const RowLayout& layout = plan.problem.geometry.rows;
  const int64_t size = SizeOf(plan.problem.x);
  const int most = wide ? kForwardNumbers : kForwardNarrowNumbers;
  return RingShapeOf(layout.rows, layout.cols, {size, 0, SizeOf(plan.problem.y)},
                     (wide ? 16 : 4) / size,
                     {kForwardLeastNumbers, most, most, kTeamLeastNumbers,
                      layout.by_row() ? kTeamNumbersOwn : kTeamNumbers, layout.by_row()},
                     plan.device);
}

}  // namespace

RingShape ForwardRingShape(const ForwardPlan& plan) {
  const ForwardProblem& problem = plan.problem;
  if (Suits(problem) && problem.geometry.rows.cols * SizeOf(problem.x) % 16 == 0) {
    return ShapeOf(plan, true);
  }
  RingShape none;
  none.blocks = 0;
  return none;
}

// The most that any alignment of the tensors wants.
int64_t ForwardRingBytes(const ForwardPlan& plan) {
  const ForwardProblem& problem = plan.problem;
  const RowLayout& layout = problem.geometry.rows;
  if (!Suits(problem)) return 0;
  int64_t bytes = 0;
  for (const bool wide : {false, true}) {
    if (layout.cols * SizeOf(problem.x) % (wide ? 16 : 4) != 0) continue;
    if (!wide && layout.by_row()) continue;
    bytes = std::max(bytes, MailBytes(ShapeOf(plan, wide), layout.rows));
  }
  return bytes;
}

Status LaunchForwardRowsRing(const ForwardPlan& plan, const ForwardBuffers& buffers,
                             void* workspace, void* stream, bool* launched) {
  *launched = false;
  const ForwardProblem& problem = plan.problem;
  const RowLayout& layout = problem.geometry.rows;
  if (!Suits(problem)) return Status();
  const bool by_row = layout.by_row();
  const int64_t size = SizeOf(problem.x);
  const auto aligned = [&](int64_t bytes) {
    const int vector = static_cast<int>(bytes / size);
    return layout.cols * size % bytes == 0 && AlignedTo(buffers.x, bytes) &&
           AlignedTo(buffers.y, bytes) &&
           (by_row || (VectorAligned(buffers.gamma, problem.param, vector) &&
                       VectorAligned(buffers.beta, problem.param, vector)));
  };
  RingShape shape;
  ForwardRingPointer kernel = nullptr;
  const auto use = [&](const RingShape& found) {
    shape = found;
    if (shape.blocks == 0) return false;
    kernel = KernelFor(problem.x, problem.y, by_row, shape);
    if (kernel == nullptr) return false;
    if (shape.team != Team::kCluster) return true;
    const int64_t fit = ClustersThatFit(reinterpret_cast<const void*>(kernel), shape);
    shape.teams = std::min(layout.rows, fit);
    if (shape.rim) shape.teams = RimTeams(shape.teams, layout.cols, shape.vector);
    return shape.teams != 0;
  };
  const bool rim = !by_row && layout.cols * size % 16 != 0 && AlignedTo(buffers.x, 16) &&
                   AlignedTo(buffers.y, 16);
  const bool found = (rim && use(RimShapeOf(plan))) ||
                     (aligned(by_row ? 16 : 4) && use(ShapeOf(plan, aligned(16))));
  if (!found) return Status();
  Arguments args = {};
  args.param = problem.param;
  args.formula = problem.formula;
  args.epsilon = static_cast<float>(problem.epsilon);
  args.activation = problem.activation;
  args.own = RowsOwn::Of(layout);
  args.rows = layout.rows;
  args.cols = static_cast<int>(layout.cols);
  args.shape = shape;
  args.buffers = buffers;
  args.mail = static_cast<Post*>(workspace);
  args.tickets = static_cast<unsigned*>(workspace);
  const char* name = "normalization of long rows";
  if (shape.drawn) {
    NV_NORMS_RETURN_IF_ERROR(FromCuda(
        cudaMemsetAsync(args.tickets, 0, kTicketBytes, static_cast<cudaStream_t>(stream)), name));
  }
  return LaunchRing(name, kernel, shape, stream, launched, args);
}

}  // namespace cuda
}  // namespace nv_norms
