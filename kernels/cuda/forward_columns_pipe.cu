// Instance and group norm, channels last, of tensors much larger than the chip. A block's warps
// have roles, so that memory reads and writes at the same time and nobody but the writers waits for
// an exchange: while writers normalize a unit out of shared memory, the next is being added up and
// the one after it is on its way. See columns_pipe.h.
#include <cooperative_groups.h>

#include <utility>

#include "kernels/cuda/pipe_loader.cuh"
#include "kernels/cuda/pipe_output.cuh"
#include "kernels/cuda/pipe_sums.cuh"

namespace nv_norms {
namespace cuda {
namespace {

template <typename X, typename Y, bool ACTIVATED>
__global__ void __launch_bounds__(kPipeThreads, 1)
    ForwardPipeKernel(const __grid_constant__ PipeShape shape,
                      const __grid_constant__ ForwardProblem problem, const ForwardBuffers buffers,
                      void* workspace) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ uint4 shared[];
  const PipePlaces pipe(shape, problem, buffers, shared, workspace);
  if (threadIdx.x == 0) pipe.Open();
  pipe.Clear();
  const auto grid = cooperative_groups::this_grid();
  auto cleared = grid.barrier_arrive();
  __syncthreads();  // the gates are open
  // All threads of the block come here once.
  const auto wait_for_all = [&] { grid.barrier_wait(std::move(cleared)); };
  const int warp = threadIdx.x / 32;
  static_assert(kWriters % kSummers == 0);
  if (warp == kLoader) {
    PipeLoader{pipe}.LoadStaying(wait_for_all);
  } else if (warp == kStreamer) {
    PipeLoader{pipe}.Stream(wait_for_all);
  } else if (warp >= kFirstSummer && warp < kFirstWriter) {
    PipeSummer<X>{pipe}.Sum(wait_for_all);
  } else {
    wait_for_all();
    if (warp >= kFirstWriter) {
      PipeWriter<X, Y, ACTIVATED>{pipe}.Write();
    } else if (warp >= kFirstFinisher) {
      PipeFinisher{pipe}.Finish();
    } else if (warp >= kFirstOwner) {
      PipeOwner{pipe}.AddUp();
    } else if (warp == kRereader && shape.streamed > 0) {
      PipeLoader{pipe}.Reread();
    }
  }
#endif
}

using PipeKernel = void (*)(PipeShape, ForwardProblem, ForwardBuffers, void*);

template <bool ACTIVATED>
PipeKernel PipeKernelOf(DType x, DType y) {
  if (x == DType::kFloat) {
    if (y == DType::kHalf) return ForwardPipeKernel<float, __half, ACTIVATED>;
    if (y == DType::kBfloat16) return ForwardPipeKernel<float, __nv_bfloat16, ACTIVATED>;
    return ForwardPipeKernel<float, float, ACTIVATED>;
  }
  if (x != y) return nullptr;
  if (x == DType::kHalf) return ForwardPipeKernel<__half, __half, ACTIVATED>;
  return ForwardPipeKernel<__nv_bfloat16, __nv_bfloat16, ACTIVATED>;
}

// Null: no kernel for these types.
PipeKernel PipeKernelFor(const ForwardProblem& problem) {
  if (problem.in_double()) return nullptr;
  return ActivatedOnChip(problem) ? PipeKernelOf<true>(problem.x, problem.y)
                                  : PipeKernelOf<false>(problem.x, problem.y);
}

bool Cut(const ForwardPlan& plan, PipeShape* shape) {
  const ForwardProblem& problem = plan.problem;
  return PipeKernelFor(problem) != nullptr &&
         CutPipe(problem.geometry.columns, plan.device, static_cast<int>(SizeOf(problem.x)),
                 static_cast<int>(SizeOf(problem.y)), PipeScratchBytes, shape);
}

}  // namespace

void PlanForwardColumnsPipe(ForwardPlan* plan) {
  PipeShape shape;
  if (Cut(*plan, &shape)) plan->workspace = std::max(plan->workspace, PipeMailBytes(shape));
}

Status LaunchForwardColumnsPipe(const ForwardPlan& plan, const ForwardBuffers& buffers,
                                void* workspace, void* stream, bool* launched) {
  PipeShape shape;
  *launched =
      Cut(plan, &shape) && AlignedTo(buffers.x, kVectorBytes) && AlignedTo(buffers.y, kVectorBytes);
  if (!*launched) return Status();
  const int64_t shared =
      int64_t{kTileVectors} * kVectorBytes * shape.slots + PipeScratchBytes(shape.columns);
  return LaunchTogether("normalization of columns in a pipe", PipeKernelFor(plan.problem),
                        shape.blocks * shape.groups, kPipeThreads, true, shared, stream, launched,
                        shape, plan.problem, buffers, workspace);
}

}  // namespace cuda
}  // namespace nv_norms
