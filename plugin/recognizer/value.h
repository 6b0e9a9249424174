#ifndef NV_NORMS_PLUGIN_RECOGNIZER_VALUE_H_
#define NV_NORMS_PLUGIN_RECOGNIZER_VALUE_H_

#include <vector>

#include "plugin/recognizer/axes.h"

namespace nv_norms {

// Numbers indexed by atoms: a small array with one named axis for each atom along which it
// varies, in ascending order of the atoms. Views of a tensor share their numbers.
struct Numbers {
  Dim atoms;  // ascending
  Dim sizes;  // of the tiny model
  std::vector<double> data;

  static Numbers Scalar(double value) { return {{}, {}, {value}}; }
  bool VariesAlong(Atom atom) const;
  // Along no atom that `whole` has not.
  bool VariesWithin(const Numbers& whole) const;
};

inline double Plus(double a, double b) { return a + b; }
inline double Minus(double a, double b) { return a - b; }
inline double Times(double a, double b) { return a * b; }
inline double Over(double a, double b) { return a / b; }

// Elementwise, broadcasting by name.
template <typename F>
Numbers Map(const Numbers& a, F f) {
  Numbers out = a;
  for (double& v : out.data) v = f(v);
  return out;
}

// The space that two arrays span, and how to walk both of them through it in row-major order.
class Pair {
 public:
  Pair(const Numbers& a, const Numbers& b);
  const Dim& atoms() const { return atoms_; }
  const Dim& sizes() const { return sizes_; }
  int count() const { return count_; }

  // Calls f(offset in a, offset in b) for each element, until f gives false.
  template <typename F>
  void Walk(F f) const;

 private:
  Dim atoms_;
  Dim sizes_, stride_a_, stride_b_;
  int count_ = 1;
};

template <typename F>
void Pair::Walk(F f) const {
  int index[32] = {};
  int a = 0, b = 0;
  const int rank = static_cast<int>(sizes_.size());
  while (f(a, b)) {
    int i = rank - 1;
    for (; i >= 0; --i) {
      a += stride_a_[i];
      b += stride_b_[i];
      if (++index[i] < sizes_[i]) break;
      a -= stride_a_[i] * sizes_[i];
      b -= stride_b_[i] * sizes_[i];
      index[i] = 0;
    }
    if (i < 0) return;
  }
}

template <typename F>
Numbers Zip(const Numbers& a, const Numbers& b, F f) {
  const Pair pair(a, b);
  Numbers out{pair.atoms(), pair.sizes(), {}};
  out.data.reserve(pair.count());
  pair.Walk([&](int i, int j) {
    out.data.push_back(f(a.data[i], b.data[j]));
    return true;
  });
  return out;
}

// The mean over these atoms; atoms along which it does not vary change nothing.
Numbers MeanOver(const Numbers& a, const Dim& atoms);

double MaxAbs(const Numbers& a);
// max |a - b| <= tolerance * max(|a|, |b|), with no NaN anywhere.
bool Close(const Numbers& a, const Numbers& b, double tolerance);
// The same for a against b * c; cheap where they differ at once.
bool CloseToProduct(const Numbers& a, const Numbers& b, const Numbers& c, double tolerance);

// What a tensor is near a candidate: how its dimensions are made of atoms, and its numbers.
// A dimension may hold atoms along which the numbers do not vary (Tile, BroadcastTo, Fill).
struct Value {
  Dims dims;
  Numbers numbers;

  Dim Flat() const;
};

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_RECOGNIZER_VALUE_H_
