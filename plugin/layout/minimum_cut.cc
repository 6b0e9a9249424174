#include "plugin/layout/minimum_cut.h"

#include <algorithm>

namespace nv_norms {

int MinimumCut::AddNode() {
  edges_of_.emplace_back();
  return static_cast<int>(edges_of_.size()) - 1;
}

void MinimumCut::AddEdge(int from, int to, int64_t capacity) {
  edges_of_[from].push_back(static_cast<int>(edges_.size()));
  edges_.push_back({to, capacity});
  edges_of_[to].push_back(static_cast<int>(edges_.size()));
  edges_.push_back({from, 0});
}

// Distances from the source along edges with capacity left. False if the sink is out of reach.
bool MinimumCut::FindLevels() {
  level_.assign(edges_of_.size(), -1);
  level_[kSource] = 0;
  std::vector<int> queue = {kSource};
  for (size_t at = 0; at < queue.size(); ++at) {
    for (int e : edges_of_[queue[at]]) {
      if (edges_[e].capacity <= 0 || level_[edges_[e].to] >= 0) continue;
      level_[edges_[e].to] = level_[queue[at]] + 1;
      queue.push_back(edges_[e].to);
    }
  }
  return level_[kSink] >= 0;
}

// Sends flow along one shortest path; 0 if there is none left.
int64_t MinimumCut::Augment() {
  std::vector<int> path;
  int node = kSource;
  while (node != kSink) {
    size_t& next = next_[node];
    while (next < edges_of_[node].size()) {
      const Edge& edge = edges_[edges_of_[node][next]];
      if (edge.capacity > 0 && level_[edge.to] == level_[node] + 1) break;
      ++next;
    }
    if (next < edges_of_[node].size()) {
      path.push_back(edges_of_[node][next]);
      node = edges_[path.back()].to;
      continue;
    }
    if (path.empty()) return 0;
    node = edges_[path.back() ^ 1].to;  // a dead end: back, and on to the next edge
    path.pop_back();
    ++next_[node];
  }
  int64_t flow = kInfinite;
  for (int e : path) flow = std::min(flow, edges_[e].capacity);
  for (int e : path) {
    edges_[e].capacity -= flow;
    edges_[e ^ 1].capacity += flow;
  }
  return flow;
}

std::vector<bool> MinimumCut::Solve() {
  while (FindLevels()) {
    next_.assign(edges_of_.size(), 0);
    while (Augment() > 0) {
    }
  }
  std::vector<bool> with_source;
  for (int level : level_) with_source.push_back(level >= 0);
  return with_source;
}

}  // namespace nv_norms
