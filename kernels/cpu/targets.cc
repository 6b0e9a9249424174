#include "kernels/cpu/targets.h"

#include <cstdlib>
#include <cstring>
#include <string>

#include "kernels/cpu/cache.h"
#include "kernels/cpu/kernels.h"

namespace nv_norms {
namespace cpu {
namespace {

constexpr char kVariable[] = "NV_NORMS_CPU_TARGET";
constexpr int kMaxTargets = 4;

// What this CPU can run, the best first; how many.
int Usable(Target* out) {
  int count = 0;
#if NV_NORMS_X86_TARGETS
  __builtin_cpu_init();
  const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                  __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  if (v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
#if NV_NORMS_X86_BFLOAT16
    if (__builtin_cpu_supports("avx512bf16")) {
      out[count++] = {"avx512bf16", &avx512bf16::Tables()};
    }
#endif
    out[count++] = {"avx512", &avx512::Tables()};
  }
  // Every CPU with AVX2 has F16C.
  if (v3) out[count++] = {"avx2", &avx2::Tables()};
#endif
  out[count++] = {"baseline", &baseline::Tables()};
  return count;
}

struct Choice {
  Target target;
  Status status;
};

Status Expected(const char* variable, const std::string& found, const std::string& expected) {
  return Status::InvalidArgument(variable + (" is \"" + found) + "\", expected " + expected);
}

Status PrefetchStatus() {
  const std::string wanted = WantedPrefetch();
  if (wanted.empty() || wanted == "stores" || wanted == "passes") return Status();
  return Expected(kPrefetchVariable, wanted, "stores or passes");
}

Choice Choose() {
  Target usable[kMaxTargets];
  const int count = Usable(usable);
  Choice out;
  out.target = usable[0];
  out.status = PrefetchStatus();
  const char* wanted = std::getenv(kVariable);
  if (wanted == nullptr || *wanted == '\0') return out;
  std::string names;
  for (int i = 0; i < count; ++i) {
    if (std::strcmp(usable[i].name, wanted) == 0) {
      out.target = usable[i];
      return out;
    }
    names += (i == 0 ? "" : ", ") + std::string(usable[i].name);
  }
  out.status = Expected(kVariable, wanted, "one that this CPU can run: " + names);
  return out;
}

const Choice& Chosen() {
  static const Choice* const choice = new Choice(Choose());
  return *choice;
}

}  // namespace

const Status& TargetStatus() { return Chosen().status; }
const Target& ChosenTarget() { return Chosen().target; }

template <>
const Kernels<Half>& KernelsFor<Half>() {
  return ChosenTarget().tables->half;
}
template <>
const Kernels<Bfloat16>& KernelsFor<Bfloat16>() {
  return ChosenTarget().tables->bfloat16;
}
template <>
const Kernels<float>& KernelsFor<float>() {
  return ChosenTarget().tables->single;
}
template <>
const Kernels<double>& KernelsFor<double>() {
  return ChosenTarget().tables->wide;
}

}  // namespace cpu
}  // namespace nv_norms
