// Columns of small samples: see columns_held.h.
#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/columns_held.cuh"
#include "kernels/cuda/held.cuh"
#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/resident.cuh"
#include "kernels/cuda/rows.cuh"

namespace nv_norms {
namespace cuda {
namespace {

// Vectors of a thread. Of a copy's speed on an H200, with eight and with 16, n x s x channels
// (groups): float32 637 x 49 x 256 (32) 0.90 and 0.99, 312 x 100 x 256 (256) 0.73 and 0.82, float16
// 1275 x 49 x 256 (256) 0.61 and 0.72; with 32 of 8 bytes 390 x 64 x 640 (32) 0.59 in place of
// 0.69.
constexpr int kMostItems = 16;
// But eight where all blocks run at once: float32 78 x 100 x 256 (32) 0.83 and 0.79, 312 x 25 x 64
// (64) with a leaky relu 1.00 and 0.80.
constexpr int kFewItems = 8;

// Of a block: where it has not more than 64 bytes of a position; more; where that ends within a
// sector of 32 bytes, with vectors of 16 bytes and of 8. By others -> by these: float32 30 x 1024 x
// 256 (32) with 256 threads 0.62 -> 0.78, 19 x 1600 x 256 (32) with 400 0.53 -> 0.55; 512 bytes:
// 434 x 144 x 128 (1) with 288 0.64 -> 0.56; 80 bytes: 25 x 484 x 640 (32) with 155 0.65 -> 0.68,
// 21 x 576 x 640 (32) with 180 0.60 -> 0.54; float16 77 x 324 x 640 (32) with 210 0.49 -> 0.62, 62
// x 400 x 640 (32) with 250 0.56 -> 0.55.
constexpr int kMostThreads = 288;
constexpr int kMostThreadsOfWide = 256;
constexpr int kMostThreadsOfRagged = 160;
constexpr int kMostThreadsOfRaggedShort = 224;

int MostThreads(const HeldColumnShape& shape, int64_t size) {
  const int64_t vector_bytes = shape.vector * size;
  const int64_t bytes = shape.vectors * vector_bytes;
  if (bytes % 32 != 0) return vector_bytes == 16 ? kMostThreadsOfRagged : kMostThreadsOfRaggedShort;
  return bytes > 64 ? kMostThreadsOfWide : kMostThreads;
}

struct Arguments {
  HeldColumnShape shape;
  ForwardProblem problem;
  ForwardBuffers buffers;
  float inverse;  // 1 / numbers of a group
};

// Of a part of a group: its mean, in two parts, and the squares about it.
struct Part {
  float high;
  float low;
  float squares;
};

// Of a group. y = ((x - shift) - low) * rstd * gamma + beta
struct Line {
  float shift;
  float low;
  float rstd;
  float unused;
};

template <typename X, typename Y, int VEC, int ITEMS, bool WHOLE, bool ACTIVATED>
__global__ void __launch_bounds__(kHeldColumnThreadBound, ITEMS >= 8 || VEC == 8 ? 1 : 2)
    HeldColumnsKernel(const __grid_constant__ Arguments args) {
  constexpr int PARTS = WHOLE ? 1 : VEC;  // of a vector
  extern __shared__ uint4 memory[];
  const HeldColumnShape& shape = args.shape;
  Part* const parts = reinterpret_cast<Part*>(memory);
  Line* const lines = reinterpret_cast<Line*>(
      memory + (shape.samples * shape.positions * shape.vectors * PARTS * 3 + 3) / 4);
  const int units = shape.by_chunks.Quotient(blockIdx.x);
  const int chunk = static_cast<int>(blockIdx.x) - units * shape.chunks;
  const int64_t first_sample = int64_t{units} * shape.samples;
  HeldColumnPlace place = HeldColumnPlace::Of<VEC>(shape, chunk);
  place.live = place.live && first_sample + place.sample < shape.n;
  const int64_t base = (first_sample + place.sample) * shape.s * shape.channels;
  const X* const x = static_cast<const X*>(args.buffers.x) + base;
  const int count = place.live ? shape.CountAt(place.position) : 0;
  const auto index = [&](int i) {
    return int64_t{place.position + i * shape.positions} * shape.channels + place.channel;
  };
  Bits<float, VEC> bits[ITEMS] = {};
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    if (i < count) {
      using C = Chunk<VEC * sizeof(X)>;
      C::Split(__ldcs(reinterpret_cast<const typename C::Type*>(x + index(i))), bits[i].words);
    }
  }
  // Two passes: the second one about the first one's mean, or nearly so.
  const bool center = args.problem.formula != Formula::kRms;
  const float inverse = 1.0f / static_cast<float>(max(1, count) * (WHOLE ? VEC : 1));
  float found[PARTS][3] = {};  // a Part
  if (center) {
    float pivot[VEC];
    ConvertBits<X>(bits[0], pivot);
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      if (i < count) {
        float values[VEC];
        ConvertBits<X>(bits[i], values);
#pragma unroll
        for (int v = 0; v < VEC; ++v) found[WHOLE ? 0 : v][0] += values[v] - pivot[WHOLE ? 0 : v];
      }
    }
    ForgetConverted<X>(bits);
#pragma unroll
    for (int v = 0; v < PARTS; ++v) found[v][0] = pivot[v] + found[v][0] * inverse;
  }
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    if (i < count) {
      float values[VEC];
      ConvertBits<X>(bits[i], values);
#pragma unroll
      for (int v = 0; v < VEC; ++v) {
        const int part = WHOLE ? 0 : v;
        const float e = values[v] - found[part][0];
        found[part][1] += e;
        found[part][2] += e * e;
      }
    }
  }
  ForgetConverted<X>(bits);
  if (place.sample < shape.samples) {
    float to_store[3 * PARTS];
#pragma unroll
    for (int v = 0; v < PARTS; ++v) {
      const float low = center ? found[v][1] * inverse : 0.0f;
      to_store[3 * v] = found[v][0];
      to_store[3 * v + 1] = low;
      to_store[3 * v + 2] = found[v][2] - (center ? found[v][1] * low : 0.0f);
    }
    StoreParts(reinterpret_cast<float*>(parts + place.PartAt(shape, PARTS)), to_store);
  }
  __syncthreads();
  float gamma[VEC];  // on their way while the groups' sums are taken
  float beta[VEC];
  if (place.live) {
    const int64_t param = (first_sample + place.sample) * shape.n_stride + place.channel;
    LoadParams<float, VEC>({}, args.problem.param, args.buffers.gamma, 0, param, 1, gamma);
    LoadParams<float, VEC>({}, args.problem.param, args.buffers.beta, 0, param, 0, beta);
  }
  // Of a group's parts, in a warp: about the mean of the first one, so that equal numbers have just
  // this mean, then about what that finds, as that part may be far from all others.
  ForHeldGroups(
      shape, [&](int at, int begin, int sample, int group, bool first, const auto& for_parts) {
        constexpr float kNumbers = WHOLE ? VEC : 1;  // of a vector, in a part
        const float high = parts[begin].high;
        float sum[1] = {0};
        for_parts([&](int part, int position) {
          const float mean = (parts[part].high - high) + parts[part].low;
          sum[0] += mean * (kNumbers * static_cast<float>(shape.CountAt(position)));
        });
        WarpSum(sum, shape.lanes);
        const float shift = high + sum[0] * args.inverse;
        float sums[2] = {0, 0};
        for_parts([&](int part, int position) {
          const float e = (parts[part].high - shift) + parts[part].low;
          const float weighted = e * (kNumbers * static_cast<float>(shape.CountAt(position)));
          sums[0] += weighted;
          sums[1] += parts[part].squares + e * weighted;
        });
        WarpSum(sums, shape.lanes);
        if (!first || first_sample + sample >= shape.n) return;
        const float low = sums[0] * args.inverse;
        float m2 = sums[1] - sums[0] * low;
        m2 = m2 < 0 ? 0.0f : m2;  // keeps NaN
        Line line;
        line.shift = shift + low;
        line.low = (shift - line.shift) + low;
        line.rstd = ShortInverseRoot(m2 * args.inverse + static_cast<float>(args.problem.epsilon));
        const int64_t stat =
            (first_sample + sample) * (shape.channels / shape.depth) + chunk * shape.groups + group;
        if (args.buffers.mean != nullptr) static_cast<float*>(args.buffers.mean)[stat] = line.shift;
        if (args.buffers.rstd != nullptr) static_cast<float*>(args.buffers.rstd)[stat] = line.rstd;
        if (args.problem.formula != Formula::kCenter) line.shift = line.low = 0;
        lines[at] = line;
      });
  __syncthreads();
  if (!place.live) return;
  float shift[PARTS];
  float scale[VEC];
  place.ForGroups<PARTS>(shape, [&](int v, int group) {
    const Line line = lines[place.sample * shape.groups + group];
    shift[v] = line.shift;
#pragma unroll
    for (int u = v; u < (WHOLE ? VEC : v + 1); ++u) {
      scale[u] = line.rstd * gamma[u];
      beta[u] -= line.low * scale[u];
    }
  });
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    if (i < count) {
      float values[VEC];
      ConvertBits<X>(bits[i], values);
#pragma unroll
      for (int v = 0; v < VEC; ++v) {
        values[v] = (values[v] - shift[WHOLE ? 0 : v]) * scale[v] + beta[v];
      }
      if constexpr (ACTIVATED) Activator<float>(args.problem.activation).Apply(values);
      StoreAs(static_cast<Y*>(args.buffers.y) + base + index(i), values);
    }
  }
}

using KernelPointer = void (*)(Arguments);

template <typename X, typename Y, int VEC, bool WHOLE, bool ACTIVATED>
KernelPointer KernelOf(int items) {
  if constexpr (VEC > 1) {
    if (items == 1) return HeldColumnsKernel<X, Y, VEC, 1, WHOLE, ACTIVATED>;
    if (items == 4) return HeldColumnsKernel<X, Y, VEC, 4, WHOLE, ACTIVATED>;
    if (items == 16) return HeldColumnsKernel<X, Y, VEC, 16, WHOLE, ACTIVATED>;
  }
  return HeldColumnsKernel<X, Y, VEC, 8, WHOLE, ACTIVATED>;
}

template <typename X, typename Y, bool ACTIVATED>
KernelPointer KernelOf(const HeldColumnShape& shape) {
  if (shape.vector == 1) return KernelOf<X, Y, 1, true, ACTIVATED>(shape.items);
  if constexpr (sizeof(X) == 2) {
    if (shape.vector == 8) return KernelOf<X, Y, 8, true, ACTIVATED>(shape.items);
  }
  return shape.whole ? KernelOf<X, Y, kHeldColumnVector, true, ACTIVATED>(shape.items)
                     : KernelOf<X, Y, kHeldColumnVector, false, ACTIVATED>(shape.items);
}

KernelPointer KernelFor(const ForwardProblem& problem, const HeldColumnShape& shape) {
  return ForwardKernelOf(problem.x, problem.y, [&](auto* x, auto* y) -> KernelPointer {
    using X = std::remove_pointer_t<decltype(x)>;
    using Y = std::remove_pointer_t<decltype(y)>;
    if constexpr (std::is_void_v<Y>) {
      return nullptr;
    } else {
      return Activated(problem) ? KernelOf<X, Y, true>(shape) : KernelOf<X, Y, false>(shape);
    }
  });
}

// Numbers that a thread reads at once. 16 bytes of 16 bits where groups are whole vectors of them:
// float16 488 x 64 x 256 in 32 groups 0.77 of a copy's speed, by 8 bytes 0.67; but in 256 groups
// 0.62 and 0.61, and the gradient 0.53 and 0.64.
int VectorOf(const ForwardProblem& problem, const HeldColumnLayout& layout,
             const ForwardBuffers& buffers) {
  const bool aligned = AlignedTo(buffers.x, kVectorBytes) && AlignedTo(buffers.y, kVectorBytes) &&
                       AlignedTo(buffers.gamma, kVectorBytes) &&
                       AlignedTo(buffers.beta, kVectorBytes);
  if (!aligned || layout.channels() % kHeldColumnVector != 0) return 1;
  return SizeOf(problem.x) == 2 && layout.depth % 8 == 0 ? 8 : kHeldColumnVector;
}

// Where groups end within vectors, others are faster for many positions of many channels in 16 bits
// or with ragged parts of a position: float32 30 x 1024 x 256 (256) 0.64 -> 0.70, 51 x 484 x 320
// (32) 0.68 -> 0.58; float16 244 x 256 x 256 (256) 0.61 -> 0.64, 192 x 324 x 256 (256) 0.62 ->
// 0.57; 2066 x 484 x 16 (16) 0.41 -> 0.71.
bool IsFaster(const ForwardProblem& problem, const HeldColumnShape& shape) {
  if (shape.threads == 0) return false;
  // 666666 x 12 with groups of 3: 0.28 -> 0.19.
  if (shape.s == 1 && (shape.vector == 1 || !shape.whole)) return false;
  const int64_t size = SizeOf(problem.x);
  if (shape.threads > MostThreads(shape, size)) return false;
  const bool ragged = shape.vectors * shape.vector * size % 32 != 0;
  return shape.whole || shape.chunks == 1 || shape.threads <= 128 || (size == 4 && !ragged);
}

int64_t BlocksOf(const HeldColumnShape& shape) {
  return CeilDiv(shape.n, shape.samples) * shape.chunks;
}

// Whether the blocks run at once, with 128 registers to a thread.
bool RunAtOnce(const HeldColumnShape& shape, const Device& device) {
  return BlocksOf(shape) <= int64_t{512 / shape.threads} * device.multiprocessors;
}

// threads = 0: others are faster.
HeldColumnShape ShapeOf(const ForwardPlan& plan, const ForwardBuffers& buffers) {
  const ForwardProblem& problem = plan.problem;
  const HeldColumnLayout layout = HeldColumnLayout::Of(problem.geometry);
  const int vector = VectorOf(problem, layout, buffers);
  const auto cut = [&](int items) {
    const HeldColumnShape shape = CutHeldColumns(layout, SizeOf(problem.x), vector, items,
                                                 kMostThreads, plan.device.multiprocessors);
    return IsFaster(problem, shape) ? shape : HeldColumnShape();
  };
  const HeldColumnShape most = cut(kMostItems);
  if (most.threads == 0 || most.items < kMostItems) return most;
  const HeldColumnShape few = cut(kFewItems);
  return few.threads != 0 && RunAtOnce(few, plan.device) ? few : most;
}

}  // namespace

Status LaunchForwardColumnsHeld(const ForwardPlan& plan, const ForwardBuffers& buffers, void*,
                                void* stream, bool* launched) {
  *launched = false;
  const ForwardProblem& problem = plan.problem;
  if (problem.in_double() || (problem.y != problem.x && problem.x != DType::kFloat)) {
    return Status();
  }
  Arguments args = {};
  args.shape = ShapeOf(plan, buffers);
  const HeldColumnShape& shape = args.shape;
  if (shape.threads == 0) return Status();
  args.problem = problem;
  args.buffers = buffers;
  args.inverse = 1.0f / static_cast<float>(problem.geometry.reduced);
  const KernelPointer kernel = KernelFor(problem, shape);
  const int64_t shared = Align16(shape.Parts() * static_cast<int64_t>(sizeof(Part))) +
                         int64_t{shape.samples} * shape.groups * static_cast<int64_t>(sizeof(Line));
  const char* const name = "normalization of columns that blocks hold";
  *launched = true;
  NV_NORMS_RETURN_IF_ERROR(AllowShared(kernel, shared, name));
  return LaunchKernel(name, kernel, static_cast<unsigned>(BlocksOf(shape)),
                      static_cast<unsigned>(shape.threads), static_cast<size_t>(shared), 1, stream,
                      args);
}

}  // namespace cuda
}  // namespace nv_norms
