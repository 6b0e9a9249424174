#include "plugin/graph/shapes.h"

#include <algorithm>
#include <memory>
#include <string>

#include "tensorflow/c/tf_buffer.h"
#include "tensorflow/c/tf_status.h"
#include "tensorflow/core/framework/tensor_shape.pb.h"
#include "tensorflow/core/grappler/costs/op_performance_data.pb.h"

namespace nv_norms {
namespace {

using StatusPtr = std::unique_ptr<TF_Status, decltype(&TF_DeleteStatus)>;

StatusPtr NewStatus() { return StatusPtr(TF_NewStatus(), &TF_DeleteStatus); }

TensorInfo Parse(const TF_Buffer& buffer) {
  tensorflow::OpInfo::TensorProperties properties;
  TensorInfo info;
  if (!properties.ParseFromArray(buffer.data, static_cast<int>(buffer.length))) return info;
  info.dtype = properties.dtype();
  info.rank_known = !properties.shape().unknown_rank();
  for (const auto& dim : properties.shape().dim()) info.dims.push_back(dim.size());
  return info;
}

}  // namespace

bool IsKnown(const TensorInfo& info) {
  return info.rank_known &&
         std::all_of(info.dims.begin(), info.dims.end(), [](int64_t size) { return size >= 0; });
}

Shapes::Shapes(TF_GrapplerItem* item, const GraphView* view)
    : properties_(TF_NewGraphProperties(item)), view_(view) {}

Shapes::~Shapes() { TF_DeleteGraphProperties(properties_); }

absl::Status Shapes::Infer(bool feeds_fit) {
  StatusPtr status = NewStatus();
  TF_InferStatically(properties_, /*assume_valid_feeds=*/feeds_fit ? 1 : 0,
                     /*aggressive_shape_inference=*/0,
                     /*include_input_tensor_values=*/0, /*include_output_tensor_values=*/0,
                     status.get());
  if (TF_GetCode(status.get()) == TF_OK) return absl::OkStatus();
  return absl::InternalError(TF_Message(status.get()));
}

const TensorInfo& Shapes::Get(TensorId tensor) const {
  static const TensorInfo* const kUnknown = new TensorInfo;
  auto found = known_.find(tensor.node);
  if (found == known_.end()) {
    std::vector<TensorInfo> outputs;
    StatusPtr status = NewStatus();
    const char* name = view_->name(tensor.node).c_str();
    int count = 0;
    TF_GetOutputPropertiesListSize(properties_, name, &count, status.get());
    if (TF_GetCode(status.get()) == TF_OK && count > 0) {
      std::vector<TF_Buffer> buffers(count);
      std::vector<TF_Buffer*> pointers(count);
      for (int i = 0; i < count; ++i) {
        buffers[i] = TF_Buffer{nullptr, 0, nullptr};
        pointers[i] = &buffers[i];
      }
      TF_GetOutputPropertiesList(properties_, name, pointers.data(), count, status.get());
      for (TF_Buffer& buffer : buffers) {
        outputs.push_back(Parse(buffer));
        if (buffer.data_deallocator != nullptr) {
          buffer.data_deallocator(const_cast<void*>(buffer.data), buffer.length);
        }
      }
    }
    found = known_.emplace(tensor.node, Outputs{std::move(outputs)}).first;
  }
  Outputs& outputs = found->second;
  if (outputs.equated < equal_.size()) {
    for (TensorInfo& info : outputs.infos) {
      for (int64_t& size : info.dims) size = Representative(size);
    }
    outputs.equated = equal_.size();
  }
  if (tensor.port >= static_cast<int>(outputs.infos.size())) return *kUnknown;
  return outputs.infos[tensor.port];
}

int64_t Shapes::Representative(int64_t size) const {
  for (auto found = equal_.find(size); found != equal_.end(); found = equal_.find(size)) {
    size = found->second;
  }
  return size;
}

void Shapes::Equate(int64_t a, int64_t b) {
  a = Representative(a);
  b = Representative(b);
  if (a != b) equal_[a] = b;
}

void Shapes::SetOutput(TensorId tensor, TensorInfo info) {
  Get(tensor);
  Outputs& outputs = known_[tensor.node];
  outputs.equated = 0;
  if (tensor.port < static_cast<int>(outputs.infos.size())) {
    outputs.infos[tensor.port] = std::move(info);
  }
}

}  // namespace nv_norms
