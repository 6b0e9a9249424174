// Runs of numbers of any type, read and written as float or double.
#ifndef NV_NORMS_KERNELS_CPU_CONVERT_H_
#define NV_NORMS_KERNELS_CPU_CONVERT_H_

#include <cstdint>
#include <vector>

#include "kernels/problem.h"

namespace nv_norms {
namespace cpu {

// A: float or double. offset counts elements.
template <typename A>
void Load(DType type, const void* from, int64_t offset, int64_t count, A* to);
template <typename A>
void Store(DType type, const A* from, int64_t count, void* to, int64_t offset);

template <typename A>
constexpr DType TypeOf();
template <>
constexpr DType TypeOf<float>() {
  return DType::kFloat;
}
template <>
constexpr DType TypeOf<double>() {
  return DType::kDouble;
}

// Reads a tensor as A: in place where it is of that type, else through a buffer of its own.
template <typename A>
class Reader {
 public:
  Reader(DType type, const void* data) : type_(type), data_(data) {}
  // Valid until the next call.
  const A* Get(int64_t offset, int64_t count) {
    if (type_ == TypeOf<A>()) return static_cast<const A*>(data_) + offset;
    if (static_cast<int64_t>(buffer_.size()) < count) buffer_.resize(count);
    Load(type_, data_, offset, count, buffer_.data());
    return buffer_.data();
  }

 private:
  DType type_;
  const void* data_;
  std::vector<A> buffer_;
};

// Writes a tensor as A: get room for a run, fill it, commit it.
template <typename A>
class Writer {
 public:
  Writer(DType type, void* data) : type_(type), data_(data) {}
  A* Room(int64_t offset, int64_t count) {
    if (type_ == TypeOf<A>()) return static_cast<A*>(data_) + offset;
    if (static_cast<int64_t>(buffer_.size()) < count) buffer_.resize(count);
    return buffer_.data();
  }
  void Commit(int64_t offset, int64_t count) {
    if (type_ != TypeOf<A>()) Store(type_, buffer_.data(), count, data_, offset);
  }

 private:
  DType type_;
  void* data_;
  std::vector<A> buffer_;
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
  A At(int64_t index, A absent) const { return values_ == nullptr ? absent : values_[index]; }
  const A* From(int64_t index) const { return values_ == nullptr ? nullptr : values_ + index; }

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
