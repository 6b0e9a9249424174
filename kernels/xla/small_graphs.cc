#include "kernels/xla/small_graphs.h"

#include <cstdlib>
#include <string>
#include <vector>

#include "xla/debug_options_flags.h"
#include "xla/tsl/util/command_line_flags.h"

namespace nv_norms {
namespace xla_call {
namespace {

constexpr char kFlag[] = "xla_gpu_graph_min_graph_size";
// Two was no faster on an H200, one on an H100 (benchmarks/results/2026-11-28-xla-graphs.md).
constexpr int kKernels = 3;

int InForce() { return xla::GetDebugOptionsFromFlags().xla_gpu_graph_min_graph_size(); }

bool UserChose() {
  const char* const flags = std::getenv("XLA_FLAGS");
  if (flags != nullptr && std::string(flags).find(kFlag) != std::string::npos) return true;
  // XLA_FLAGS may be the name of a file.
  return InForce() != xla::DefaultDebugOptionsIgnoringFlags().xla_gpu_graph_min_graph_size();
}

bool Allow() {
  if (UserChose() || InForce() <= kKernels) return false;
  std::vector<tsl::Flag> flags;
  xla::AppendDebugOptionsFlags(&flags);  // those of the process
  std::vector<std::string> wanted = {"--" + std::string(kFlag) + "=" + std::to_string(kKernels)};
  return tsl::Flags::Parse(wanted, flags);
}

}  // namespace

void AllowSmallGraphs() { [[maybe_unused]] static const bool allowed = Allow(); }

}  // namespace xla_call
}  // namespace nv_norms

extern "C" void NvNormsAllowSmallGraphs() { nv_norms::xla_call::AllowSmallGraphs(); }

extern "C" int NvNormsLeastGraph() { return nv_norms::xla_call::InForce(); }
