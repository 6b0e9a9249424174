// See highwayhash.h.
#ifndef NV_NORMS_DECLARED_HIGHWAYHASH_HH_TYPES_H_
#define NV_NORMS_DECLARED_HIGHWAYHASH_HH_TYPES_H_

#include "highwayhash/highwayhash.h"

#endif  // NV_NORMS_DECLARED_HIGHWAYHASH_HH_TYPES_H_
