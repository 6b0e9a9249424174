// What XLA's headers name of highwayhash, so that they compile: the wheel has no copy of it. The
// one class with such a member (xla::HighwayHashPrinter) is neither made nor measured here.
#ifndef NV_NORMS_DECLARED_HIGHWAYHASH_HIGHWAYHASH_H_
#define NV_NORMS_DECLARED_HIGHWAYHASH_HIGHWAYHASH_H_

#define HH_TARGET_PREFERRED 0

namespace highwayhash {

template <int target>
class HighwayHashCatT {
 public:
  HighwayHashCatT() = delete;
};

}  // namespace highwayhash

#endif  // NV_NORMS_DECLARED_HIGHWAYHASH_HIGHWAYHASH_H_
