// Columns of small samples: a block has whole samples, or some groups of one, in its registers, and
// ends with them. x is [n, s, channels], the channels in groups of `depth`; a vector is some
// neighbouring channels' numbers.
//
// A block's threads are [samples][positions][vectors]; a thread has the vectors of its channels at
// each `positions`-th of the s positions. What the threads of a group have of its sums they put
// into shared memory, where some lanes of a warp add them up.
#ifndef NV_NORMS_KERNELS_CUDA_COLUMNS_HELD_H_
#define NV_NORMS_KERNELS_CUDA_COLUMNS_HELD_H_

#include "kernels/cuda/divisor.h"
#include "kernels/cuda/norms.h"

namespace nv_norms {
namespace cuda {

constexpr int kHeldColumnVector = 4;         // numbers
constexpr int kHeldColumnThreadBound = 512;  // of a block; a thread has at most 128 registers

// The problems of this kind, [n, s, groups, depth] with parameters of channels, or of each sample's
// (per_sample): those of columns, and group norm of [n, channels], which counts as rows.
struct HeldColumnLayout {
  int64_t n = 0;  // 0: not of this kind
  int64_t s = 1;
  int64_t groups = 1;
  int64_t depth = 1;
  bool per_sample = false;
  int64_t channels() const { return groups * depth; }

  static HeldColumnLayout Of(const Geometry& geometry);
};

struct HeldColumnShape {
  int64_t n;
  int64_t n_stride;  // of parameters: 0, or channels
  int s;
  int channels;
  int depth;
  int vector;       // numbers to a vector
  bool whole;       // groups are whole vectors
  int items;        // vectors to a thread, at most
  int threads;      // of a block
  int samples;      // of a block at once
  int positions;    // of a sample, to which a block has threads
  int hops;         // vectors to a thread of the first positions; those behind have one less
  int full;         // how many positions have so many
  int vectors;      // of a position, in a block
  int chunks;       // of a sample's channels, that blocks have
  int groups;       // of a chunk
  int parts;        // of a group, in a position: vectors, or numbers where these are not whole
  int lanes;        // that add up a group's sums:
  int lanes_apart;  // so many have different positions, the others different parts
  int rounds;       // of samples, that a block of the gradient has in turn; 1 if n_stride != 0
  Divisor by_vectors;
  Divisor by_positions;
  Divisor by_depth;
  Divisor by_chunks;
  Divisor by_groups;

  NV_NORMS_HOST_DEVICE int CountAt(int position) const { return position < full ? hops : hops - 1; }
  NV_NORMS_HOST_DEVICE int PartsOfPosition() const { return whole ? vectors : vectors * vector; }
  int64_t Parts() const { return int64_t{samples} * positions * PartsOfPosition(); }
};

// How to cut a problem whose numbers have so many bytes, in such vectors, at most so many to a
// thread, into blocks of at most so many threads; threads = 0: it does not suit.
HeldColumnShape CutHeldColumns(const HeldColumnLayout& layout, int64_t size, int vector,
                               int most_items, int most_threads, int multiprocessors);

// *launched: whether types, alignment and sizes allowed it, and it was measured to pay.
Status LaunchForwardColumnsHeld(const ForwardPlan& plan, const ForwardBuffers& buffers,
                                void* workspace, void* stream, bool* launched);
void PlanBackwardColumnsHeld(BackwardPlan* plan);
Status LaunchBackwardColumnsHeld(const BackwardPlan& plan, const BackwardBuffers& buffers,
                                 void* workspace, void* stream, bool* launched);

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_COLUMNS_HELD_H_
