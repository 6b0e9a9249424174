#include <map>
#include <mutex>
#include <tuple>

#include "kernels/cuda/ring.cuh"
#include "kernels/cuda/team.cuh"

namespace nv_norms {
namespace cuda {
namespace {

constexpr int64_t kReservedShared = 4096;  // of a block: storage of its sums, and the system's
constexpr int kMostStages = 6;             // WaitForCopies knows no more

int64_t RoundUp(int64_t value, int64_t unit) { return CeilDiv(value, unit) * unit; }

// Of a block that sums up a row behind its own barriers. Larger ones work as a cluster does, which
// costs instructions: forward, 16384 x 8192 bfloat16 reached 0.88 of a copy's speed with barriers
// and 0.82 without; the gradient, float16 0.84 and 0.88, 32768 x 4096 float32 0.92 and 0.95,
// bfloat16 0.92 and 0.86.
int MostBlockThreads(const RingSizes& sizes) {
  if (sizes.dy == 0) return kRingThreads;
  return sizes.x == 2 ? 256 : 128;
}

// For so many teams, of which `resident` are on a multiprocessor at once: how many times as many
// share the rows out best. Multiprocessors are not equally fast: more teams than are resident take
// the rows as they go, each four or more. 32768 x 4096 float32 reached 0.91 of a copy's speed with
// 1 wave of teams, 0.93 with 8, 0.955 with 16; 16384 x 16384, a block to a multiprocessor, 0.89
// with 1 and 0.915 with 4. Small blocks of float32 gain 0.01 by still more, 16 bits lose 0.03 and
// more: 65536 x 768 0.94 and 0.954, bfloat16 0.90 and 0.85. From float32 to 16 bits,
// 32768 x 4096 reached 0.78 with 64, 0.948 with 16, 0.957 with 4, 0.949 with 1, 16384 x 8192 0.88
// with 16, 0.953 with 4. The gradient's sums are a team's: 0.94 with 1, 0.92 with 2. Clusters: 4096
// x 65536 bfloat16 0.88 with 1, 0.81 with 3.
int64_t Waves(int64_t rows, int64_t teams, const RingSizes& sizes, int64_t resident) {
  const bool many = sizes.x == 4 && sizes.out == 4 && resident >= 4;
  const int64_t least_rows = many ? 2 : resident > 1 ? 4 : 32;
  const int64_t most = sizes.out < sizes.x ? 4 : many ? 64 : 16;
  return std::max<int64_t>(1, std::min<int64_t>(most, rows / teams / least_rows));
}

}  // namespace

RingShape RingShapeOf(int64_t rows, int64_t cols, const RingSizes& sizes, int64_t vector,
                      const RingNumbers& numbers, const Device& device) {
  RingShape out;
  out.vector = static_cast<int>(vector);
  const int64_t vectors = cols / vector;
  const int64_t most_share = kRingThreads * (numbers.most / vector);
  const int64_t most_shared = device.shared_bytes - kReservedShared;
  const int64_t multiprocessors = device.multiprocessors;
  const auto stage_bytes = [&](int64_t share) {
    if (sizes.dy == 0) return RoundUp(share * vector * sizes.x, 16);
    const int64_t ratio = sizes.x / sizes.dy;
    return RoundUp(share * vector * sizes.x, 16 * ratio) * (ratio + 1) / ratio;
  };
  const auto set = [&](Team team, int64_t blocks, int64_t share, int64_t least_stages) {
    out.team = team;
    out.blocks = static_cast<int>(blocks);
    out.share = static_cast<int>(share);
    out.threads = 0;
    // As many warps at work on a multiprocessor as possible, each with as many numbers as possible.
    double most_busy = 0;
    const int most = team == Team::kCluster ? numbers.cluster_most : numbers.most;
    for (int n = team == Team::kGrid ? most : numbers.least; n <= most; n += 8) {
      int64_t warps = CeilDiv(share, 32 * n / vector);
      if (warps > 1) warps = RoundUp(warps, 2);
      if (warps > kRingThreads / 32) continue;
      const int64_t resident = team == Team::kGrid ? 1 : kRingThreads / 32 / warps;
      const double busy = static_cast<double>(resident) * static_cast<double>(share) / n;
      if (busy < most_busy) continue;
      const int64_t mail = team == Team::kCluster ? ClusterMailBytes(warps * blocks) : 0;
      int64_t stages = least_stages;
      if (team != Team::kBlock) {
        stages =
            std::min<int64_t>(kMostStages, (most_shared / resident - (resident - 1) * 1024 - mail) /
                                               stage_bytes(share));
      }
      const int64_t shared = stages * stage_bytes(share) + mail;
      if (stages < least_stages || shared > most_shared) continue;
      most_busy = busy;
      out.items = static_cast<int>(n / vector);
      out.threads = static_cast<int>(32 * warps);
      out.stages = static_cast<int>(stages);
      out.shared = shared;
    }
    return out.threads != 0;
  };
  const int64_t line = 128 / (vector * sizes.x);  // vectors
  const auto share_of = [&](int64_t blocks) {
    return blocks == 1 ? vectors : RoundUp(CeilDiv(vectors, blocks), line);
  };
  const auto set_block = [&]() {
    if (vectors > most_share || !set(Team::kBlock, 1, vectors, 2)) return false;
    const int64_t resident =
        std::min<int64_t>(kRingThreads / out.threads,
                          (most_shared + kReservedShared) / (out.shared + kReservedShared / 2));
    out.teams = std::min(rows, std::max<int64_t>(1, resident) * multiprocessors);
    if (sizes.dy == 0) out.teams *= Waves(rows, out.teams, sizes, resident);
    return true;
  };
  const bool few = rows * CeilDiv(vectors, most_share) <= multiprocessors / 2 && cols > 8192;
  if (!few) {
    const bool block = set_block();
    if (block && (device.capability < 90 || out.threads <= MostBlockThreads(sizes))) {
      return out;
    }
    if (device.capability >= 90) {
      // As few blocks as hold a thread's numbers and three rows: one that is summed up, one whose
      // posts are awaited, one on its way.
      for (const int64_t blocks : {1, 2, 4, 8, 16}) {
        if (!set(Team::kCluster, blocks, share_of(blocks), 3)) continue;
        out.teams = std::min(rows, kRingThreads / out.threads * multiprocessors / blocks);
        return out;
      }
    }
    if (block && set_block()) return out;
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
  if (shape.blocks == 1) return shape.teams;
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
