#include <array>
#include <tuple>

#include "kernels/cuda/clerks.cuh"
#include "kernels/cuda/known.h"
#include "kernels/cuda/ring.cuh"

namespace nv_norms {
namespace cuda {
namespace {

constexpr int64_t kReservedShared = 4096;  // of a block: storage of its sums, and the system's
// Numbers: what a block of a team of the grid has to do for a row of no columns, about.
constexpr int64_t kTeamRowCost = 1024;
constexpr int64_t kMostWideShare = 14 * 32 * 24;  // numbers of a row to a block alone
// Rows to a team beside blocks and clusters. Rows of their own parameters: 75 were measured;
// others: forward bfloat16 2048 x 10240 (15) 35.1 -> 27.8 us, 600 x 9216 (5) 14.1 -> 13.1, float32
// 4096 x 5120 (31) 50.3 -> 46.8; gradient bfloat16 2048 x 5120 43.9 -> 35.2, 600 x 12288 (9) 38.1
// -> 33.8.
constexpr int64_t kTeamLeastRows = 4;
constexpr int64_t kTeamLeastRowsOwn = 32;

// Rows with a rim (rim.cuh), parts of a copy's speed, beside kernels that read number by number. To
// a block of the gradient, which leaves a partial sum to each column, so many: 2048 x 1001 bfloat16
// 0.27 with 1, 0.39 with 4. Of clusters few rows wait for the last: 200 x 10001 bfloat16 0.39 and
// 0.29.
constexpr int64_t kRimLeastRows = 4;
constexpr int64_t kRimLeastVectors = 8;  // more than the numbers before the first may be
// Clusters: 8192 x 20001 bfloat16 forward 0.12, 0.48, gradient 0.105, 0.63; of 8 blocks 4096 x
// 50001 float32 0.53, 0.53 and 0.43, 0.49, from float32 to bfloat16 0.18, 0.41 and 0.38, 0.62, but
// bfloat16 0.12, 0.20 and 0.33, 0.30; of 16, 2048 x 100001 float32 0.49, 0.32.
int MostRimBlocks(const RingSizes& sizes) { return sizes.x == 2 && sizes.dy != 0 ? 4 : 8; }

int64_t RoundUp(int64_t value, int64_t unit) { return CeilDiv(value, unit) * unit; }

// Of a block that sums up a row behind its own barriers. Larger ones work as a cluster does, which
// costs instructions: forward, 16384 x 8192 bfloat16 reached 0.88 of a copy's speed with barriers
// and 0.82 without; the gradient, float16 0.84 and 0.88, 32768 x 4096 float32 0.92 and 0.95,
// bfloat16 0.92 and 0.86.
// Of rows whose parameters are the columns' teams take what is longer; float32 gradients of 2560
// columns (160 threads) took 864 us in a cluster's way and 801 behind barriers, 2048 x 2304 33.9
// and 27.1; from float32 to 16 bits 2048 x 6144 (384) 51.6 and 46.2, 58254 x 4608 722 and 634.
int MostBlockThreads(const RingSizes& sizes, bool own) {
  if (sizes.dy == 0 || (!own && sizes.dy < sizes.x)) return kRingThreads;
  return sizes.x == 2 ? 256 : own ? 128 : 192;
}

// For so many teams, of which `resident` are on a multiprocessor at once: how many times as many
// share the rows out best. Multiprocessors are not equally fast: more teams than are resident take
// the rows as they go, each four or more. 32768 x 4096 float32 reached 0.91 of a copy's speed with
// 1 wave of teams, 0.93 with 8, 0.955 with 16; 16384 x 16384, a block to a multiprocessor, 0.89
// with 1 and 0.915 with 4. Small blocks of float32 gain 0.01 by still more, 16 bits lose 0.03 and
// more: 65536 x 768 0.94 and 0.954, bfloat16 0.90 and 0.85. From float32 to 16 bits,
// 32768 x 4096 reached 0.78 with 64, 0.948 with 16, 0.957 with 4, 0.949 with 1, 16384 x 8192 0.88
// with 16, 0.953 with 4. With a rim, parameters are read number by number: 131072 x 1001 float32
// 0.85 with 64, 0.92 with 16, bfloat16 0.64 with 16, 0.75 with 1. The gradient's sums are a team's:
// 0.94 with 1, 0.92 with 2. Clusters: 4096 x 65536 bfloat16 0.88 with 1, 0.81 with 3.
int64_t Waves(int64_t rows, int64_t teams, const RingSizes& sizes, int64_t resident, bool rim) {
  if (rim && sizes.x == 2) return 1;
  const bool many = sizes.x == 4 && sizes.out == 4 && resident >= 4;
  const int64_t least_rows = many ? (rim ? 16 : 2) : resident > 1 ? 4 : 32;
  const int64_t most = sizes.out < sizes.x ? 4 : many && !rim ? 64 : 16;
  return std::max<int64_t>(1, std::min<int64_t>(most, rows / teams / least_rows));
}

// Where blocks that draw their rows are faster than teams of the grid, or blocks with equal shares,
// though the tickets cost a launch and 1.6 ns each, one after the other (a part of a copy's speed).
// 2^28 numbers, float32: 4608 columns 0.94, 0.99; 6144 0.94, 0.97; 8192 0.94, 0.96; 10000 0.90,
// 0.99; 12288 0.92, 0.97; 16384 0.92, 0.97; but 2048 0.96, 0.85 and 4096 0.97, 0.96; to bfloat16
// 4096 0.97, 0.98; 6144 0.97, 0.99; 8192 0.96, 1.00; 16384 0.94, 1.00; but 9216 0.97, 0.87 and
// 12288 0.96, 0.95; bfloat16 4096 0.94, 0.98; 5120 0.94, 0.98; 6144 0.82, 0.95; 8192 0.97, 0.99;
// 16384 0.92, 0.99; but 2048 0.96, 0.81; 3072 0.95, 0.91; 9216 0.94, 0.82; 12288 0.90, 0.88.
// 2^26 numbers: float32 4608 0.94, 0.97; 12288 0.89, 0.94; 16384 0.88, 0.92; to bfloat16 3584 0.91,
// 0.93; 8192 0.90, 0.94; but 3072 0.93, 0.92 and 5120 0.93, 0.91; bfloat16 3584 0.89, 0.91; 5120
// 0.94, 0.98; 8192 0.93, 0.93; 16384 0.87, 0.92. 2^25 numbers: float32 4608 0.97, 0.96; 9216 0.94,
// 0.91; 12288 0.88, 0.91; 16384 0.85, 0.89. 2^24 numbers, bfloat16: 5120 0.84, 0.83; 16384 0.84,
// 0.81. Rows with parameters of their own, float32: 16384 0.90, 0.93; 12544 0.94, 0.92.
bool DrawnIsFaster(const RingSizes& sizes, int64_t rows, int64_t cols, bool own) {
  if (sizes.dy != 0 || sizes.out > sizes.x || cols > 16384) return false;
  const int64_t numbers = rows * cols;
  if (own) return sizes.x == 4 && cols >= 14336 && numbers >= 64'000'000;
  if (sizes.out == 4 && cols >= 12288) return numbers >= 32'000'000;
  if (numbers < 64'000'000) return false;
  if (sizes.out == 4) return cols >= 4608;
  if (cols >= 14336) return true;
  if (sizes.x == 2) return cols >= 3584 && cols <= 8192;
  return (cols >= 3584 && cols <= 4096) || (cols >= 6144 && cols <= 8192);
}

// Where teams of the grid are faster than blocks and clusters (milliseconds of these, then of
// teams). Forward: bfloat16 12288 x 5120 0.095, 0.088; 16384 x 8192 0.148, 0.142; 10000 x 10000
// 0.146, 0.112; 16384 x 16384 0.288, 0.282; 4096 x 65536 0.336, 0.286; 1000 x 100000 0.187, 0.119;
// but 32768 x 4096 0.140, 0.200. From float32, 16384 x 10240 0.355, 0.345, to bfloat16 0.267,
// 0.251; 16384 x 8192 0.272, 0.278; 4096 x 65536 0.551, 0.550, to bfloat16 0.414, 0.390; 1000 x
// 100000 0.248, 0.212, to bfloat16 0.218, 0.155. Gradient: bfloat16 20000 x 6144 0.226, 0.208;
// 10000 x 10000 0.232, 0.167; 16384 x 16384 0.438, 0.426; 2048 x 131072 0.591, 0.456; float32 4096
// x 65536 0.789, 0.867.
// Measured again for rows whose parameters are the columns', over 2304 to 100000 columns and 300
// rows to 2^28 numbers (microseconds likewise). Gradient: float32 65536 x 4096 806, 744; 2048 x
// 4608 47.9, 41.8; 16384 x 16384 809, 766; 2684 x 100000 839, 791; but of 2304 columns 798, 872;
// bfloat16 58254 x 4608 531, 494, 65536 x 4096 405, 487; from float32 to bfloat16 29127 x 9216 727,
// 671, but 21845 x 12288 686, 753 and 43690 x 6144 672, 680. Forward: float32 4096 x
// 4608 46.8, 42.8, 4096 x 7168 66.8, 62.8, 13107 x 20480 614, 561, but 18724 x 3584 137, 143, 8192
// x 8192 140, 143 and 4096 x 24576 214, 217; to bfloat16 4096 x 5120 42.7, 37.5, 13107 x 20480 483,
// 394, 8192 x 32768 400, 390; bfloat16 4096 x 16384 77.8, 82.3, 4096 x 12288 69.0, 69.9, and up to
// 5120 columns where blocks have any number of warps.
// And since both copy in bulk, float32 forward: 13107 x 20480 535, 543, 4096 x 24576 205, 209, but
// 8192 x 32768 540, 532, 4096 x 65536 546, 527, 2048 x 131072 540, 522.
bool TeamsAreFaster(const RingSizes& sizes, int64_t cols, bool own) {
  const bool forward = sizes.dy == 0;
  const bool wide = cols > 8192 && cols <= kMostWideShare;
  if (own) {
    if (sizes.x == 2) return cols >= 5120;
    if (!forward) return false;
    return wide || (sizes.out == 2 ? cols >= 65536 : cols > 65536 && cols < 131072);
  }
  if (sizes.x == 2) {
    if (!forward) return cols > 4096;
    return (cols > 5120 && cols <= kMostWideShare) || cols > 16384;
  }
  if (!forward) return sizes.dy == 4 ? cols >= 3072 : wide;
  if (wide || (cols > 4096 && cols < 8192)) return true;
  return sizes.out == 2 ? cols > 16384 : cols > 24576;
}

RingShape Search(int64_t rows, int64_t cols, const RingSizes& sizes, int64_t vector,
                 const RingNumbers& numbers, const Device& device) {
  RingShape out;
  out.vector = static_cast<int>(vector);
  const int64_t vectors = cols / vector;
  const int64_t most_share = kRingThreads * (numbers.most / vector);
  const int64_t most_shared = device.shared_bytes - kReservedShared;
  const int64_t multiprocessors = device.multiprocessors;
  // Microseconds with even numbers of warps alone, with odd ones, too: bfloat16 forward 58254 x
  // 4608 339, 292, 116508 x 2304 340, 295, gradient 517, 429, 104857 x 2560 489, 414; but float32
  // 104857 x 2560 forward 522, 550, to bfloat16 116508 x 2304 gradient 640, 689.
  const bool odd_warps = sizes.x == 2 && !numbers.own;
  const bool measured = device.capability >= 90 && vector * sizes.x == 16;
  const bool drawn = measured && !numbers.rim && DrawnIsFaster(sizes, rows, cols, numbers.own);
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
    out.drawn = false;
    // As many warps at work on a multiprocessor as possible, each with as many numbers as possible.
    double most_busy = 0;
    const int most = team == Team::kCluster ? numbers.cluster_most : numbers.most;
    // Of clusters for rows with a rim there is one kernel.
    const int least = team == Team::kCluster && numbers.rim ? most : numbers.least;
    for (int n = least; n <= most; n += 8) {
      int64_t warps = CeilDiv(share, 32 * n / vector);
      if (warps > 1 && !(odd_warps && team == Team::kBlock)) warps = RoundUp(warps, 2);
      if (warps > kRingThreads / 32) continue;
      const int64_t resident = kRingThreads / 32 / warps;
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
    if (vectors > most_share || !set(Team::kBlock, 1, vectors, kBlockStages)) return false;
    const int64_t resident =
        std::min<int64_t>(kRingThreads / out.threads,
                          (most_shared + kReservedShared) / (out.shared + kReservedShared / 2));
    out.teams = std::min(rows, std::max<int64_t>(1, resident) * multiprocessors);
    out.drawn = drawn;
    if (sizes.dy == 0 && !drawn) out.teams *= Waves(rows, out.teams, sizes, resident, numbers.rim);
    return true;
  };
  // As few blocks as hold a thread's numbers and three rows: one that is summed up, one whose posts
  // are awaited, one on its way.
  const auto set_cluster = [&]() {
    if (device.capability < 90) return false;
    for (const int64_t blocks : {1, 2, 4, 8, 16}) {
      if (!set(Team::kCluster, blocks, share_of(blocks), 3)) continue;
      out.teams = std::min(rows, kRingThreads / out.threads * multiprocessors / blocks);
      return true;
    }
    return false;
  };
  // n numbers to a thread; returns what a row takes, about, 0 where this does not fit.
  const auto set_team = [&](int64_t teams, int64_t n) -> double {
    const int64_t blocks = std::min<int64_t>(multiprocessors / teams, kMaxTeamGrid);
    const int64_t share = share_of(blocks);
    const int64_t warps = CeilDiv(share, 32 * n / vector);
    const bool alone = blocks == 1;  // posts to nobody
    // Clerks wait for posts most of the time, so they post the next row first, as many as there are
    // behind a lag of twice as many rows: 100 x 1000000 float32 took 0.207 ms with 2 clerks and a
    // lag of 4, 0.214 with 3, 0.286 with 4, 0.241 with 5 that wait for each row at once.
    // With 14 warps, 1000 x 100000 bfloat16 took 0.163 ms in place of the 0.142 with 12.
    if (warps > (n != 24 ? 16 : alone ? 14 : 12)) return 0;
    const int64_t most_lag = !alone ? 5 : n == 16 ? 2 : 1;
    for (int64_t lag = most_lag; lag > 0; --lag) {
      const bool ahead = !alone && lag > 1;
      const int64_t clerks = ahead ? (lag > 2 ? 2 : 1) : alone && lag > 1 && sizes.dy != 0 ? 3 : 2;
      const int64_t loading = alone && n == 16 ? 3 : 2;  // rows on their way, at most
      const int64_t desk = (lag + 1) * warps * 32 * kDeskBytes;
      const int64_t stages = std::min(
          {(most_shared - desk) / stage_bytes(share), lag + 1 + loading, int64_t{kMostTeamStages}});
      if (stages < lag + 2) continue;
      out.team = Team::kGrid;
      out.blocks = static_cast<int>(blocks);
      out.share = static_cast<int>(share);
      out.items = static_cast<int>(n / vector);
      out.clerks = static_cast<int>(clerks);
      out.threads = static_cast<int>(32 * (warps + clerks));
      out.lag = static_cast<int>(lag);
      out.ahead = ahead;
      out.stages = static_cast<int>(stages);
      out.shared = stages * stage_bytes(share) + desk;
      out.teams = teams;
      // Short lags leave some of the posts' latency to be seen: of 100 x 1000000 bfloat16, lags of
      // 2, 3 and 4 took 0.185, 0.152 and 0.127 ms forward, 0.212, 0.183 and 0.171 the gradient.
      const double late = alone || lag >= 4 ? 1 : lag == 3 ? 1.08 : lag == 2 ? 1.15 : 1.3;
      return late * static_cast<double>(share * vector + kTeamRowCost);
    }
    return 0;
  };
  // Of the numbers of teams, the one that takes the least time, if it has so many rows to a team.
  const auto set_teams = [&](int64_t least_rows) {
    if (device.capability < 80) return false;
    double least = 0;
    int64_t best_teams = 0;
    int64_t best_n = 0;
    const auto consider = [&](int64_t teams, int64_t n) {
      if (n != kTeamLeastNumbers && vector * sizes.x != 16) return;
      const double time = set_team(teams, n) * static_cast<double>(CeilDiv(rows, teams));
      const bool same = time == least && teams == best_teams;
      if (time == 0 || (best_n != 0 && (time > least || same))) return;
      best_teams = teams;
      best_n = n;
      least = time;
    };
    const int64_t most_teams = std::min(rows, multiprocessors);
    for (int64_t teams = 1; teams <= most_teams; ++teams) {
      for (int64_t n = numbers.team_least; n <= kTeamNumbers; n += 8) consider(teams, n);
    }
    for (int64_t n = kTeamNumbers + 8; best_n == 0 && n <= numbers.team_most; n += 8) {
      consider(1, n);
    }
    return best_n != 0 && CeilDiv(rows, best_teams) >= least_rows &&
           set_team(best_teams, best_n) != 0;
  };
  const bool few = rows * CeilDiv(vectors, most_share) <= multiprocessors / 2 && cols > 8192;
  if (numbers.rim) {
    out.rim = true;
    if (few || vectors < kRimLeastVectors) {
      out.blocks = 0;
    } else if (set_block()) {
      if (sizes.dy != 0) {
        out.teams = std::min(out.teams, std::max(2 * multiprocessors, rows / kRimLeastRows));
      }
      out.teams = RimTeams(out.teams, cols, kRimVectors * vector);
      if (out.teams == 0) out.blocks = 0;
    } else if (!set_cluster() || out.blocks > MostRimBlocks(sizes) ||
               rows < kRimLeastRows * out.teams) {
      out.blocks = 0;
    }
    return out;
  }
  if (!few) {
    if (measured && !drawn && TeamsAreFaster(sizes, cols, numbers.own) &&
        set_teams(numbers.own ? kTeamLeastRowsOwn : kTeamLeastRows)) {
      return out;
    }
    const bool block = set_block();
    if (block && (device.capability < 90 || out.threads <= MostBlockThreads(sizes, numbers.own))) {
      return out;
    }
    if (set_cluster()) return out;
    if (block && set_block()) return out;
  }
  if (!set_teams(1)) out.blocks = 0;
  return out;
}

}  // namespace

RingShape RingShapeOf(int64_t rows, int64_t cols, const RingSizes& sizes, int64_t vector,
                      const RingNumbers& numbers, const Device& device) {
  using Key = std::array<int64_t, 16>;
  static auto& known = *new Known<Key, RingShape>;
  const Key key = {rows,
                   cols,
                   sizes.x,
                   sizes.dy,
                   sizes.out,
                   vector,
                   numbers.least,
                   numbers.most,
                   numbers.cluster_most,
                   numbers.team_least,
                   numbers.team_most,
                   numbers.own,
                   numbers.rim,
                   device.multiprocessors,
                   device.capability,
                   device.shared_bytes};
  RingShape out;
  if (known.Find(key, &out)) return out;
  out = Search(rows, cols, sizes, vector, numbers, device);
  known.Keep(key, out);
  return out;
}

int64_t ClustersThatFit(const void* kernel, const RingShape& shape) {
  const int cluster = std::max(shape.blocks, shape.allies);
  return cluster == 1 ? shape.teams
                      : ResidentClusters(kernel, cluster, shape.threads, shape.shared);
}

}  // namespace cuda
}  // namespace nv_norms
