#include "plugin/recognizer/size_tensor.h"

#include <algorithm>
#include <cstdint>

namespace nv_norms {
namespace {

constexpr size_t kMaxSizeCount = 64;  // of a vector that is made here

// The number that a tensor of one element holds.
std::optional<int64_t> OneNumber(const SizeTensor& sizes) {
  if (sizes.values.size() != 1 || !sizes.values[0].known()) return std::nullopt;
  return sizes.values[0].coefficient();
}

std::optional<Size> SizeArithmetic(const std::string& op, const Size& a, const Size& b) {
  if (op == "Mul") return a * b;
  if (op == "FloorDiv" || op == "RealDiv" || op == "Div") {
    if (const auto exact = a.DividedBy(b)) return exact;
    if (op == "FloorDiv" && a.known() && b.known() && a.coefficient() >= 0 && b.coefficient() > 0) {
      return Size(a.coefficient() / b.coefficient());
    }
    return std::nullopt;
  }
  if (op == "Maximum") {
    if (a == b) return a;
    if (a.known() && b.known()) return Size(std::max(a.coefficient(), b.coefficient()));
    // A size that is not known is at least 1.
    if (a.known() && a.coefficient() <= 1 && b.coefficient() > 0) return b;
    if (b.known() && b.coefficient() <= 1 && a.coefficient() > 0) return a;
    return std::nullopt;
  }
  if (!a.known() || !b.known()) return std::nullopt;
  if (op == "AddV2" || op == "Add") return Size(a.coefficient() + b.coefficient());
  if (op == "Sub") return Size(a.coefficient() - b.coefficient());
  if (op == "FloorMod" && b.coefficient() > 0) {
    return Size(((a.coefficient() % b.coefficient()) + b.coefficient()) % b.coefficient());
  }
  return std::nullopt;
}

}  // namespace

SizeTensor Joined(const std::vector<SizeTensor>& parts) {
  SizeTensor joined;
  for (const SizeTensor& part : parts) {
    joined.values.insert(joined.values.end(), part.values.begin(), part.values.end());
  }
  return joined;
}

MaybeSizes Gathered(const SizeTensor& from, const SizeTensor& places) {
  if (from.scalar) return std::nullopt;
  const int64_t count = static_cast<int64_t>(from.values.size());
  SizeTensor taken{places.scalar, {}};
  for (const Size& place : places.values) {
    const int64_t i = place.coefficient();
    if (!place.known() || i < 0 || i >= count) return std::nullopt;
    taken.values.push_back(from.values[i]);
  }
  return taken;
}

SizeTensor CountOf(const SizeTensor& sizes, bool scalar) {
  SizeTensor product{scalar, {Size(1)}};
  for (const Size& size : sizes.values) product.values[0] = product.values[0] * size;
  return product;
}

MaybeSizes RangeOf(const SizeTensor& from, const SizeTensor& to, const SizeTensor& step) {
  const auto first = OneNumber(from), end = OneNumber(to);
  if (!first || !end || OneNumber(step) != 1) return std::nullopt;
  SizeTensor range;
  for (int64_t i = *first; i < *end; ++i) {
    if (range.values.size() == kMaxSizeCount) return std::nullopt;
    range.values.push_back(Size(i));
  }
  return range;
}

MaybeSizes Filled(const SizeTensor& count, const SizeTensor& value) {
  if (count.values.size() > 1 || value.values.size() != 1) return std::nullopt;
  if (count.values.empty()) return SizeTensor{true, value.values};
  const auto number = OneNumber(count);
  if (!number || *number < 0 || *number > static_cast<int64_t>(kMaxSizeCount)) {
    return std::nullopt;
  }
  return SizeTensor{false, std::vector<Size>(*number, value.values[0])};
}

MaybeSizes Stitched(const std::vector<SizeTensor>& inputs) {
  const size_t parts = inputs.size() / 2;
  SizeTensor stitched;
  std::vector<bool> given;
  for (size_t i = 0; i < parts; ++i) {
    const std::vector<Size>& places = inputs[i].values;
    const std::vector<Size>& sizes = inputs[parts + i].values;
    if (places.size() != sizes.size()) return std::nullopt;
    for (size_t k = 0; k < places.size(); ++k) {
      const int64_t place = places[k].coefficient();
      const bool within = place >= 0 && place < static_cast<int64_t>(kMaxSizeCount);
      if (!places[k].known() || !within) return std::nullopt;
      const size_t size = std::max(stitched.values.size(), static_cast<size_t>(place) + 1);
      stitched.values.resize(size, Size(1));
      given.resize(size, false);
      stitched.values[place] = sizes[k];
      given[place] = true;
    }
  }
  if (std::find(given.begin(), given.end(), false) != given.end()) return std::nullopt;
  return stitched;
}

MaybeSizes SummedAxes(const SizeTensor& a, const SizeTensor& b, int which) {
  if (a.values == b.values) return SizeTensor{};
  const size_t rank = std::max(a.values.size(), b.values.size());
  const auto aligned = [rank](std::vector<Size> sizes) {
    sizes.insert(sizes.begin(), rank - sizes.size(), Size(1));
    return sizes;
  };
  const std::vector<Size> own = aligned((which == 0 ? a : b).values);
  const std::vector<Size> other = aligned((which == 0 ? b : a).values);
  SizeTensor axes;
  for (size_t i = 0; i < rank; ++i) {
    if (own[i].Is(1)) {
      axes.values.push_back(Size(static_cast<int64_t>(i)));
    } else if (own[i] != other[i] && !other[i].Is(1)) {
      return std::nullopt;
    }
  }
  return axes;
}

MaybeSizes BroadcastShape(const SizeTensor& a, const SizeTensor& b) {
  if (a.values.size() != b.values.size()) return std::nullopt;
  SizeTensor shape = a;
  for (size_t i = 0; i < shape.values.size(); ++i) {
    if (shape.values[i].Is(1)) {
      shape.values[i] = b.values[i];
    } else if (!b.values[i].Is(1) && b.values[i] != shape.values[i]) {
      return std::nullopt;
    }
  }
  return shape;
}

MaybeSizes Arithmetic(const std::string& op, const SizeTensor& a, const SizeTensor& b) {
  const size_t counts[] = {a.values.size(), b.values.size()};
  // One number is beside as many as the other has, none of them included: the axes of a mean of a
  // scalar, plus its rank.
  if (counts[0] != counts[1] && counts[0] != 1 && counts[1] != 1) return std::nullopt;
  const size_t count = counts[0] == 1 ? counts[1] : counts[0];
  SizeTensor result{a.scalar && b.scalar, {}};
  for (size_t i = 0; i < count; ++i) {
    const auto value =
        SizeArithmetic(op, a.values[counts[0] == 1 ? 0 : i], b.values[counts[1] == 1 ? 0 : i]);
    if (!value) return std::nullopt;
    result.values.push_back(*value);
  }
  return result;
}

}  // namespace nv_norms
