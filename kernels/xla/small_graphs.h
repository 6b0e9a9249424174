#ifndef NV_NORMS_KERNELS_XLA_SMALL_GRAPHS_H_
#define NV_NORMS_KERNELS_XLA_SMALL_GRAPHS_H_

namespace nv_norms {
namespace xla_call {

// Has XLA make CUDA graphs of as few as three kernels in what it compiles from now on, in all of
// the process; by itself it wants five. Nothing changes where XLA_FLAGS says how many.
//
// A convolution is no part of a graph. Between two of them are a norm of XLA's, five to seven
// kernels, and two that prepare the weights: a graph. A fused op and those two were three launches,
// which cost the host more than the op saved the GPU (docs/architecture.md has the times).
void AllowSmallGraphs();

}  // namespace xla_call
}  // namespace nv_norms

// For the tests: the same, and how many kernels a graph has at least.
extern "C" void NvNormsAllowSmallGraphs();
extern "C" int NvNormsLeastGraph();

#endif  // NV_NORMS_KERNELS_XLA_SMALL_GRAPHS_H_
