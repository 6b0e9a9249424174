// Runs of numbers of any type, read and written as float or double.
#ifndef NV_NORMS_KERNELS_CPU_CONVERT_H_
#define NV_NORMS_KERNELS_CPU_CONVERT_H_

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "kernels/cpu/gather.h"
#include "kernels/cpu/types.h"
#include "kernels/problem.h"

namespace nv_norms {
namespace cpu {

// Elements that are converted at a time: two buffers of floats stay in a small L2 cache.
constexpr int64_t kConvertedElements = 16384;

// A: float or double. offset counts elements.
template <typename A>
void Load(DType type, const void* from, int64_t offset, int64_t count, A* to);
template <typename A>
void Store(DType type, const A* from, int64_t count, void* to, int64_t offset);

// Reads a tensor as T: in place where it is of that type, else, for T = float or double, through a
// buffer of its own. gather: where the elements of a run lie, or null: side by side.
template <typename T>
class Reader {
 public:
  Reader(DType type, const void* data, const Gather* gather = nullptr)
      : type_(type), data_(data), gather_(gather) {}
  bool in_place() const { return gather_ == nullptr && type_ == TypeOf<T>(); }
  // Valid until the next call.
  const T* Get(int64_t offset, int64_t count) {
    if (in_place()) return static_cast<const T*>(data_) + offset;
    if (static_cast<int64_t>(buffer_.size()) < count) buffer_.resize(count);
    Fill(offset, count, buffer_.data());
    return buffer_.data();
  }
  // `rows` runs of `width`, `step` apart in the tensor; *got_step apart in what is returned.
  const T* GetTile(int64_t offset, int64_t rows, int64_t width, int64_t step, int64_t* got_step) {
    *got_step = in_place() ? step : width;
    if (*got_step == step) return Get(offset, rows * width);
    if (static_cast<int64_t>(buffer_.size()) < rows * width) buffer_.resize(rows * width);
    for (int64_t r = 0; r < rows; ++r) {
      Fill(offset + r * step, width, buffer_.data() + r * width);
    }
    return buffer_.data();
  }

 private:
  void Fill(int64_t offset, int64_t count, T* to) {
    if constexpr (std::is_floating_point_v<T>) {
      if (gather_ == nullptr) return Load(type_, data_, offset, count, to);
      gather_->ForRuns(offset, count, [&](int64_t from, int64_t size, int64_t at) {
        Load(type_, data_, from, size, to + at);
      });
    }
  }

  DType type_;
  const void* data_;
  const Gather* gather_;
  std::vector<T> buffer_;
};

// Writes a tensor as T: get room for a run, fill it, commit it. gather: as Reader's.
template <typename T>
class Writer {
 public:
  Writer(DType type, void* data, const Gather* gather = nullptr)
      : type_(type), data_(data), gather_(gather) {}
  bool in_place() const { return gather_ == nullptr && type_ == TypeOf<T>(); }
  T* Room(int64_t offset, int64_t count) {
    if (in_place()) return static_cast<T*>(data_) + offset;
    if (static_cast<int64_t>(buffer_.size()) < count) buffer_.resize(count);
    return buffer_.data();
  }
  // Runs of `width`, `step` apart in the tensor; where the room is a buffer: got_step.
  void CommitTile(int64_t offset, int64_t rows, int64_t width, int64_t step) {
    if constexpr (std::is_floating_point_v<T>) {
      if (in_place()) return;
      for (int64_t r = 0; r < rows; ++r) {
        const T* from = buffer_.data() + r * width;
        if (gather_ == nullptr) {
          Store(type_, from, width, data_, offset + r * step);
          continue;
        }
        gather_->ForRuns(offset + r * step, width, [&](int64_t to, int64_t size, int64_t at) {
          Store(type_, from + at, size, data_, to);
        });
      }
    }
  }
  void Commit(int64_t offset, int64_t count) { CommitTile(offset, 1, count, count); }

 private:
  DType type_;
  void* data_;
  const Gather* gather_;
  std::vector<T> buffer_;
};

// A parameter tensor, or none, as A.
template <typename A>
class Params {
 public:
  Params(DType type, const void* data, int64_t count) {
    if (data == nullptr) return;
    if (type == TypeOf<A>()) {
      values_ = static_cast<const A*>(data);
      return;
    }
    buffer_.resize(count);
    Load(type, data, 0, count, buffer_.data());
    values_ = buffer_.data();
  }
  const A* data() const { return values_; }

 private:
  const A* values_ = nullptr;
  std::vector<A> buffer_;
};

template <typename A>
void StoreOne(DType type, A value, void* to, int64_t offset) {
  if (to != nullptr) Store(type, &value, 1, to, offset);
}

}  // namespace cpu
}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_CPU_CONVERT_H_
