#include "kernels/xla/handlers/handler.h"

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "kernels/xla/call.h"

namespace xla {
namespace ffi {

// Of TensorFlow's libraries. Its own header wants headers that the wheel lacks.
__attribute__((visibility("default"))) const XLA_FFI_Api* GetXlaFfiApi();

}  // namespace ffi
}  // namespace xla

namespace nv_norms {
namespace xla_call {
namespace {

namespace ffi = xla::ffi;

Status ToStatus(const ffi::Error& error) { return Status::Internal(error.message()); }

// Collects values until one is missing; `status` tells which.
class Attributes {
 public:
  explicit Attributes(const ffi::Dictionary& attributes) : attributes_(attributes) {}

  template <typename T>
  T Get(const char* name) {
    ffi::ErrorOr<T> value = attributes_.get<T>(name);
    if (value.has_value()) return *value;
    if (status_.ok()) status_ = ToStatus(value.error());
    return T();
  }

  Formula GetFormula() { return static_cast<Formula>(Get<int64_t>("formula")); }
  Activation GetActivation() { return {Get<double>("negative_slope"), Get<bool>("silu")}; }

  // The geometry, or what any value was missing.
  Status Finish(Geometry* geometry) {
    using Numbers = ffi::Span<const int64_t>;
    const Numbers sizes = Get<Numbers>("sizes");
    const Numbers reduced = Get<Numbers>("reduced");
    const Numbers strides = Get<Numbers>("strides");
    if (!status_.ok()) return status_;
    if (sizes.size() != reduced.size() || sizes.size() != strides.size()) {
      return Status::Internal("sizes, reduced and strides differ in length");
    }
    std::vector<Axis> axes(sizes.size());
    for (size_t i = 0; i < axes.size(); ++i) {
      axes[i].size = sizes[i];
      axes[i].reduced = reduced[i] != 0;
      axes[i].param_stride = strides[i];
    }
    return geometry_internal::Finish(axes, geometry);
  }

 private:
  const ffi::Dictionary& attributes_;
  Status status_;
};

// Takes buffers one after the other and checks how many elements they have.
class Buffers {
 public:
  Buffers(const ffi::RemainingArgs& operands, const ffi::RemainingRets& results)
      : operands_(operands), results_(results) {}

  void Operand(int64_t elements, DType* type, const void** data) {
    auto buffer = operands_.get<ffi::AnyBuffer>(operand_++);
    if (!buffer.has_value()) return Fail(ToStatus(buffer.error()));
    Take(*buffer, elements, type);
    *data = buffer->untyped_data();
  }

  void Result(int64_t elements, DType* type, void** data) {
    auto buffer = results_.get<ffi::AnyBuffer>(result_++);
    if (!buffer.has_value()) return Fail(ToStatus(buffer.error()));
    Take(**buffer, elements, type);
    *data = (*buffer)->untyped_data();
  }

  Status Finish(Workspace* workspace) {
    if (result_ < results_.size()) {
      auto buffer = results_.get<ffi::AnyBuffer>(result_++);
      if (!buffer.has_value()) return ToStatus(buffer.error());
      workspace->data = (*buffer)->untyped_data();
      workspace->bytes = static_cast<int64_t>((*buffer)->size_bytes());
    }
    if (status_.ok() && (operand_ != operands_.size() || result_ != results_.size())) {
      return Status::Internal("the call has more buffers than its attributes say");
    }
    return status_;
  }

 private:
  void Fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }

  void Take(const ffi::AnyBuffer& buffer, int64_t elements, DType* type) {
    switch (buffer.element_type()) {
      case ffi::F16:
        *type = DType::kHalf;
        break;
      case ffi::BF16:
        *type = DType::kBfloat16;
        break;
      case ffi::F32:
        *type = DType::kFloat;
        break;
      case ffi::F64:
        *type = DType::kDouble;
        break;
      default:
        return Fail(Status::Internal("a buffer is of a type that is not a floating-point type"));
    }
    if (static_cast<int64_t>(buffer.element_count()) != elements) {
      Fail(Status::Internal("a buffer has " + std::to_string(buffer.element_count()) +
                            " elements, expected " + std::to_string(elements)));
    }
  }

  const ffi::RemainingArgs& operands_;
  const ffi::RemainingRets& results_;
  size_t operand_ = 0;
  size_t result_ = 0;
  Status status_;
};

}  // namespace

Status Read(const ffi::RemainingArgs& operands, const ffi::RemainingRets& results,
            const ffi::Dictionary& attributes, ForwardProblem* problem, ForwardBuffers* buffers,
            Workspace* workspace) {
  Attributes read(attributes);
  problem->formula = read.GetFormula();
  problem->epsilon = read.Get<double>("epsilon");
  problem->activation = read.GetActivation();
  const bool scale = read.Get<bool>("scale");
  const bool offset = read.Get<bool>("offset");
  const Status status = read.Finish(&problem->geometry);
  if (!status.ok()) return status;

  const Geometry& g = problem->geometry;
  Buffers take(operands, results);
  DType stat;
  take.Operand(g.elements, &problem->x, &buffers->x);
  problem->param = problem->x;
  if (scale) take.Operand(g.params, &problem->param, &buffers->gamma);
  if (offset) take.Operand(g.params, &problem->param, &buffers->beta);
  take.Result(g.elements, &problem->y, &buffers->y);
  if (problem->formula != Formula::kRms) take.Result(g.statistics, &stat, &buffers->mean);
  take.Result(g.statistics, &stat, &buffers->rstd);
  return take.Finish(workspace);
}

Status Read(const ffi::RemainingArgs& operands, const ffi::RemainingRets& results,
            const ffi::Dictionary& attributes, BackwardProblem* problem, BackwardBuffers* buffers,
            Workspace* workspace) {
  Attributes read(attributes);
  problem->formula = read.GetFormula();
  problem->activation = read.GetActivation();
  const bool scale = read.Get<bool>("scale");
  const bool offset = read.Get<bool>("offset");
  const bool dx = read.Get<bool>("dx");
  const bool dscale = read.Get<bool>("dscale");
  const bool doffset = read.Get<bool>("doffset");
  const Status status = read.Finish(&problem->geometry);
  if (!status.ok()) return status;

  const Geometry& g = problem->geometry;
  Buffers take(operands, results);
  DType stat;
  take.Operand(g.elements, &problem->dy, &buffers->dy);
  take.Operand(g.elements, &problem->x, &buffers->x);
  problem->dx = problem->param = problem->x;
  if (scale) take.Operand(g.params, &problem->param, &buffers->gamma);
  if (offset) take.Operand(g.params, &problem->param, &buffers->beta);
  if (problem->formula != Formula::kRms) take.Operand(g.statistics, &stat, &buffers->mean);
  take.Operand(g.statistics, &stat, &buffers->rstd);
  // The type of an output that is not wanted makes the computation no wider, and asks for no other
  // kernel.
  if (dx) take.Result(g.elements, &problem->dx, &buffers->dx);
  if (dscale) take.Result(g.params, &problem->dparam, &buffers->dgamma);
  if (doffset) take.Result(g.params, &problem->dparam, &buffers->dbeta);
  return take.Finish(workspace);
}

ffi::Error ToXla(const Status& status) {
  switch (status.code()) {
    case Status::Code::kOk:
      return ffi::Error::Success();
    case Status::Code::kInvalidArgument:
      return ffi::Error::InvalidArgument(status.message());
    case Status::Code::kUnimplemented:
      return ffi::Error(ffi::ErrorCode::kUnimplemented, status.message());
    case Status::Code::kInternal:
      break;
  }
  return ffi::Error::Internal(status.message());
}

bool Register(const char* target, const char* platform, XLA_FFI_Handler* handler,
              XLA_FFI_Handler_Traits traits) {
  const XLA_FFI_Api* api = ffi::GetXlaFfiApi();
  XLA_FFI_Error* error = ffi::Ffi::RegisterStaticHandler(api, target, platform, handler, traits);
  if (error == nullptr) return true;
  const std::string message = ffi::internal::GetErrorMessage(api, error);
  ffi::internal::DestroyError(api, error);
  std::fprintf(stderr, "nv_norms_rewriter: XLA does not take the handler %s for %s: %s\n", target,
               platform, message.c_str());
  return false;
}

}  // namespace xla_call
}  // namespace nv_norms
