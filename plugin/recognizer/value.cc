#include "plugin/recognizer/value.h"

#include <algorithm>
#include <cmath>
#include <iterator>

namespace nv_norms {
namespace {

// Strides of `of` along the axes of `atoms`; 0 where it does not vary.
std::vector<int> Strides(const Numbers& of, const std::vector<Atom>& atoms) {
  std::vector<int> strides(atoms.size(), 0);
  int stride = 1;
  for (int i = static_cast<int>(of.atoms.size()) - 1; i >= 0; --i) {
    const auto at = std::find(atoms.begin(), atoms.end(), of.atoms[i]);
    if (at != atoms.end()) strides[at - atoms.begin()] = stride;
    stride *= of.sizes[i];
  }
  return strides;
}

// Calls f(offset_a, offset_b) for each element of the space, in row-major order.
template <typename F>
void Walk(const std::vector<int>& sizes, const std::vector<int>& a, const std::vector<int>& b,
          F f) {
  std::vector<int> index(sizes.size(), 0);
  int offset_a = 0, offset_b = 0;
  while (true) {
    f(offset_a, offset_b);
    int i = static_cast<int>(sizes.size()) - 1;
    for (; i >= 0; --i) {
      offset_a += a[i];
      offset_b += b[i];
      if (++index[i] < sizes[i]) break;
      offset_a -= a[i] * sizes[i];
      offset_b -= b[i] * sizes[i];
      index[i] = 0;
    }
    if (i < 0) return;
  }
}

int Count(const std::vector<int>& sizes) {
  int count = 1;
  for (int size : sizes) count *= size;
  return count;
}

}  // namespace

bool Numbers::VariesAlong(Atom atom) const {
  return std::binary_search(atoms.begin(), atoms.end(), atom);
}

Numbers Map(const Numbers& a, const std::function<double(double)>& f) {
  Numbers out = a;
  for (double& v : out.data) v = f(v);
  return out;
}

Numbers Zip(const Numbers& a, const Numbers& b, const std::function<double(double, double)>& f) {
  Numbers out;
  std::set_union(a.atoms.begin(), a.atoms.end(), b.atoms.begin(), b.atoms.end(),
                 std::back_inserter(out.atoms));
  for (Atom atom : out.atoms) {
    const Numbers& has = a.VariesAlong(atom) ? a : b;
    out.sizes.push_back(
        has.sizes[std::lower_bound(has.atoms.begin(), has.atoms.end(), atom) - has.atoms.begin()]);
  }
  out.data.reserve(Count(out.sizes));
  Walk(out.sizes, Strides(a, out.atoms), Strides(b, out.atoms),
       [&](int i, int j) { out.data.push_back(f(a.data[i], b.data[j])); });
  return out;
}

Numbers MeanOver(const Numbers& a, const std::vector<Atom>& atoms) {
  Numbers out;
  for (size_t i = 0; i < a.atoms.size(); ++i) {
    if (std::find(atoms.begin(), atoms.end(), a.atoms[i]) != atoms.end()) continue;
    out.atoms.push_back(a.atoms[i]);
    out.sizes.push_back(a.sizes[i]);
  }
  out.data.assign(Count(out.sizes), 0.0);
  Walk(a.sizes, Strides(a, a.atoms), Strides(out, a.atoms),
       [&](int i, int j) { out.data[j] += a.data[i]; });
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
  const double difference = MaxAbs(Zip(a, b, [](double p, double q) { return p - q; }));
  return difference <= tolerance * std::max(MaxAbs(a), MaxAbs(b));
}

std::vector<Atom> Value::Flat() const {
  std::vector<Atom> flat;
  for (const Dim& dim : dims) flat.insert(flat.end(), dim.begin(), dim.end());
  return flat;
}

}  // namespace nv_norms
