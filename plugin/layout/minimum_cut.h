#ifndef NV_NORMS_PLUGIN_LAYOUT_MINIMUM_CUT_H_
#define NV_NORMS_PLUGIN_LAYOUT_MINIMUM_CUT_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace nv_norms {

// A minimum cut between a source and a sink by maximum flow (Dinic 1970, "Algorithm for solution of
// a problem of maximum flow in a network with power estimation").
class MinimumCut {
 public:
  static constexpr int kSource = 0;
  static constexpr int kSink = 1;
  static constexpr int64_t kInfinite = int64_t{1} << 60;

  MinimumCut() : edges_of_(2) {}
  int AddNode();
  // `capacity` is paid if `from` ends up on the source's side and `to` on the sink's.
  void AddEdge(int from, int to, int64_t capacity);
  // For each node, whether it is on the source's side: of all minimum cuts, the one with the
  // fewest nodes there.
  std::vector<bool> Solve();

 private:
  struct Edge {
    int to;
    int64_t capacity;  // what is left of it
  };
  bool FindLevels();
  int64_t Augment();

  std::vector<Edge> edges_;  // edge 2k and its reverse 2k + 1
  std::vector<std::vector<int>> edges_of_;
  std::vector<int> level_;
  std::vector<size_t> next_;
};

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_LAYOUT_MINIMUM_CUT_H_
