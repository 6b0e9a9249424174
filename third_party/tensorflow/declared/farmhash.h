// What TensorFlow's headers name of farmhash, declared and not defined: the wheel has no copy of
// it, TensorFlow's libraries have the code, and nothing here calls it.
#ifndef NV_NORMS_DECLARED_FARMHASH_H_
#define NV_NORMS_DECLARED_FARMHASH_H_

#include <cstddef>
#include <cstdint>
#include <utility>

namespace util {

using uint128_t = std::pair<uint64_t, uint64_t>;

uint32_t Fingerprint32(const char* data, size_t size);
uint64_t Fingerprint64(const char* data, size_t size);
uint128_t Fingerprint128(const char* data, size_t size);

inline uint64_t Uint128Low64(const uint128_t& value) { return value.first; }
inline uint64_t Uint128High64(const uint128_t& value) { return value.second; }

}  // namespace util

#endif  // NV_NORMS_DECLARED_FARMHASH_H_
