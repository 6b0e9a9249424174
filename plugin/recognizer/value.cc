#include "plugin/recognizer/value.h"

#include <algorithm>
#include <cmath>
#include <iterator>

namespace nv_norms {
namespace {

// Strides of `of` along the axes of `atoms`; 0 where it does not vary.
Dim Strides(const Numbers& of, const Dim& atoms) {
  Dim strides(atoms.size(), 0);
  int stride = 1;
  for (int i = static_cast<int>(of.atoms.size()) - 1; i >= 0; --i) {
    const auto at = std::lower_bound(atoms.begin(), atoms.end(), of.atoms[i]);
    if (at != atoms.end() && *at == of.atoms[i]) strides[at - atoms.begin()] = stride;
    stride *= of.sizes[i];
  }
  return strides;
}

}  // namespace

bool Numbers::VariesAlong(Atom atom) const {
  return std::binary_search(atoms.begin(), atoms.end(), atom);
}

bool Numbers::VariesWithin(const Numbers& whole) const {
  return std::all_of(atoms.begin(), atoms.end(),
                     [&](Atom atom) { return whole.VariesAlong(atom); });
}

Pair::Pair(const Numbers& a, const Numbers& b) {
  std::set_union(a.atoms.begin(), a.atoms.end(), b.atoms.begin(), b.atoms.end(),
                 std::back_inserter(atoms_));
  for (Atom atom : atoms_) {
    const Numbers& has = a.VariesAlong(atom) ? a : b;
    const auto at = std::lower_bound(has.atoms.begin(), has.atoms.end(), atom);
    sizes_.push_back(has.sizes[at - has.atoms.begin()]);
    count_ *= sizes_.back();
  }
  stride_a_ = Strides(a, atoms_);
  stride_b_ = Strides(b, atoms_);
}

Numbers MeanOver(const Numbers& a, const Dim& atoms) {
  Numbers out;
  int count = 1;
  for (size_t i = 0; i < a.atoms.size(); ++i) {
    if (std::find(atoms.begin(), atoms.end(), a.atoms[i]) != atoms.end()) continue;
    out.atoms.push_back(a.atoms[i]);
    out.sizes.push_back(a.sizes[i]);
    count *= a.sizes[i];
  }
  out.data.assign(count, 0.0);
  Pair(a, out).Walk([&](int i, int j) {
    out.data[j] += a.data[i];
    return true;
  });
  const double share = static_cast<double>(out.data.size()) / a.data.size();
  for (double& v : out.data) v *= share;
  return out;
}

double MaxAbs(const Numbers& a) {
  double largest = 0;
  for (double v : a.data) {
    if (!std::isfinite(v)) return std::nan("");
    largest = std::max(largest, std::fabs(v));
  }
  return largest;
}

bool Close(const Numbers& a, const Numbers& b, double tolerance) {
  const double limit = tolerance * std::max(MaxAbs(a), MaxAbs(b));
  if (!(limit >= 0)) return false;
  bool close = true;
  Pair(a, b).Walk([&](int i, int j) { return close = std::fabs(a.data[i] - b.data[j]) <= limit; });
  return close;
}

bool CloseToProduct(const Numbers& a, const Numbers& b, const Numbers& c, double tolerance) {
  // The first elements of all three belong together.
  const double first = b.data[0] * c.data[0];
  const double loose = 1e3 * tolerance * (MaxAbs(a) + std::fabs(first));
  if (!(std::fabs(a.data[0] - first) <= loose)) return false;
  return Close(a, Zip(b, c, [](double p, double q) { return p * q; }), tolerance);
}

Dim Value::Flat() const {
  Dim flat;
  for (const Dim& dim : dims) flat.insert(flat.end(), dim.begin(), dim.end());
  return flat;
}

}  // namespace nv_norms
