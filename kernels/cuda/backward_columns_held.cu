// Gradients of columns of small samples: see columns_held.h.
#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/columns_held.cuh"
#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/resident.cuh"
#include "kernels/cuda/rows.cuh"

namespace nv_norms {
namespace cuda {
namespace {

// Of a block, of few channels, and else. Of a copy's speed on an H200, by others -> by these, n x s
// x channels (groups): float32 31 x 196 x 1280 (32) with 250 threads 0.55 -> 0.71, but 54 x 576 x
// 256 (256) with 288 0.55 -> 0.53; 159 x 784 x 64 (8) with 392 threads 0.50 -> 0.59, float16 488 x
// 1024 x 32 (8) with 512 0.39 -> 0.58.
constexpr int kMostThreads = 256;
constexpr int kMostThreadsOfFew = 512;
constexpr int kFew = 64;

struct Arguments {
  HeldColumnShape shape;
  BackwardProblem problem;
  BackwardBuffers buffers;
  float inverse;  // 1 / numbers of a group
  float* dgamma;  // sums [blocks of a chunk, channels], or of every sample, where wanted
  float* dbeta;
};

// What a group's dx needs beside its statistics, and dgamma.
struct Line {
  float offset;
  float slope;
  float xhat_offset;
  float unused;
};

// Sums of e = x - mean, of w = dy * gamma and of w * e, of every part of a group.
struct Parts {
  float* e;
  float* w;
  float* we;
};

// The block's sums over its samples, or of each, and positions, of all threads' in `sums`, [threads
// / vectors, channels].
template <int VEC>
__device__ __forceinline__ void StoreChannelSums(const HeldColumnShape& shape,
                                                 const HeldColumnPlace& place, int units, int chunk,
                                                 float* sums, const float (&values)[VEC],
                                                 float* to) {
  if (to == nullptr) return;
  const int channels = shape.vectors * VEC;
  const int kept = shape.n_stride == 0 ? 1 : shape.samples;  // rows of sums
  const int rows = shape.n_stride == 0 ? shape.samples * shape.positions : shape.positions;
  __syncthreads();
  if (place.sample < shape.samples) StoreParts(sums + place.PartAt(shape, VEC), values);
  __syncthreads();
  const int64_t end = min((int64_t{units} + 1) * kept, shape.n);
  for (int64_t i = int64_t{units} * kept; i < end; ++i, sums += rows * channels) {
    float* const row = to + i * shape.channels + chunk * channels;
    for (int c = static_cast<int>(threadIdx.x); c < channels; c += static_cast<int>(blockDim.x)) {
      float sum = 0;
      for (int r = 0; r < rows; ++r) sum += sums[r * channels + c];
      row[c] = sum;
    }
  }
}

template <typename X, typename D, int VEC, int ITEMS, bool WHOLE, Behind BEHIND>
__global__ void __launch_bounds__(kHeldColumnThreadBound)
    HeldColumnsKernel(const __grid_constant__ Arguments args) {
  constexpr int PARTS = WHOLE ? 1 : VEC;                                // of a vector
  constexpr bool kKeep = sizeof(X) == 4 && BEHIND != Behind::kNothing;  // what was derived
  LetNextKernelStart();
  extern __shared__ uint4 memory[];
  const HeldColumnShape& shape = args.shape;
  const int size = (shape.samples * shape.positions * shape.vectors * PARTS + 3) / 4 * 4;
  float* const floats = reinterpret_cast<float*>(memory);
  const Parts parts = {floats, floats + size, floats + 2 * size};
  Line* const lines = reinterpret_cast<Line*>(floats + 3 * size);
  const int units = shape.by_chunks.Quotient(blockIdx.x);
  const int chunk = static_cast<int>(blockIdx.x) - units * shape.chunks;
  const HeldColumnPlace place = HeldColumnPlace::Of<VEC>(shape, chunk);
  const int count = place.live ? shape.CountAt(place.position) : 0;
  const int stats = shape.channels / shape.depth;  // of a sample
  float gamma[VEC];
  float beta[VEC];
  float dgamma[VEC] = {};
  float dbeta[VEC] = {};
  int64_t first_sample = int64_t{units} * shape.rounds * shape.samples;
  if (place.live && first_sample + place.sample < shape.n) {
    const int64_t param = (first_sample + place.sample) * shape.n_stride + place.channel;
    LoadParams<float, VEC>({}, args.problem.param, args.buffers.gamma, 0, param, 1, gamma);
    if constexpr (BEHIND != Behind::kNothing) {
      LoadParams<float, VEC>({}, args.problem.param, args.buffers.beta, 0, param, 0, beta);
    }
  }
  for (int round = 0; round < shape.rounds && first_sample < shape.n;
       ++round, first_sample += shape.samples) {
    const int64_t sample = first_sample + place.sample;
    const bool live = place.live && sample < shape.n;
    const int64_t base = sample * shape.s * shape.channels + place.channel;
    const auto index = [&](int i) {
      return base + int64_t{place.position + i * shape.positions} * shape.channels;
    };
    Bits<float, VEC> x_bits[ITEMS] = {};
    Bits<float, VEC> dy_bits[ITEMS] = {};
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      if (live && i < count) {
        using C = Chunk<VEC * sizeof(X)>;
        using E = Chunk<VEC * sizeof(D)>;
        const int64_t at = index(i);
        C::Split(__ldcs(reinterpret_cast<const typename C::Type*>(
                     static_cast<const X*>(args.buffers.x) + at)),
                 x_bits[i].words);
        E::Split(__ldcs(reinterpret_cast<const typename E::Type*>(
                     static_cast<const D*>(args.buffers.dy) + at)),
                 dy_bits[i].words);
      }
    }
    float mean[PARTS] = {};
    float rstd[PARTS] = {};
    if (live) {
      const int64_t stat = sample * stats + chunk * shape.groups;
      place.ForGroups<PARTS>(shape, [&](int v, int group) {
        mean[v] = StoredMean<float>(args.buffers, DType::kFloat, stat + group);
        rstd[v] = static_cast<const float*>(args.buffers.rstd)[stat + group];
      });
    }
    // x - mean, and the gradient of what is before the activation.
    const auto read = [&](int i, bool again, float (&e)[VEC], float (&d)[VEC]) {
      ConvertBits<X>(x_bits[i], e);
      if (kKeep && again) {
        ConvertBits<float>(dy_bits[i], d);
      } else {
        ConvertBits<D>(dy_bits[i], d);
      }
#pragma unroll
      for (int v = 0; v < VEC; ++v) e[v] -= mean[WHOLE ? 0 : v];
      if (BEHIND != Behind::kNothing && !(kKeep && again)) {
        Activator<float> activator(args.problem.activation);
        activator.silu = BEHIND == Behind::kSilu;  // known to the compiler
        float t[VEC];
#pragma unroll
        for (int v = 0; v < VEC; ++v) {
          t[v] = fmaf(e[v], rstd[WHOLE ? 0 : v] * gamma[v], beta[v]);
        }
        activator.Derive(t, d);
        if constexpr (kKeep) {
#pragma unroll
          for (int v = 0; v < VEC; ++v) Word<float>::Put(d[v], dy_bits[i].words, v);
        }
      }
    };
    float e_sums[PARTS] = {};
    float w_sums[PARTS] = {};
    float we_sums[PARTS] = {};
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      if (live && i < count) {
        float e[VEC];
        float d[VEC];
        read(i, false, e, d);
#pragma unroll
        for (int v = 0; v < VEC; ++v) {
          const float w = d[v] * gamma[v];
          e_sums[WHOLE ? 0 : v] += e[v];
          w_sums[WHOLE ? 0 : v] += w;
          we_sums[WHOLE ? 0 : v] += w * e[v];
        }
      }
    }
    if (place.live) {
      const int at = place.PartAt(shape, PARTS);
      StoreParts(parts.e + at, e_sums);
      StoreParts(parts.w + at, w_sums);
      StoreParts(parts.we + at, we_sums);
    }
    __syncthreads();
    ForHeldGroups(shape, [&](int at, int, int in, int group, bool first, const auto& for_parts) {
      float sums[3] = {0, 0, 0};
      for_parts([&](int part, int) {
        sums[0] += parts.e[part];
        sums[1] += parts.w[part];
        sums[2] += parts.we[part];
      });
      WarpSum(sums, shape.lanes);
      if (!first || first_sample + in >= shape.n) return;
      const int64_t stat = (first_sample + in) * stats + chunk * shape.groups + group;
      const float its_mean = StoredMean<float>(args.buffers, DType::kFloat, stat);
      const float its_rstd = static_cast<const float*>(args.buffers.rstd)[stat];
      const GradientLine line =
          LineOf(args.problem.formula, its_mean, its_rstd, sums[0], sums[1], sums[2], args.inverse);
      lines[at] = {line.offset, line.slope, line.xhat_offset, 0};
    });
    __syncthreads();
    if (!live) continue;
    float offset[PARTS];
    float slope[PARTS];
    float xhat_offset[PARTS];
    place.ForGroups<PARTS>(shape, [&](int v, int group) {
      const Line line = lines[place.sample * shape.groups + group];
      offset[v] = line.offset;
      slope[v] = line.slope;
      xhat_offset[v] = line.xhat_offset;
    });
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      if (i < count) {
        float e[VEC];
        float d[VEC];
        read(i, true, e, d);
#pragma unroll
        for (int v = 0; v < VEC; ++v) {
          const int part = WHOLE ? 0 : v;
          dgamma[v] += d[v] * (e[v] * rstd[part] + xhat_offset[part]);
          dbeta[v] += d[v];
          d[v] = d[v] * gamma[v] * rstd[part] + (offset[part] - e[v] * slope[part]);
        }
        StoreAs(static_cast<X*>(args.buffers.dx) + index(i), d);
      }
    }
  }
  StoreChannelSums(shape, place, units, chunk, floats, dgamma, args.dgamma);
  StoreChannelSums(shape, place, units, chunk, floats, dbeta, args.dbeta);
}

using KernelPointer = void (*)(Arguments);

template <typename X, typename D, int VEC, bool WHOLE, Behind BEHIND>
KernelPointer KernelOf(int items) {
  if constexpr (VEC > 1) {
    if (items == 1) return HeldColumnsKernel<X, D, VEC, 1, WHOLE, BEHIND>;
    if (items == 4) return HeldColumnsKernel<X, D, VEC, 4, WHOLE, BEHIND>;
    if constexpr (sizeof(X) == 2) {
      if (items == 16) return HeldColumnsKernel<X, D, VEC, 16, WHOLE, BEHIND>;
    }
  }
  return HeldColumnsKernel<X, D, VEC, 8, WHOLE, BEHIND>;
}

template <typename X, typename D, Behind BEHIND>
KernelPointer KernelOf(const HeldColumnShape& shape) {
  constexpr int VEC = kHeldColumnVector;
  if (shape.vector == 1) return KernelOf<X, D, 1, true, BEHIND>(shape.items);
  return shape.whole ? KernelOf<X, D, VEC, true, BEHIND>(shape.items)
                     : KernelOf<X, D, VEC, false, BEHIND>(shape.items);
}

KernelPointer KernelFor(const BackwardProblem& problem, const HeldColumnShape& shape) {
  return BackwardKernelOf(problem, [&](auto* x, auto* dy, auto* dx) -> KernelPointer {
    using X = std::remove_pointer_t<decltype(x)>;
    using D = std::remove_pointer_t<decltype(dy)>;
    using Y = std::remove_pointer_t<decltype(dx)>;
    if constexpr (std::is_void_v<Y>) {
      return nullptr;
    } else {
      if (problem.activation.none()) return KernelOf<X, D, Behind::kNothing>(shape);
      return problem.activation.silu ? KernelOf<X, D, Behind::kSilu>(shape)
                                     : KernelOf<X, D, Behind::kRelu>(shape);
    }
  });
}

// Vectors of a thread. Float16, with eight and with 16: 244 x 256 x 256 (32) 0.56 and 0.67, 625 x
// 100 x 256 (256) 0.60 and 0.68, but of fewer positions in whole groups 217 x 144 x 512 (32) 0.60
// and 0.56.
int ItemsOf(const BackwardProblem& problem, const HeldColumnLayout& layout) {
  const bool more = layout.s > 144 || layout.depth % kHeldColumnVector != 0;
  return SizeOf(problem.x) == 2 && more ? 16 : 8;
}

// threads = 0: it does not suit. aligned: the tensors, to 16 bytes.
HeldColumnShape ShapeOf(const BackwardPlan& plan, bool aligned) {
  const BackwardProblem& problem = plan.problem;
  if (!HasGradientKernel(problem) || problem.dx != problem.x) return {};
  if (Activated(problem) && problem.formula != Formula::kCenter) return {};
  const HeldColumnLayout layout = HeldColumnLayout::Of(problem.geometry);
  const bool vectors = aligned && layout.channels() % kHeldColumnVector == 0;
  return CutHeldColumns(layout, SizeOf(problem.x), vectors ? kHeldColumnVector : 1,
                        ItemsOf(problem, layout),
                        vectors && layout.channels() <= kFew ? kMostThreadsOfFew : kMostThreads,
                        plan.device.multiprocessors);
}

int64_t PartialsOf(const HeldColumnShape& shape) {
  return CeilDiv(CeilDiv(shape.n, shape.samples), shape.rounds);
}

// Of dgamma, or dbeta.
int64_t SumsBytes(const HeldColumnShape& shape) {
  const int64_t rows = shape.n_stride == 0 ? PartialsOf(shape) : shape.n;
  return Align16(rows * shape.channels * static_cast<int64_t>(sizeof(float)));
}

}  // namespace

void PlanBackwardColumnsHeld(BackwardPlan* plan) {
  if (!plan->want_dx || !plan->want_params) return;
  const auto reserve = [&](const BackwardPlan& of) {
    for (const bool aligned : {false, true}) {
      const HeldColumnShape shape = ShapeOf(of, aligned);
      if (shape.threads != 0) plan->workspace = std::max(plan->workspace, 2 * SumsBytes(shape));
    }
  };
  reserve(*plan);
  // Where the activation has a pass of its own.
  if (Activated(plan->problem)) reserve(WithoutActivation(*plan));
}

Status LaunchBackwardColumnsHeld(const BackwardPlan& plan, const BackwardBuffers& buffers,
                                 void* workspace, void* stream, bool* launched) {
  *launched = false;
  const BackwardProblem& problem = plan.problem;
  if (buffers.dx == nullptr) return Status();
  const bool aligned = AlignedTo(buffers.x, kVectorBytes) && AlignedTo(buffers.dy, kVectorBytes) &&
                       AlignedTo(buffers.dx, kVectorBytes) &&
                       AlignedTo(buffers.gamma, kVectorBytes) &&
                       AlignedTo(buffers.beta, kVectorBytes);
  Arguments args = {};
  args.shape = ShapeOf(plan, aligned);
  const HeldColumnShape& shape = args.shape;
  if (shape.threads == 0) return Status();
  args.problem = problem;
  args.buffers = buffers;
  args.inverse = 1.0f / static_cast<float>(problem.geometry.reduced);
  char* const base = static_cast<char*>(workspace);
  if (buffers.dgamma != nullptr) args.dgamma = reinterpret_cast<float*>(base);
  if (buffers.dbeta != nullptr) args.dbeta = reinterpret_cast<float*>(base + SumsBytes(shape));
  const KernelPointer kernel = KernelFor(problem, shape);
  const int64_t sums = int64_t{shape.samples} * shape.positions * shape.vectors * shape.vector * 4;
  const int64_t shared = std::max(
      sums, 3 * Align16(shape.Parts() * static_cast<int64_t>(sizeof(float))) +
                int64_t{shape.samples} * shape.groups * static_cast<int64_t>(sizeof(Line)));
  const int64_t partials = PartialsOf(shape);
  const char* const name = "normalization gradient of columns that blocks hold";
  *launched = true;
  NV_NORMS_RETURN_IF_ERROR(AllowShared(kernel, shared, name));
  NV_NORMS_RETURN_IF_ERROR(LaunchKernel(
      name, kernel, static_cast<unsigned>(partials * shape.chunks),
      static_cast<unsigned>(shape.threads), static_cast<size_t>(shared), 1, stream, args));
  if (args.dgamma == nullptr && args.dbeta == nullptr) return Status();
  if (shape.n_stride != 0) {
    return LaunchFinish(problem, shape.n * shape.channels, buffers, args.dgamma, args.dbeta, 1,
                        plan.device, stream);
  }
  return LaunchFinish(problem, shape.channels, buffers, args.dgamma, args.dbeta, partials,
                      plan.device, stream);
}

}  // namespace cuda
}  // namespace nv_norms
