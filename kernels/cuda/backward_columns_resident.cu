// Gradients of forward_columns_resident.cu's norms. See backward_columns_resident.cuh.
#include "kernels/cuda/backward_columns_resident.cuh"
#include "kernels/cuda/columns_sums.cuh"
#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/resident.cuh"

namespace nv_norms {
namespace cuda {
namespace {

BackwardKernel KernelFor(const BackwardProblem& problem, bool streaming, bool rows) {
  if (rows) return RowSumsKernelFor(problem, streaming);
  if (ActivatedOnChip(problem)) return ActivatedKernelFor(problem, streaming);
  return BackwardKernelOf(problem, [&](auto* x, auto* dy, auto* dx) -> BackwardKernel {
    using X = std::remove_pointer_t<decltype(x)>;
    using D = std::remove_pointer_t<decltype(dy)>;
    using Y = std::remove_pointer_t<decltype(dx)>;
    if (streaming) return BackwardResidentKernel<X, D, Y, true, false, false>;
    return BackwardResidentKernel<X, D, Y, false, false, false>;
  });
}

// Partial sums of dgamma, or of dbeta, where parameters belong to rows. They are summed up on the
// way to dx: a pass of their own over x and dy (columns_row_params.cu) took as long again. 64 x 96
// x 3136, dx, dgamma and dbeta, float32: 0.46 of the copy's speed, with that pass 0.34; float16
// 0.36 and 0.22.
int64_t RowPartialBytes(const StripShape& shape) {
  return Align16(int64_t{4} * shape.groups * shape.rows);
}

// Of the workspace, behind the exchange: sums of every channel of a sample, for dgamma and dbeta.
int64_t ChannelBytes(const ColumnLayout& layout) {
  return Align16(layout.n * layout.channels() * static_cast<int64_t>(sizeof(ChannelSums)));
}

}  // namespace

void PlanBackwardColumnsResident(BackwardPlan* plan) {
  const BackwardProblem& problem = plan->problem;
  if (!HasGradientKernel(problem) || !plan->want_dx) return;
  if (ActivatedInColumns(problem) && !ActivatedOnChip(problem)) return;
  const ColumnLayout& layout = problem.geometry.columns;
  const int size = static_cast<int>(SizeOf(problem.x));
  const auto cut = [&](bool rows) {
    const auto kernel = [&](bool streaming) {
      return reinterpret_cast<const void*>(KernelFor(problem, streaming, rows));
    };
    return CutStrips(layout, plan->device, size, BesideOf(problem), kGradientNumbers,
                     GradientColumnBytes(ActivatedOnChip(problem)), rows, kernel, &plan->strips);
  };
  const bool rows = layout.s_stride != 0 && plan->want_params && problem.dx == problem.x;
  if (!(rows && cut(true)) && !cut(false)) return;
  const StripShape shape = ShapeOf(layout, size, plan->strips);
  const int64_t params = shape.row_items > 0
                             ? 2 * RowPartialBytes(shape)
                             : Align16(XhatLineBytes(problem)) + RowParamsBytes(*plan);
  plan->workspace = std::max(
      plan->workspace, ExchangeBytes<kGradientNumbers>(shape) + ChannelBytes(layout) + params);
}

Status LaunchBackwardColumnsResident(const BackwardPlan& plan, const BackwardBuffers& buffers,
                                     void* workspace, void* stream, bool* launched) {
  const BackwardProblem& problem = plan.problem;
  *launched = plan.strips.fold > 0 && buffers.dx != nullptr && AlignedTo(buffers.x, kVectorBytes) &&
              AlignedTo(buffers.dy, kVectorBytes) && AlignedTo(buffers.dx, kVectorBytes);
  if (!*launched) return Status();
  const ColumnLayout& layout = problem.geometry.columns;
  const StripShape shape = ShapeOf(layout, static_cast<int>(SizeOf(problem.x)), plan.strips);
  char* const sums = static_cast<char*>(workspace) + ExchangeBytes<kGradientNumbers>(shape);
  char* const rest = sums + ChannelBytes(layout);
  auto* lines = reinterpret_cast<XhatLine<float>*>(rest);
  const bool params = buffers.dgamma != nullptr || buffers.dbeta != nullptr;
  const bool rows = shape.row_items > 0;
  // A kernel more takes 2 us: 1 x 64^2 x 256 13.0 us, without the parameters' gradients 10.8.
  const bool whole = params && layout.s_stride == 0 && (layout.n == 1 || layout.n_stride != 0);
  GradientOutputs outputs = {};
  outputs.whole = whole;
  if (params && rows) {
    outputs.dgamma = reinterpret_cast<float*>(rest);
    outputs.dbeta = reinterpret_cast<float*>(rest + RowPartialBytes(shape));
  } else if (params && !whole) {
    outputs.lines = lines;
    if (layout.s_stride == 0) outputs.sums = reinterpret_cast<ChannelSums*>(sums);
  }
  NV_NORMS_RETURN_IF_ERROR(LaunchResident(
      "normalization gradient of resident columns", KernelFor(problem, shape.streaming, rows),
      shape.blocks * shape.groups, shape.blocks > 1, plan.strips.shared, stream, launched, shape,
      problem, buffers, outputs, workspace));
  if (!*launched || !params || whole) return Status();
  if (rows) {
    return LaunchFinish(problem, layout.s, buffers, outputs.dgamma, outputs.dbeta, shape.groups,
                        plan.device, stream);
  }
  if (layout.s_stride != 0) {
    return LaunchRowParams(plan, buffers, lines, rest + Align16(XhatLineBytes(problem)), stream);
  }
  return LaunchColumnParams(layout, problem.dparam, 1, outputs.sums, lines, buffers, stream);
}

}  // namespace cuda
}  // namespace nv_norms
