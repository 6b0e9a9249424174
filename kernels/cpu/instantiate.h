// NV_NORMS_INSTANTIATE(Forward, Rows): the templates of layouts.h for every type that loops run in.
#ifndef NV_NORMS_KERNELS_CPU_INSTANTIATE_H_
#define NV_NORMS_KERNELS_CPU_INSTANTIATE_H_

#include "kernels/cpu/layouts.h"

#define NV_NORMS_INSTANTIATE_AS(way, layout, T) \
  template void way##layout<T>(const way##Problem&, const way##Buffers&, const ParallelFor&);
#define NV_NORMS_INSTANTIATE(way, layout)        \
  NV_NORMS_INSTANTIATE_AS(way, layout, Half)     \
  NV_NORMS_INSTANTIATE_AS(way, layout, Bfloat16) \
  NV_NORMS_INSTANTIATE_AS(way, layout, float)    \
  NV_NORMS_INSTANTIATE_AS(way, layout, double)

#endif  // NV_NORMS_KERNELS_CPU_INSTANTIATE_H_
