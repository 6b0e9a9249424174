#ifndef NV_NORMS_KERNELS_STATUS_H_
#define NV_NORMS_KERNELS_STATUS_H_

#include <string>
#include <utility>

namespace nv_norms {

// What went wrong, in words for the user. The kernel library depends on no framework, so it has its
// own.
class Status {
 public:
  enum class Code { kOk, kInvalidArgument, kUnimplemented, kInternal };

  Status() = default;
  static Status InvalidArgument(std::string message) {
    return Status(Code::kInvalidArgument, std::move(message));
  }
  static Status Unimplemented(std::string message) {
    return Status(Code::kUnimplemented, std::move(message));
  }
  static Status Internal(std::string message) {
    return Status(Code::kInternal, std::move(message));
  }

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  Code code_ = Code::kOk;
  std::string message_;
};

}  // namespace nv_norms

#endif  // NV_NORMS_KERNELS_STATUS_H_
