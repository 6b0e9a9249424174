#include "plugin/recognizer/size.h"

#include <algorithm>
#include <iterator>

namespace nv_norms {

Size Size::Unknown(int64_t symbol) {
  Size size;
  size.symbols_ = {symbol};
  return size;
}

Size Size::operator*(const Size& o) const {
  Size product;
  product.coefficient_ = coefficient_ * o.coefficient_;
  product.symbols_ = symbols_;
  product.symbols_.insert(product.symbols_.end(), o.symbols_.begin(), o.symbols_.end());
  std::sort(product.symbols_.begin(), product.symbols_.end());
  return product;
}

std::optional<Size> Size::DividedBy(const Size& o) const {
  if (o.coefficient_ <= 0 || coefficient_ % o.coefficient_ != 0) return std::nullopt;
  if (!std::includes(symbols_.begin(), symbols_.end(), o.symbols_.begin(), o.symbols_.end())) {
    return std::nullopt;
  }
  Size quotient(coefficient_ / o.coefficient_);
  std::set_difference(symbols_.begin(), symbols_.end(), o.symbols_.begin(), o.symbols_.end(),
                      std::back_inserter(quotient.symbols_));
  return quotient;
}

}  // namespace nv_norms
