// The kernels of one layout each. T: the type whose loops run; tensors of other types are converted
// on the way (convert.h).
#ifndef NV_NORMS_KERNELS_CPU_LAYOUTS_H_
#define NV_NORMS_KERNELS_CPU_LAYOUTS_H_

#include <cstdint>

#include "kernels/cpu/norms.h"
#include "kernels/cpu/types.h"

namespace nv_norms {
namespace cpu {

template <typename T>
void ForwardRows(const ForwardProblem&, const ForwardBuffers&, const ParallelFor&);
template <typename T>
void ForwardColumns(const ForwardProblem&, const ForwardBuffers&, const ParallelFor&);
// T: float or double
template <typename T>
void ForwardGeneral(const ForwardProblem&, const ForwardBuffers&, const ParallelFor&);

template <typename T>
void BackwardRows(const BackwardProblem&, const BackwardBuffers&, const ParallelFor&);
template <typename T>
void BackwardColumns(const BackwardProblem&, const BackwardBuffers&, const ParallelFor&);
// T: float or double
template <typename T>
void BackwardGeneral(const BackwardProblem&, const BackwardBuffers&, const ParallelFor&);

}  // namespace cpu
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CPU_LAYOUTS_H_
