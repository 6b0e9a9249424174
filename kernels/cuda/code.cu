#include <initializer_list>

#include "kernels/cuda/code.h"

namespace nv_norms {
namespace cuda {
namespace {

// What nvcc compiles for, ascending, ten times as much: {800, 900}.
constexpr std::initializer_list<int> kArchitectures = {__CUDA_ARCH_LIST__};

// There is machine code for each, which runs on devices of the same major number, and PTX for the
// newest (third_party/cuda/cuda_objects.bzl).
constexpr int CodeAmong(std::initializer_list<int> architectures, int capability) {
  int code = 0;
  int newest = 0;
  for (int architecture : architectures) {
    newest = architecture / 10;
    if (newest <= capability && newest / 10 == capability / 10) code = newest;
  }
  return code == 0 && newest <= capability ? newest : code;
}

static_assert(CodeAmong({750, 800, 900}, 90) == 90);
static_assert(CodeAmong({750, 800, 900}, 89) == 80);
static_assert(CodeAmong({750, 800, 900}, 100) == 90);
static_assert(CodeAmong({800}, 90) == 80);              // PTX, without what 9.0 alone can do
static_assert(CodeAmong({900}, 80) == 0);               // the device is too old
static_assert(CodeAmong({900, 1000, 1200}, 110) == 0);  // between two: neither runs there

}  // namespace

int CodeFor(int capability) { return CodeAmong(kArchitectures, capability); }

std::string CompiledFor() {
  std::string text;
  for (int architecture : kArchitectures) {
    text += (text.empty() ? "" : ", ") + std::to_string(architecture / 100) + "." +
            std::to_string(architecture / 10 % 10);
  }
  return text;
}

}  // namespace cuda
}  // namespace nv_norms
