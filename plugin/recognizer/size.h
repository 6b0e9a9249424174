#ifndef NV_NORMS_PLUGIN_RECOGNIZER_SIZE_H_
#define NV_NORMS_PLUGIN_RECOGNIZER_SIZE_H_

#include <cstdint>
#include <optional>
#include <vector>

namespace nv_norms {

// The size of a dimension: an integer times unknowns, such as 64 * s3 * s7. An unknown is
// written as the negative number that shape inference gave it, or as one that we made up.
class Size {
 public:
  Size() = default;
  explicit Size(int64_t known) : coefficient_(known) {}
  static Size Unknown(int64_t symbol);

  bool known() const { return symbols_.empty(); }
  int64_t coefficient() const { return coefficient_; }
  const std::vector<int64_t>& symbols() const { return symbols_; }
  bool Is(int64_t value) const { return known() && coefficient_ == value; }

  bool operator==(const Size& o) const {
    return coefficient_ == o.coefficient_ && symbols_ == o.symbols_;
  }
  bool operator!=(const Size& o) const { return !(*this == o); }

  Size operator*(const Size& o) const;
  // this / o where it divides without a rest, for sure.
  std::optional<Size> DividedBy(const Size& o) const;

 private:
  int64_t coefficient_ = 1;
  std::vector<int64_t> symbols_;  // sorted
};

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_RECOGNIZER_SIZE_H_
