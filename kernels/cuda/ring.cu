#include <map>
#include <mutex>
#include <tuple>

#include "kernels/cuda/ring.cuh"

namespace nv_norms {
namespace cuda {
namespace {

constexpr int64_t kReservedShared = 4096;  // of a block: storage of its sums, and the system's
constexpr int kMostStages = 6;             // WaitForCopies knows no more

int64_t RoundUp(int64_t value, int64_t unit) { return CeilDiv(value, unit) * unit; }

}  // namespace

RingShape RingShapeOf(int64_t rows, int64_t cols, int64_t size, int64_t vector, int least_numbers,
                      int numbers, int tensors, const Device& device) {
  RingShape out;
  out.vector = static_cast<int>(vector);
  const int64_t vectors = cols / vector;
  const int64_t items = numbers / vector;
  const int64_t most_share = kRingThreads * items;
  const int64_t most_shared = device.shared_bytes - kReservedShared;
  const int64_t multiprocessors = device.multiprocessors;
  const auto stage_bytes = [&](int64_t share) {
    return RoundUp(share * vector * size, 16) * tensors;
  };
  const auto set = [&](Team team, int64_t blocks, int64_t share, int64_t least_stages) {
    out.team = team;
    out.blocks = static_cast<int>(blocks);
    out.share = static_cast<int>(share);
    // As many warps at work on a multiprocessor as possible, each with as many numbers as possible.
    double most_busy = 0;
    for (int n = team == Team::kBlock ? least_numbers : numbers; n <= numbers; n += 8) {
      int64_t warps = CeilDiv(share, 32 * n / vector);
      if (warps > 1) warps = RoundUp(warps, 2);
      if (warps > kRingThreads / 32) continue;
      const double busy =
          static_cast<double>(kRingThreads / 32 / warps) * static_cast<double>(share) / n;
      if (busy < most_busy) continue;
      most_busy = busy;
      out.items = static_cast<int>(n / vector);
      out.threads = static_cast<int>(32 * warps);
    }
    int64_t stages = least_stages;
    if (team != Team::kBlock) {
      const int64_t resident = team == Team::kGrid ? 1 : kRingThreads / out.threads;
      stages = std::min<int64_t>(
          kMostStages, (most_shared / resident - (resident - 1) * 1024) / stage_bytes(share));
    }
    out.stages = static_cast<int>(stages);
    out.shared = stages * stage_bytes(share);
    return stages >= least_stages && out.shared <= most_shared;
  };
  const int64_t line = 128 / (vector * size);  // vectors
  const auto share_of = [&](int64_t blocks) { return RoundUp(CeilDiv(vectors, blocks), line); };
  const bool few = rows * CeilDiv(vectors, most_share) <= multiprocessors / 2 && cols > 8192;
  if (vectors <= most_share && !few && set(Team::kBlock, 1, vectors, 2)) {
    const int64_t resident =
        std::min<int64_t>(kRingThreads / out.threads,
                          (most_shared + kReservedShared) / (out.shared + kReservedShared / 2));
    out.teams = std::min(rows, std::max<int64_t>(1, resident) * multiprocessors);
    // Multiprocessors are not equally fast: more teams than are resident share out the rows as they
    // go, of which each has four or more. 32768 x 4096 float32 reached 0.91 of a copy's speed with
    // 1 wave of teams, 0.93 with 8, 0.955 with 16; 16384 x 16384, a block to a multiprocessor, 0.89
    // with 1 and 0.915 with 4. The gradient's sums are a team's: 0.94 with 1, 0.92 with 2.
    if (tensors == 1) {
      const int64_t waves = rows / out.teams / (resident > 1 ? 4 : 32);
      out.teams *= std::max<int64_t>(1, std::min<int64_t>(16, waves));
    }
    return out;
  }
  if (device.capability >= 90 && !few) {
    // Blocks of 256 threads, two to a multiprocessor, of which one works while the other waits:
    // 8192 x 32768 float32 reached 0.72 of a copy's speed with 2 blocks to a row, 0.77 with 4, 0.81
    // with 8; 2048 x 131072 0.76 with 8 and 0.80 with 16. The gradient, 16384 x 16384: 0.83, 0.88,
    // 0.915.
    const struct {
      int64_t blocks;
      int64_t most;
    } choices[] = {{8, most_share / 2}, {16, most_share / 2}, {8, most_share}, {16, most_share}};
    for (const auto& choice : choices) {
      const int64_t share = share_of(choice.blocks);
      if (share <= choice.most && set(Team::kCluster, choice.blocks, share, 3)) {
        out.teams = std::min(rows, kRingThreads / out.threads * multiprocessors / choice.blocks);
        return out;
      }
    }
  }
  // Of the numbers of teams, the one that takes the least time if a row's is 1 / blocks.
  out.blocks = 0;
  double least = 0;
  for (int64_t teams = 1; teams <= std::min(rows, multiprocessors); ++teams) {
    const int64_t blocks = multiprocessors / teams;
    if (blocks > kMaxTeamGrid) continue;
    RingShape before = out;
    if (share_of(blocks) > most_share || !set(Team::kGrid, blocks, share_of(blocks), 4)) {
      out = before;
      continue;
    }
    const double time = static_cast<double>(CeilDiv(rows, teams)) / static_cast<double>(blocks);
    if (before.blocks != 0 && least < time) {
      out = before;
      continue;
    }
    least = time;
    out.teams = teams;
  }
  return out;
}

int64_t ClustersThatFit(const void* kernel, const RingShape& shape) {
  static std::mutex mutex;
  static std::map<std::tuple<int, const void*, int, int64_t, int>, int64_t> known;
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return 0;
  const auto key = std::make_tuple(device, kernel, shape.blocks, shape.shared, shape.threads);
  std::lock_guard<std::mutex> lock(mutex);
  const auto found = known.find(key);
  if (found != known.end()) return found->second;
  cudaLaunchAttribute attribute[1];
  attribute[0].id = cudaLaunchAttributeClusterDimension;
  attribute[0].val.clusterDim.x = shape.blocks;
  attribute[0].val.clusterDim.y = 1;
  attribute[0].val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(shape.blocks));
  config.blockDim = dim3(static_cast<unsigned>(shape.threads));
  config.dynamicSmemBytes = static_cast<size_t>(shape.shared);
  config.attrs = attribute;
  config.numAttrs = 1;
  int fit = 0;
  if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(shape.shared)) != cudaSuccess ||
      cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed,
                           shape.blocks > 8) != cudaSuccess ||
      cudaOccupancyMaxActiveClusters(&fit, kernel, &config) != cudaSuccess) {
    cudaGetLastError();  // not an error of the launches to come
    fit = 0;
  }
  return known[key] = fit;
}

}  // namespace cuda
}  // namespace nv_norms
