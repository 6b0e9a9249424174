// Answers that are looked for again and again: a plan is made for every launch, and a search among
// cuts takes up to 20 microseconds of the host, as long as a small norm.
#ifndef NV_NORMS_KERNELS_CUDA_KNOWN_H_
#define NV_NORMS_KERNELS_CUDA_KNOWN_H_

#include <cstddef>
#include <map>
#include <mutex>

namespace nv_norms {
namespace cuda {

// One that is static is never destroyed: threads may launch while the process ends.
template <typename Key, typename Value>
class Known {
 public:
  // Whether the answer to this question is known.
  bool Find(const Key& key, Value* value) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = map_.find(key);
    if (found == map_.end()) return false;
    *value = found->second;
    return true;
  }

  // Sizes may change with every step: of so many the old are forgotten.
  void Keep(const Key& key, const Value& value) {
    constexpr size_t kMost = 1024;
    std::lock_guard<std::mutex> lock(mutex_);
    if (map_.size() >= kMost) map_.clear();
    map_[key] = value;
  }

 private:
  std::mutex mutex_;
  std::map<Key, Value> map_;
};

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_KNOWN_H_
