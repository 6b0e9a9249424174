// How the streaming kernels (columns_stream.cuh) cut a problem whose units, strips of a sample's
// columns, are larger than the chip. A unit is cut into items of some rows, which the blocks have
// in turn. Every item is read twice: for its sums, and for its output. While the sums of a unit are
// taken, the output of the one before it is written, backwards, so that what was read last is read
// again first, out of the L2 cache.
#ifndef NV_NORMS_KERNELS_CUDA_COLUMNS_STREAM_H_
#define NV_NORMS_KERNELS_CUDA_COLUMNS_STREAM_H_

#include <cstdint>

#include "kernels/cuda/norms.h"
#include "kernels/cuda/resident.h"

namespace nv_norms {
namespace cuda {

constexpr int kStreamVectors = 512;  // of x in a tile, of 16 bytes
// Tiles in a block's shared memory. More on their way keep what blocks tell each other from coming
// through: gradient of 8 x 64^3 x 128, bfloat16, 4: 0.665, 5: 0.674, 6: 0.682, 8: 0.686 ms.
constexpr int kStreamSlots = 5;

struct StreamShape {
  int rows;     // of a sample
  int width;    // vectors of a row
  int vectors;  // of a row of a strip, a power of two of at most 16
  int columns;  // of a strip
  int strips;   // to a sample
  int units;    // strips of all samples
  int tile_rows;
  int item_rows;
  int items;  // of a unit, at least one to a block
  int blocks;
  int shift;  // the first item of a unit belongs to another block than that of the one before
  int delay;  // a block's items that are read of a unit before the output of the one before begins
  int keep;   // a block's items, the last of a unit, that the L2 cache is to keep

  int channels;  // of the tensor
  int depth;     // channels to a group of the norm
  int norm_groups;
  int64_t n_stride;
  int64_t group_stride;
  int64_t depth_stride;

  NV_NORMS_HOST_DEVICE int stats() const { return columns / depth; }
  NV_NORMS_HOST_DEVICE int64_t ParamOf(int64_t n, int channel) const {
    return n * n_stride + channel / depth * group_stride + channel % depth * depth_stride;
  }
};

// An item that a block reads.
struct StreamStep {
  int unit;
  int item;     // of the unit
  int rank;     // of the block's items of the unit the first
  bool output;  // else: for its sums
  bool edge;    // the block's last of the unit for its sums, or first for its output
  bool keep;
};

// A block's steps: of the first unit the sums; then of each unit the sums, and of the one before it
// the output, in turn; then the output of the last.
class StreamWalk {
 public:
  NV_NORMS_HOST_DEVICE StreamWalk(const StreamShape& shape, int block)
      : shape_(shape), rank_(block), sums_(Count()) {}

  // False: there are no more.
  NV_NORMS_HOST_DEVICE bool Next(StreamStep* step) {
    if (sums_at_ == sums_ && outputs_at_ == outputs_) {
      if (unit_ == shape_.units) return false;
      ++unit_;
      rank_before_ = rank_;
      rank_ += shape_.shift;
      if (rank_ >= shape_.blocks) rank_ -= shape_.blocks;
      outputs_ = sums_;
      sums_ = unit_ < shape_.units ? Count() : 0;
      sums_at_ = outputs_at_ = 0;
    }
    step->output =
        outputs_at_ < outputs_ && (sums_at_ == sums_ || outputs_at_ < sums_at_ - shape_.delay);
    if (step->output) {
      step->edge = outputs_at_ == 0;
      step->keep = false;
      step->unit = unit_ - 1;
      step->rank = rank_before_;
      step->item = rank_before_ + (outputs_ - ++outputs_at_) * shape_.blocks;
    } else {
      step->unit = unit_;
      step->rank = rank_;
      step->item = rank_ + sums_at_++ * shape_.blocks;
      step->edge = sums_at_ == sums_;
      step->keep = sums_ - sums_at_ < shape_.keep;
    }
    return true;
  }

 private:
  NV_NORMS_HOST_DEVICE int Count() const { return (shape_.items - rank_ - 1) / shape_.blocks + 1; }

  const StreamShape& shape_;
  int unit_ = 0;  // whose sums are taken
  int rank_;
  int rank_before_ = 0;
  int sums_;
  int sums_at_ = 0;
  int outputs_ = 0;  // of the unit before
  int outputs_at_ = 0;
};

// For numbers of x of so many bytes, and `beside` bytes of dy to a vector of x; scratch(columns):
// bytes of shared memory beside the tiles. False where these kernels do not suit.
bool CutStream(const ColumnLayout& layout, const Device& device, int x_bytes, int beside,
               int64_t (*scratch)(int), StreamShape* shape);

// The same for the forward pass, of tiles of so many vectors; shared(columns): bytes of shared
// memory.
bool CutForwardStream(const ColumnLayout& layout, const Device& device, int x_bytes, int y_bytes,
                      int tile_vectors, int64_t (*shared)(int), StreamShape* shape);

// Before the plan of the kernels that keep strips on the chip. *launched: whether alignment and the
// device allowed it.
void PlanBackwardColumnsStream(BackwardPlan* plan);
Status LaunchBackwardColumnsStream(const BackwardPlan& plan, const BackwardBuffers& buffers,
                                   void* workspace, void* stream, bool* launched);

void PlanForwardColumnsStream(ForwardPlan* plan);
Status LaunchForwardColumnsStream(const ForwardPlan& plan, const ForwardBuffers& buffers,
                                  void* workspace, void* stream, bool* launched);

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_COLUMNS_STREAM_H_
