#ifndef NV_NORMS_PLUGIN_RECOGNIZER_VALUE_H_
#define NV_NORMS_PLUGIN_RECOGNIZER_VALUE_H_

#include <functional>
#include <vector>

#include "plugin/recognizer/axes.h"

namespace nv_norms {

// Numbers indexed by atoms: a small array with one named axis for each atom along which it
// varies, in ascending order of the atoms. Views of a tensor share their numbers.
struct Numbers {
  std::vector<Atom> atoms;  // ascending
  std::vector<int> sizes;   // of the tiny model
  std::vector<double> data;

  static Numbers Scalar(double value) { return {{}, {}, {value}}; }
  bool VariesAlong(Atom atom) const;
};

// Elementwise, broadcasting by name.
Numbers Map(const Numbers& a, const std::function<double(double)>& f);
Numbers Zip(const Numbers& a, const Numbers& b, const std::function<double(double, double)>& f);
// The mean over these atoms; atoms along which it does not vary change nothing.
Numbers MeanOver(const Numbers& a, const std::vector<Atom>& atoms);

double MaxAbs(const Numbers& a);
// max |a - b| <= tolerance * max(|a|, |b|), with no NaN anywhere.
bool Close(const Numbers& a, const Numbers& b, double tolerance);

// What a tensor is near a candidate: how its dimensions are made of atoms, and its numbers.
// A dimension may hold atoms along which the numbers do not vary (Tile, BroadcastTo, Fill).
struct Value {
  Dims dims;
  Numbers numbers;

  std::vector<Atom> Flat() const;
};

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_RECOGNIZER_VALUE_H_
