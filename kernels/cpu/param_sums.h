// dgamma and dbeta while they are being added up.
#ifndef NV_NORMS_KERNELS_CPU_PARAM_SUMS_H_
#define NV_NORMS_KERNELS_CPU_PARAM_SUMS_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/cpu/convert.h"
#include "kernels/cpu/norms.h"
#include "kernels/cpu/zero_pages.h"
#include "kernels/problem.h"

namespace nv_norms {
namespace cpu {

// `blocks` arrays of `size` sums each. Where only dbeta is wanted dgamma is added up as well.
class ParamSums {
 public:
  static bool Wanted(const BackwardBuffers& buffers) {
    return buffers.dgamma != nullptr || buffers.dbeta != nullptr;
  }

  ParamSums(const BackwardBuffers& buffers, int64_t blocks, int64_t size)
      : blocks_(blocks),
        size_(size),
        dgamma_(Wanted(buffers) ? blocks * size : 0),
        dbeta_(buffers.dbeta == nullptr ? 0 : blocks * size) {}

  // The first sum of a block, or null.
  double* Gamma(int64_t block, int64_t at = 0) { return Find(&dgamma_, block, at); }
  double* Beta(int64_t block, int64_t at = 0) { return Find(&dbeta_, block, at); }

  void Clear() {
    std::fill(dgamma_.begin(), dgamma_.end(), 0.0);
    std::fill(dbeta_.begin(), dbeta_.end(), 0.0);
  }

  // Adds the first `count` sums of another's block to this one's block 0, from `at` on.
  void AddRun(const ParamSums& other, int64_t block, int64_t count, int64_t at) {
    const int64_t from = block * other.size_;
    for (int64_t i = 0; !dgamma_.empty() && i < count; ++i)
      dgamma_[at + i] += other.dgamma_[from + i];
    for (int64_t i = 0; !dbeta_.empty() && i < count; ++i) dbeta_[at + i] += other.dbeta_[from + i];
  }

  // Adds up the blocks in order, and stores what is wanted.
  void Store(const BackwardProblem& problem, const BackwardBuffers& buffers,
             const ParallelFor& parallel_for) const {
    if (!Wanted(buffers)) return;
    parallel_for(problem.geometry.params, 2 * blocks_, [&](int64_t begin, int64_t end) {
      StoreRange(dgamma_, problem.dparam, begin, end, buffers.dgamma);
      StoreRange(dbeta_, problem.dparam, begin, end, buffers.dbeta);
    });
  }

 private:
  double* Find(Zeroed<double>* sums, int64_t block, int64_t at) {
    return sums->empty() ? nullptr : sums->data() + block * size_ + at;
  }

  void StoreRange(const Zeroed<double>& from, DType type, int64_t begin, int64_t end,
                  void* to) const {
    if (to == nullptr) return;
    std::vector<double> total(from.begin() + begin, from.begin() + end);
    for (int64_t block = 1; block < blocks_; ++block) {
      const double* at = from.data() + block * size_ + begin;
      for (int64_t i = 0; i < end - begin; ++i) total[i] += at[i];
    }
    cpu::Store(type, total.data(), end - begin, to, begin);
  }

  int64_t blocks_;
  int64_t size_;
  Zeroed<double> dgamma_;
  Zeroed<double> dbeta_;
};

}  // namespace cpu
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CPU_PARAM_SUMS_H_
