// Normalizations on NVIDIA GPUs: entry points of the kernel library, free of CUDA's and
// TensorFlow's headers. First plan, which says how much workspace it wants, then launch. Launches
// are asynchronous on the given stream. No sum is made of atomics: the same input gives the same
// bits.
#ifndef NV_NORMS_KERNELS_CUDA_NORMS_H_
#define NV_NORMS_KERNELS_CUDA_NORMS_H_

#include <cstdint>

#include "kernels/problem.h"
#include "kernels/status.h"

namespace nv_norms {
namespace cuda {

struct Device {
  int multiprocessors = 1;
  int capability = 75;       // of the code that runs there (code.h), 10 * major + minor
  int shared_bytes = 49152;  // of shared memory that a block may have

  bool operator==(const Device& other) const {
    return multiprocessors == other.multiprocessors && capability == other.capability &&
           shared_bytes == other.shared_bytes;
  }
};

// The device of that ordinal; needs no context there.
Status DeviceAt(int ordinal, Device* device);

// The device that is current in this thread. Asked of the driver once for each device.
Status CurrentDevice(Device* device);

enum class Kernel { kNothing, kRows, kColumns, kGeneral };

// How a column kernel cuts s: in slabs of so many rows.
struct Slabs {
  int64_t rows = 1;
  int64_t count = 1;
};

// How a resident column kernel cuts x: `vectors` columns of 16 bytes of a sample to a group of
// `blocks`, with so many tiles of rows in shared memory.
struct StripTile {
  int fold = 0;  // rows that are taken as one; 0: these kernels do not suit
  int vectors = 0;
  int blocks = 1;
  int groups = 1;
  int slots = 0;
  int kept = 0;  // of the slots keep their tile where there are more tiles than slots
  bool streaming = false;
  int row_items = 0;   // a thread's rows whose sums it keeps, for parameters that belong to rows
  int64_t shared = 0;  // bytes
};

// How a kernel for layer norms over a middle axis cuts x: see columns_axis.h.
struct AxisCut {
  int lanes = 0;     // threads along a row of a strip; 0: these kernels do not suit
  int row_step = 1;  // threads along the axis
  int blocks = 1;
  int64_t shared = 0;  // bytes
};

// How a resident kernel for rows whose parameters belong to segments cuts them: see segments.h.
struct SegmentCut {
  int blocks = 0;      // to a row; 0: these kernels do not suit
  bool warps = false;  // to a row, in place of blocks
  int teams = 1;
  int slots = 0;
  bool streaming = false;
  int64_t shared = 0;  // bytes
};

struct ForwardPlan {
  ForwardProblem problem;
  Device device;
  Kernel kernel = Kernel::kNothing;
  Slabs slabs;
  StripTile strips;
  SegmentCut segments;
  int64_t workspace = 0;  // bytes, aligned to 16
  AxisCut axis;
};

struct BackwardPlan {
  BackwardProblem problem;
  Device device;
  bool want_dx = true;
  bool want_params = true;
  Kernel kernel = Kernel::kNothing;
  Slabs slabs;
  StripTile strips;
  SegmentCut segments;
  int64_t partials = 0;   // blocks that keep sums of parameter gradients of their own
  int64_t workspace = 0;  // bytes, aligned to 16
  AxisCut axis;
};

Status PlanForward(const ForwardProblem& problem, const Device& device, ForwardPlan* plan);
Status PlanBackward(const BackwardProblem& problem, const Device& device, bool want_dx,
                    bool want_params, BackwardPlan* plan);

// stream: a cudaStream_t.
Status Launch(const ForwardPlan& plan, const ForwardBuffers& buffers, void* workspace,
              void* stream);
Status Launch(const BackwardPlan& plan, const BackwardBuffers& buffers, void* workspace,
              void* stream);

}  // namespace cuda
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CUDA_NORMS_H_
