// XLA's header for handlers outside of XLA. It defines classes of the same names as XLA's own
// libraries have, so ours stay hidden in our library. What it includes must not: it comes first.
#ifndef NV_NORMS_KERNELS_XLA_HANDLERS_FFI_H_
#define NV_NORMS_KERNELS_XLA_HANDLERS_FFI_H_

#include <stddef.h>
#include <stdint.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cassert>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <initializer_list>
#include <iostream>
#include <iterator>
#include <limits>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <ostream>
#include <sstream>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#pragma GCC visibility push(hidden)
#include "xla/ffi/api/ffi.h"
#pragma GCC visibility pop

#endif  // NV_NORMS_KERNELS_XLA_HANDLERS_FFI_H_
