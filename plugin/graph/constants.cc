#include "plugin/graph/constants.h"

#include <cstring>

#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/framework/tensor.pb.h"
#include "tensorflow/core/framework/tensor_shape.pb.h"

namespace nv_norms {
namespace {

using tensorflow::DataType;
using tensorflow::TensorProto;

constexpr int kMaxInts = 64;

const TensorProto* ConstTensor(const GraphView& view, int node) {
  if (view.op(node) != "Const") return nullptr;
  auto found = view.def(node).attr().find("value");
  return found == view.def(node).attr().end() ? nullptr : &found->second.tensor();
}

int64_t NumElements(const TensorProto& tensor) {
  int64_t count = 1;
  for (const auto& dim : tensor.tensor_shape().dim()) count *= dim.size();
  return count;
}

double HalfToDouble(uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int mantissa = bits & 1023;
  const double sign = bits >> 15 ? -1.0 : 1.0;
  if (exponent == 31) return mantissa != 0 ? __builtin_nan("") : sign * __builtin_inf();
  if (exponent == 0) return sign * mantissa / double{1 << 24};
  const double significand = 1.0 + mantissa / 1024.0;
  return sign * (exponent >= 15 ? significand * (1 << (exponent - 15))
                                : significand / (1 << (15 - exponent)));
}

double BFloat16ToDouble(uint16_t bits) {
  const uint32_t wide = uint32_t{bits} << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

int ByteWidth(DataType dtype) {
  switch (dtype) {
    case tensorflow::DT_HALF:
    case tensorflow::DT_BFLOAT16:
      return 2;
    case tensorflow::DT_FLOAT:
    case tensorflow::DT_INT32:
      return 4;
    default:
      return 8;
  }
}

template <typename T>
T Read(const std::string& bytes, int64_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at * sizeof(T), sizeof(T));
  return value;
}

// Element `at`, where a value field that is too short repeats its last element.
template <typename Field>
typename Field::value_type At(const Field& field, int64_t at) {
  if (field.size() == 0) return 0;
  return field.Get(static_cast<int>(at < field.size() ? at : field.size() - 1));
}

double FloatElement(const TensorProto& tensor, int64_t at) {
  const std::string& content = tensor.tensor_content();
  const bool raw = !content.empty();
  switch (tensor.dtype()) {
    case tensorflow::DT_HALF:
      return HalfToDouble(raw ? Read<uint16_t>(content, at)
                              : static_cast<uint16_t>(At(tensor.half_val(), at)));
    case tensorflow::DT_BFLOAT16:
      return BFloat16ToDouble(raw ? Read<uint16_t>(content, at)
                                  : static_cast<uint16_t>(At(tensor.half_val(), at)));
    case tensorflow::DT_FLOAT:
      return raw ? Read<float>(content, at) : At(tensor.float_val(), at);
    default:
      return raw ? Read<double>(content, at) : At(tensor.double_val(), at);
  }
}

int64_t IntElement(const TensorProto& tensor, int64_t at) {
  const std::string& content = tensor.tensor_content();
  const bool raw = !content.empty();
  if (tensor.dtype() == tensorflow::DT_INT32) {
    return raw ? Read<int32_t>(content, at) : At(tensor.int_val(), at);
  }
  return raw ? Read<int64_t>(content, at) : At(tensor.int64_val(), at);
}

int ValueCount(const TensorProto& tensor) {
  switch (tensor.dtype()) {
    case tensorflow::DT_HALF:
    case tensorflow::DT_BFLOAT16:
      return tensor.half_val_size();
    case tensorflow::DT_FLOAT:
      return tensor.float_val_size();
    default:
      return tensor.double_val_size();
  }
}

// No value if it is not a permutation.
std::optional<IntTensor> Inverse(const IntTensor& order) {
  const int64_t size = static_cast<int64_t>(order.values.size());
  IntTensor inverse{false, std::vector<int64_t>(size, -1)};
  for (int64_t i = 0; i < size; ++i) {
    const int64_t to = order.values[i];
    if (to < 0 || to >= size || inverse.values[to] >= 0) return std::nullopt;
    inverse.values[to] = i;
  }
  return inverse;
}

}  // namespace

bool IsFloat(DataType dtype) {
  return IsNarrow(dtype) || dtype == tensorflow::DT_FLOAT || dtype == tensorflow::DT_DOUBLE;
}

bool IsInt(DataType dtype) {
  return dtype == tensorflow::DT_INT32 || dtype == tensorflow::DT_INT64;
}

bool IsNarrow(DataType dtype) {
  return dtype == tensorflow::DT_HALF || dtype == tensorflow::DT_BFLOAT16;
}

bool IsWideningCast(const GraphView& view, int node) {
  return view.op(node) == "Cast" && view.GetType(node, "DstT") == tensorflow::DT_FLOAT &&
         IsNarrow(view.GetType(node, "SrcT"));
}

bool IsRoundingOf(const GraphView& view, int node, DataType dtype) {
  const auto digits = [](DataType of) {
    if (of == tensorflow::DT_BFLOAT16) return 8;
    if (of == tensorflow::DT_HALF) return 11;
    return of == tensorflow::DT_FLOAT ? 24 : 53;
  };
  if (view.op(node) != "Cast") return false;
  const DataType to = view.GetType(node, "DstT");
  return IsFloat(to) && digits(to) < digits(dtype);
}

std::optional<double> FloatSplat(const GraphView& view, int node) {
  const TensorProto* tensor = ConstTensor(view, node);
  if (tensor == nullptr || !IsFloat(tensor->dtype()) || NumElements(*tensor) < 1) {
    return std::nullopt;
  }
  if (!tensor->tensor_content().empty()) {
    const std::string& content = tensor->tensor_content();
    const size_t width = ByteWidth(tensor->dtype());
    if (content.size() < width || content.size() != NumElements(*tensor) * width) {
      return std::nullopt;
    }
    if (std::memcmp(content.data(), content.data() + width, content.size() - width) != 0) {
      return std::nullopt;
    }
  } else {
    const double first = FloatElement(*tensor, 0);
    for (int i = 1; i < ValueCount(*tensor); ++i) {
      if (FloatElement(*tensor, i) != first) return std::nullopt;
    }
  }
  return FloatElement(*tensor, 0);
}

namespace {

std::optional<IntTensor> IntsOfConst(const GraphView& view, int node) {
  const TensorProto* tensor = ConstTensor(view, node);
  if (tensor == nullptr || tensor->tensor_shape().dim_size() > 1) return std::nullopt;
  auto ints = IntElements(view, node);
  if (!ints) return std::nullopt;
  return IntTensor{tensor->tensor_shape().dim_size() == 0, std::move(*ints)};
}

// Of Consts that are vectors, one behind the other.
std::optional<IntTensor> Joined(const GraphView& view, int node) {
  const std::vector<TensorId>& inputs = view.inputs(node);
  const auto axis = IntsOfConst(view, inputs.back().node);
  if (!axis || axis->values.size() != 1) return std::nullopt;
  if (axis->values[0] != 0 && axis->values[0] != -1) return std::nullopt;
  IntTensor joined{/*scalar=*/false, {}};
  for (size_t i = 0; i + 1 < inputs.size(); ++i) {
    const auto ints = IntsOfConst(view, inputs[i].node);
    if (!ints || ints->scalar || joined.values.size() + ints->values.size() > kMaxInts) {
      return std::nullopt;
    }
    joined.values.insert(joined.values.end(), ints->values.begin(), ints->values.end());
  }
  return joined;
}

}  // namespace

std::optional<IntTensor> IntConstant(const GraphView& view, int node) {
  const bool inverted = view.op(node) == "InvertPermutation";
  const int source = inverted ? view.inputs(node)[0].node : node;
  const auto ints =
      view.op(source) == "ConcatV2" ? Joined(view, source) : IntsOfConst(view, source);
  return ints && inverted ? Inverse(*ints) : ints;
}

std::optional<std::vector<int64_t>> IntElements(const GraphView& view, int node) {
  const TensorProto* tensor = ConstTensor(view, node);
  if (tensor == nullptr || !IsInt(tensor->dtype())) return std::nullopt;
  const int64_t count = NumElements(*tensor);
  if (count > kMaxInts) return std::nullopt;
  if (!tensor->tensor_content().empty() &&
      static_cast<int64_t>(tensor->tensor_content().size()) != count * ByteWidth(tensor->dtype())) {
    return std::nullopt;
  }
  std::vector<int64_t> ints;
  for (int64_t i = 0; i < count; ++i) ints.push_back(IntElement(*tensor, i));
  return ints;
}

std::optional<std::vector<int64_t>> IntRow(const GraphView& view, int node, size_t row,
                                           size_t rows) {
  if (view.op(node) == "Pack" && view.GetInt(node, "axis", 0) == 0) {
    const std::vector<TensorId>& inputs = view.inputs(node);
    return inputs.size() == rows ? IntElements(view, inputs[row].node) : std::nullopt;
  }
  const auto all = IntElements(view, node);
  if (!all || rows == 0 || all->size() % rows != 0) return std::nullopt;
  const size_t width = all->size() / rows;
  return std::vector<int64_t>(all->begin() + row * width, all->begin() + (row + 1) * width);
}

}  // namespace nv_norms
