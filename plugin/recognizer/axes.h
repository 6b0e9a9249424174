#ifndef NV_NORMS_PLUGIN_RECOGNIZER_AXES_H_
#define NV_NORMS_PLUGIN_RECOGNIZER_AXES_H_

#include <cstdint>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "plugin/graph/view.h"
#include "plugin/recognizer/size.h"

namespace nv_norms {

// An atom is an axis that no Reshape in sight splits: every dimension of every tensor near a
// candidate is a list of atoms. A dimension of size 1 is the empty list.
using Atom = int;
using Dim = absl::InlinedVector<Atom, 6>;  // evaluation makes them by the thousand
using Dims = absl::InlinedVector<Dim, 6>;

// The atoms of one candidate. An atom may later be found to consist of others, either because a
// Reshape splits it or because it turns out to be the same axis as one that has another name
// (gamma's only axis is x's last one). Evaluation then starts again with the finer atoms; what
// was learned stays here.
class Axes {
 public:
  // The atoms of one dimension of a tensor; made at the first call, the same ever after.
  // A dimension of a tensor that is not the root may be bound to other atoms later.
  Dim ForDimension(TensorId tensor, int dimension, const Size& size, bool is_root);

  const Size& size(Atom atom) const { return atoms_[atom].size; }
  Size size(const Dim& dim) const;
  bool bindable(Atom atom) const { return atoms_[atom].bindable; }
  // Whether it consists of others, so that no dimension is made of it when evaluation starts again.
  bool replaced(Atom atom) const { return !atoms_[atom].finer.empty(); }

  // Replaces atom by smaller ones whose sizes multiply to its own, in every dimension.
  // True if the atom could be replaced (a size of an unknown may have been settled instead).
  bool Split(Atom atom, const Size& outer, const Size& inner);
  // Declares a bindable atom to be these atoms, none of which may be replaced.
  void Bind(Atom atom, const Dim& to) { atoms_[atom].finer = to; }
  // Settles that an unknown has this value. Only for unknowns of bindable or root dimensions.
  void Assume(int64_t symbol, const Size& value) { assumed_[symbol] = value; }
  // The same because two dimensions are broadcast together: it holds if neither has size 1.
  void Tie(int64_t symbol, const Size& value);
  // But for an unknown of what is computed from the root, a slice of it, say.
  void Trust(int64_t symbol) { trusted_.insert(symbol); }
  bool Trusts(int64_t symbol) const { return trusted_.count(symbol) > 0; }
  // The unknowns that are equal to others by that alone.
  const std::set<int64_t>& tied() const { return tied_; }
  Size Resolve(const Size& size) const;

  // A symbol for a dimension of which nothing is known, the same for each (tensor, dimension).
  int64_t SymbolFor(TensorId tensor, int dimension);

 private:
  struct Info {
    Size size;
    bool bindable;
    Dim finer;  // empty: not replaced
  };
  void Expand(Atom atom, Dim* out) const;
  Atom New(const Size& size, bool bindable);

  std::vector<Info> atoms_;
  std::map<std::pair<TensorId, int>, Atom> of_dimension_;
  std::map<std::pair<TensorId, int>, int64_t> symbol_of_;
  std::unordered_map<int64_t, Size> assumed_;
  std::set<int64_t> tied_, trusted_;
};

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_RECOGNIZER_AXES_H_
